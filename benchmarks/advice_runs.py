"""Advice that takes whole runs: workarounds of `run`, and the cure of `profile`, pasted into programs of our own as printed.

`benchmarks/advice.py` has the table. A program that is not written here is one of the project's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


class NotFollowed(Exception):
    """The advice is not there, or cannot be applied as it stands."""


def one(pattern: str, printed: str) -> str:
    found = list(dict.fromkeys(re.findall(pattern, printed, re.MULTILINE)))
    if len(found) != 1:
        raise NotFollowed(f"{found} found in: {printed}")
    return found[0]


ROOT = Path(__file__).resolve().parent.parent
ROADS = ROOT / "tests" / "front" / "supervise" / "decisions" / "programs"

WRONG_DECOMPOSITION = """import torch
from torch._inductor import decomposition


def silu(x):
    return x * torch.sigmoid(x + 1)


decomposition.decompositions[torch.ops.aten.silu.default] = silu


@torch.compile
def f(x):
    return torch.nn.functional.silu(x @ x).sum(-1)


torch.manual_seed(0)
print([round(each, 2) for each in f(torch.randn(16, 16)).tolist()])
"""
RAISING_LOWERING = """import torch
from torch._inductor import lowering


def erf(*_args, **_kwargs):
    raise IndexError("no erf here")


for overload in (torch.ops.aten.erf.default, torch.ops.prims.erf.default):
    if overload in lowering.lowerings:
        lowering.lowerings[overload] = erf


@torch.compile
def f(x):
    return torch.erf(x.sin()) + x.cos()


print([round(each, 4) for each in f(torch.ones(4)).tolist()])
"""
PRINT = """import torch


@torch.compile(fullgraph=True)
def f(x):
    y = x.sin()
    print("at work")
    return y.cos()


print([round(each, 4) for each in f(torch.ones(3)).tolist()])
"""
NUMBER = PRINT.replace('    print("at work")\n', "").replace("y.cos()", "y * y.sum().item()")

# Name -> (the program, options of `run`).
WORKAROUNDS: dict[str, tuple[str, list[str]]] = {
    "an operator that Inductor cannot lower": ((ROADS / "smallest_of_nothing.py").read_text(), []),
    "a gradient that Inductor cannot lower": ((ROADS / "pool_gradient.py").read_text(), []),
    "a lowering of the program's own that raises": (RAISING_LOWERING, []),
    "a pattern that cannot be applied": ((ROOT / "examples" / "vision_transformer.py").read_text(), []),
    "wrong numbers of a decomposition": (WRONG_DECOMPOSITION, ["--check-accuracy"]),
    "print where one graph is asked for": (PRINT, []),
    "a number where one graph is asked for": (NUMBER, []),
}

BLOCKS = """import torch


def block(x, w):
    return torch.softmax(torch.relu(x @ w) + x.sin(), -1)


@torch.compile
def f(x, w):
    for _ in range(16):
        x = block(x, w)
    return x.sum()


torch.manual_seed(0)
print(round(f(torch.randn(32, 32), torch.randn(32, 32)).item(), 2))
"""
LAYERS = """import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x):
        return x + torch.tanh(self.inner(x)) * torch.sigmoid(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(16))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


torch.manual_seed(0)
net = torch.compile(Net())
with torch.no_grad():
    print(round(net(torch.randn(8, 32)).sum().item(), 2))
