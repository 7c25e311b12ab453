"""What `profile` and `trace` cost a program outside of its compiles, and how soon the page of a large trace is there.

    python benchmarks/compile_time.py overhead [--repeats 5]    a compiled loop bare and under each verb
    python benchmarks/compile_time.py page [--frames 200]       a program of that many frames, traced; its page opened

The loop is measured in seconds of the processor, after its compiles, the least of several runs, the ways in turn. The
page is opened by a headless Chromium, which says when it was ready; without one only its size is told.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOOP = """
import sys, time
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        torch._dynamo.graph_break()
        return x.sum()

torch.set_num_threads(1)
width, calls, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
model = torch.compile(Model(width), backend=backend)
x = torch.randn(width, width)
with torch.no_grad():
    for _ in range(20):
        model(x)
    best = None
    for _ in range(5):
        started = time.process_time()
        for _ in range(calls // 5):
            model(x)
        seconds = time.process_time() - started
        best = seconds if best is None or seconds < best else best
print("MICROSECONDS", 5e6 * best / calls, file=sys.stderr)
"""
# Width of the model, calls, backend: a call that takes a few hundred microseconds, and one that does nearly nothing.
SIZES = {"model": ("256", "400", "inductor"), "tiny": ("4", "10000", "eager")}
WAYS: dict[str, list[str] | None] = {
    "bare": None,
    "profile": ["profile"],
    "trace": ["trace", "--artefacts", "none"],
}
FRAME = """
def inner{0}(x):
    return x.sin() + {0}

@torch.compile(backend="eager")
def outer{0}(x):
    y = inner{0}(inner{0}(x) * 2)
    return y.cos() if y.shape[0] > 2 else y

outer{0}(x)
"""


def overhead(repeats: int) -> None:
    """Prints microseconds per call of each size and way, and how much more than bare that is."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "loop.py").write_text(LOOP)
        for size, arguments in SIZES.items():
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(repeats):
                for way in WAYS:
                    times[way].append(_microseconds(folder, WAYS[way], arguments))
            bare = min(times["bare"])
            for way in WAYS:
                least = min(times[way])
                print(
                    f"{size:<6} {way:<8} {least:9.2f} us per call  {100 * (least / bare - 1):+6.1f} %",
                    flush=True,
                )


def _microseconds(folder: Path, verb: list[str] | None, arguments: tuple[str, ...]) -> float:
    ran = _run(folder, verb, "loop.py", *arguments)
    found = re.search(r"MICROSECONDS ([\d.]+)", ran.stderr)
    if found is None:
        raise SystemExit(f"the loop did not run: {ran.stderr[-2000:]}")
    return float(found[1])


def _run(folder: Path, verb: list[str] | None, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHSLEUTH_CASES": str(folder / "cases"),
    }
    before = [] if verb is None else ["-m", "torchsleuth", *verb]
    return subprocess.run(
        [sys.executable, *before, *words], cwd=folder, env=env, capture_output=True, text=True
    )


def page(frames: int) -> None:
    """Prints how long the trace took, how large its page is, and after how many milliseconds it was ready."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source = "import torch\nx = torch.randn(4)\n" + "".join(map(FRAME.format, range(frames)))
        (folder / "frames.py").write_text(source)
        started = time.monotonic()
        bare = _run(folder, None, "frames.py")
        between = time.monotonic()
        ran = _run(folder, ["trace", "--instructions", "--json"], "frames.py")
        traced = time.monotonic() - between
        if ran.returncode or bare.returncode:
            raise SystemExit(ran.stderr[-2000:] or bare.stderr[-2000:])
        told = json.loads(ran.stdout)
        html = Path(told["path"]) / "index.html"
        print(f"{len(told['frames'])} frames: bare {between - started:.1f} s, traced {traced:.1f} s")
        print(f"index.html: {html.stat().st_size / 1e6:.2f} MB")
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser is None:
            print("no Chromium here: the page was not opened")
            return
        for _ in range(5):
            print(f"ready after {_ready(browser, html)} ms", flush=True)


def _ready(browser: str, html: Path) -> str:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", html.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r'data-milliseconds="(\d+)"', shown)
    return found[1] if found else "?"


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("overhead", "page"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--frames", type=int, default=200)
    given = parser.parse_args()
    overhead(given.repeats) if given.what == "overhead" else page(given.frames)


if __name__ == "__main__":
    main()
