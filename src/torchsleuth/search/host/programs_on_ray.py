"""Whole programs on a Ray cluster, for `sweep`: `python -m torchsleuth.search.host.programs_on_ray ray://head:10001`.

Reads one order from stdin and prints one JSON line for each program that has ended. The folder the programs are
started in is sent to the nodes once; they need the same torch. What a failure looks like comes back, its case does not:
one of each kind is run again here to have one.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.changes import Change
from torchsleuth.core.processes.child import scratch
from torchsleuth.core.protocol.codec import Document
from torchsleuth.front.supervise.program_runs import CannotRunProgram, Program, ProgramRun, Watch, run_program
from torchsleuth.search.workers.cluster import ClusterUnfit, join_cluster, ray_here

# What is sent to every node without asking; data sets belong on a disk that all of them see.
MOST_BYTES = 200 << 20
LEFT_BEHIND = {".git", ".venv", "__pycache__", "torchsleuth-cases", "torchsleuth-sweep"}


def packed_folder(folder: Path) -> bytes:
    """The files below a folder as one archive; raises `ClusterUnfit` where they are too many to send around."""
    total = 0

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal total
        if Path(entry.name).name in LEFT_BEHIND or not (entry.isfile() or entry.isdir()):
            return None
        total += entry.size
        if total > MOST_BYTES:
            raise ClusterUnfit(
                f"{folder} holds more than {MOST_BYTES >> 20} MiB, too much to send to every node of the cluster; "
                "start the sweep in a folder that holds the programs alone, or use --workers N."
            )
        return entry

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as file:
        file.add(folder, arcname=".", filter=kept)
    return archive.getvalue()


def run_there(job: Document, order: Document, archive: bytes) -> dict[str, object]:
    """One program, on the node that this is called on: what came of it, as a message."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            file.extractall(folder, filter="data")
        # The interpreter of the machine that asks may lie elsewhere here.
        first, *rest = job["command"]
        program = Program((sys.executable if first == order["python"] else first, *rest), folder)
        change = Change.from_json(job["change"])
        try:
            watch = None if change.uncompiled else Watch(**order["watch"])
            run = run_program(program, change, watch=watch, timeout=order["timeout"])
        except CannotRunProgram as why:
            run = ProgramRun(127, 0.0, tail=str(why))
    return {**dataclasses.asdict(run), "cases": [dict(case) for case in run.cases]}


def ended_programs(ray: ModuleType, order: Document, archive: bytes) -> Iterator[dict[str, object]]:
    """What came of each job of the order, as they end; those that the time is too short for are given up."""
    until = time.monotonic() + order["seconds"]
    there = ray.remote(run_there).options(num_cpus=1, max_retries=1)
    shared = ray.put(archive)
    about = {key: order[key] for key in ("timeout", "watch", "python")}
    waiting = {there.remote(job, about, shared): number for number, job in enumerate(order["jobs"])}
    while waiting and time.monotonic() < until:
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=max(0.0, until - time.monotonic()))
        for reference in done:
            number = waiting.pop(reference)
            try:
                yield {"job": number, "run": ray.get(reference)}
            except ray.exceptions.RayError as error:
                why = (
                    f"the program could not be run on the Ray cluster ({str(error).strip().splitlines()[-1]})"
                )
                yield {"error": why}
                return
    for reference in waiting:
        ray.cancel(reference, force=True)


def main() -> int:
    """Joins the cluster that the command line names, and runs what stdin orders."""
    order = json.loads(sys.stdin.readline())
    address = None if sys.argv[1] == "ray" else sys.argv[1]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is no answer
    try:
        archive = packed_folder(Path(order["folder"]))
        ray = ray_here()
        join_cluster(ray, address)
        for answer in ended_programs(ray, {**order, "python": sys.executable}, archive):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    except (SleuthError, OSError) as why:
        answers.write(json.dumps({"error": str(why)}) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