"""
PROFILES = {"a loop over a function": BLOCKS, "a loop over layers": LAYERS}


# -- workarounds


def workaround(text: str, options: list[str]) -> dict[str, Any]:
    """A program bare, uncompiled, and bare with the workaround that `run` recommends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "program.py"
        program.write_text(text)
        bare, eager = (
            bare_run(text, folder / "bare"),
            bare_run(text, folder / "eager", TORCH_COMPILE_DISABLE="1"),
        )
        environment = {
            **os.environ,
            "TORCHSLEUTH_CASES": str(folder / "cases"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "c"),
        }
        command = [sys.executable, "-m", "torchsleuth", "run", "--budget", "240", *options, str(program)]
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        from torchsleuth.core.cases.model import best_workaround, read_case

        found = [
            best_workaround(read_case(path.parent).workarounds or ())
            for path in folder.glob("cases/*/case.json")
        ]
        best = next((each for each in found if each is not None), None)
        if best is None:
            return {
                "what": "workaround",
                "before": bare[0],
                "after": None,
                "holds": False,
                "why": "none was found",
            }
        try:
            after = bare_run(with_workaround(text, best.how), folder / "after")
        except NotFollowed as why:
            return {"what": "workaround", "before": bare[0], "after": None, "holds": False, "why": str(why)}
        holds = after[0] == 0 and bare != eager and (after[1] == eager[1] or bare[0] != 0)
        row = {
            "what": "workaround",
            "before": f"status {bare[0]}",
            "after": f"status {after[0]}",
            "holds": holds,
        }
        return {**row, "piece": best.name, "as_eager": after[1] == eager[1]}


def bare_run(text: str, folder: Path, **more: str) -> tuple[int, str]:
    folder.mkdir()
    (folder / "program.py").write_text(text)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), **more}
    try:
        ran = subprocess.run(
            [sys.executable, "program.py"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
    except subprocess.TimeoutExpired:
        return 124, ""
    return ran.returncode, ran.stdout


def with_workaround(text: str, how: str) -> str:
    """The program with the lines where they say: above a function, as arguments of torch.compile, or below `import torch`."""
    first = how.splitlines()[0]
    if first.startswith("@"):
        found = re.search(r"above `((?:def|class) \w+)` in [\w.]+:(\d+)", how)
        return above(text, first.partition("  #")[0], found)
    given = re.fullmatch(r"torch\.compile\(model, (.*)\)", first)
    if given is not None:
        text = re.sub(r"@torch\.compile\n", f"@torch.compile({given[1]})\n", text)
        return re.sub(r"torch\.compile\((?!\w+=)([\w.()]+)", rf"torch.compile(\1, {given[1]}", text)
    return re.sub(r"^import torch$", lambda found: f"import torch\n{how}", text, count=1, flags=re.MULTILINE)


def above(text: str, decorator: str, found: re.Match[str] | None) -> str:
    """The program with a decorator above the function or class of that name that is nearest above that line."""
    if found is None:
        raise NotFollowed(f"it is not said above what: {decorator}")
    lines = text.splitlines(keepends=True)
    starts = [
        at for at, line in enumerate(lines) if re.match(rf" *{found[1]}\b", line) and at < int(found[2]) + 3
    ]
    if not starts:
        raise NotFollowed(f"there is no {found[1]} at line {found[2]}")
    indent = lines[starts[-1]].partition(found[1])[0]
    return "".join([*lines[: starts[-1]], f"{indent}{decorator}\n", *lines[starts[-1] :]])


# -- cures of a long compile


def cure(text: str) -> dict[str, Any]:
    """A program before and after what `profile` says to paste, each in an empty compile cache: its seconds of compiling."""
    with tempfile.TemporaryDirectory() as name:
        before, printed = profiled(text, Path(name) / "before")
        place = re.search(
            r"^paste .*above the `(def \w+)` that holds program.py:(\d+)", printed, re.MULTILINE
        )
        if place is None:
            return {
                "what": "compile time",
                "before": before,
                "after": None,
                "holds": False,
                "why": printed[:400],
            }
        cured = above(text, one(r"^paste +(@[\w.]+)", printed), place)
        after, _ = profiled(cured, Path(name) / "after", "--no-try")
        same = bare_run(text, Path(name) / "a")[1] == bare_run(cured, Path(name) / "b")[1]
        holds = same and after < 0.9 * before
        return {"what": "compile time", "before": before, "after": after, "holds": holds}


def profiled(text: str, folder: Path, *options: str) -> tuple[float, str]:
    """The seconds of compiling, and what is printed."""
    folder.mkdir()
    (folder / "program.py").write_text(text)
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHSLEUTH_CASES": str(folder / "cases"),
    }
    command = [sys.executable, "-m", "torchsleuth", "profile", "--budget", "600", *options, "program.py"]
    printed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout
    return float(one(r"compile time: ([\d.]+) s in", printed)), printed
