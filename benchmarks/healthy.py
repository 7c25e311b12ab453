"""Does the check cry wolf? Random healthy models under `torchsleuth run --check-accuracy`, and what it detects.

    python benchmarks/healthy.py                                   # 500 models in fp32 and bf16, on the CPU
    python benchmarks/healthy.py --seeds 0:40 --jobs 2             # a part of them
    python benchmarks/healthy.py --device cuda --seeds 0:200 --precisions fp32,tf32,bf16,fp16 --jobs 14
    python benchmarks/healthy.py --detection 12                    # planted faults in 12 graphs, in the same run

Every model of `healthy_models.py` is right, so every wrong result that is reported is a false alarm. Models share a
process, as tests of a library do; a process that does not end with status 0 or 3 counts its models as not run. What
raises an error is run once more without us: it counts against us if it runs then.
"""

from __future__ import annotations

import argparse
import collections
import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

MODELS = Path(__file__).with_name("healthy_models.py")
LIMIT = 900.0
UNCLEAR = ("INCONCLUSIVE", "EAGER_SUSPECT")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:500", help="first:last")
    parser.add_argument("--precisions", default="fp32,bf16", help="of fp32, tf32, bf16, fp16, half")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=10, help="models that share a process")
    parser.add_argument("--without", default="", help="kinds of models that are left out")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many, with what there is")
    parser.add_argument(
        "--detection", type=int, default=0, help="graphs with planted faults to judge as well"
    )
    parser.add_argument("--cases", type=Path, default=None, help="where false cases are kept")
    parser.add_argument("--json", type=Path, default=None, help="also write every batch here")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    work: queue.Queue[tuple[str, int, int]] = queue.Queue()
    for start in range(first, last, given.batch):
        for precision in given.precisions.split(","):
            work.put((precision, start, min(start + given.batch, last)))
    folder = given.cases or Path(tempfile.mkdtemp())
    ends = time.monotonic() + given.seconds if given.seconds else float("inf")
    began, found = time.monotonic(), []

    def serve() -> None:
        while time.monotonic() < ends:
            try:
                batch = work.get_nowait()
            except queue.Empty:
                return
            found.append(run_batch(*batch, given.device, folder, given.without))
            if given.json:
                given.json.write_text(json.dumps(found, indent=1))

    threads = [threading.Thread(target=serve) for _ in range(given.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        f"torch {torch.__version__}, {given.device}, {time.monotonic() - began:.0f} s with {given.jobs} at once\n"
    )
    print_table(found)
    if given.detection:
        from compare import SEEDS, accuracy_table, print_accuracy

        print_accuracy(accuracy_table(SEEDS[: given.detection], 3, given.device))


def run_batch(precision: str, start: int, stop: int, device: str, folder: Path, without: str) -> dict:
    """The models of some seeds in one watched process: what ran, and what the check said."""
    command = [sys.executable, "-m", "torchsleuth", "run", "--check-accuracy", "--record-only", "--json"]
    command += ["--cases", str(folder / f"{precision}-{start}"), str(MODELS), f"{start}:{stop}"]
    command += ["--precision", precision, "--device", device, "--without", without]
    began = time.monotonic()
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, errors="replace")
        said, status, output = json.loads(ran.stdout or "{}"), ran.returncode, ran.stderr
    except subprocess.TimeoutExpired as late:
        said, status, output = {}, 124, (late.stderr or b"").decode(errors="replace")
    except ValueError:
        said, status, output = {}, ran.returncode, ran.stderr
    found = said.get("cases", ())
    cases = [f"{c['id']}: {c['signature']['summary']}" for c in found if c["kind"] == "accuracy"]
    void = re.findall(r"^VOID (\d+) (.*)", output, re.MULTILINE)
    cases += [f"seed {seed}: {what}" for seed, what in void if runs_bare(int(seed), precision, device)]
    judged = said.get("accuracy", ())
    remarks = collections.Counter(r["kind"] for r in judged)
    batch = {
        "precision": precision,
        "seeds": [start, stop],
        "status": status,
        "models": re.findall(r"^MODEL (.*?):", output, re.MULTILINE),
        "void": [" ".join(each) for each in void],
        "cases": cases,
        "remarks": dict(remarks),
        "unclear": [r["sentence"] for r in judged if r["kind"] in UNCLEAR],
        "seconds": time.monotonic() - began,
    }
    print(
        f"# {precision} {start}:{stop}: {len(batch['models'])} ran, status {status}, {len(cases)} cases",
        flush=True,
    )
    for case in cases:
        print(f"#   FALSE CASE {case}", flush=True)
    if status not in (0, 3):
        print("\n".join(f"#   {line}" for line in output.splitlines()[-5:]), flush=True)
    return batch


def runs_bare(seed: int, precision: str, device: str) -> bool:
    """Whether a model that raised an error under watch runs without us."""
    command = [
        sys.executable,
        str(MODELS),
        f"{seed}:{seed + 1}",
        "--precision",
        precision,
        "--device",
        device,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, errors="replace")
    return ran.returncode == 0 and "VOID" not in ran.stdout + ran.stderr


def print_table(found: list[dict]) -> None:
    print(
        "| precision | models run | not run in it | false cases | less precise graphs | unclear graphs | s a model |"
    )
    print("|---|---|---|---|---|---|---|")
    for precision in dict.fromkeys(batch["precision"] for batch in found):
        batches = [b for b in found if b["precision"] == precision]
        ran, void, cases = (sum(len(b[key]) for b in batches) for key in ("models", "void", "cases"))
        remarks = sum((collections.Counter(b["remarks"]) for b in batches), collections.Counter())
        seconds = sum(b["seconds"] for b in batches) / max(ran, 1)
        unclear = sum(remarks[kind] for kind in UNCLEAR)
        print(
            f"| {precision} | {ran} | {void} | {cases} | {remarks['LESS_PRECISE']} | {unclear} | {seconds:.1f} |"
        )


if __name__ == "__main__":
    main()
