"""Whoever reads a case, a packed one, a spool or what a run observed, copes with one that is damaged in any way.

One real failing program is recorded; Hypothesis then changes what is on the disk. A reader ends with an answer or with
one clear sentence, never with a mistake of ours. For an hour, on cases of one's own (below SEEDS lie cases, spools, or both):
`python tests/faults/test_mutated_cases.py SEEDS 3600`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import HOW, MUTATIONS, Mutation, mutated, packed, read_tree, write_tree

from torchsleuth.core.cases.door import NotRead
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import open_case
from torchsleuth.front.cli import main as command_line

PROGRAM = """
import os, shutil, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x, k):
        print(end="")
        return torch.relu(self.lin(x).sin()) + k

net = torch.compile(Net(), dynamic=True)
for size in (2, 3):
    try:
        net(torch.ones(size, 4), size)
    except Exception:
        pass
shutil.copytree(os.path.join("cases", ".spool"), "spools")
"""
OPTIONS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
VERBS = [
    ["list", "--json"], ["show", "CASE"], ["show", "CASE", "--json"], ["report", "CASE", "-o", "OUT"], ["pack", "CASE", "-o", "OUT/x.zip"],
    ["verify", "CASE", "--json"], ["verify", "CASE/original.py", "--json"], ["analyze", "CASE", "--look"], ["list"],
]  # fmt: skip


Files = dict[str, bytes]
Seeds = tuple[list[Files], list[Files]]


def seeds_of(folder: Path) -> Seeds:
    """The cases and the spools that lie below a folder."""
    cases = [read_tree(path.parent) for path in sorted(folder.rglob("case.json"))]
    spools = [read_tree(path.parents[1]) for path in sorted(folder.rglob("process.json"))]
    return cases, spools


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="mutated-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        yield top
    finally:
        shutil.rmtree(top, ignore_errors=True)


def said_by(words: list[str]) -> tuple[int, str]:
    """The status and the errors of one command line, without a terminal to ask at; a mistake of ours is raised."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(command_line, "our_fault", _raise)
        status = command_line.main(words)
    said = err.getvalue()
    assert status in (0, 1, 2) and "Traceback" not in said and "bug in torchsleuth" not in said, (words, said)
    assert status == 0 or len(said.strip()) > 20, (words, said)
    assert said.count("\n") <= 12, (words, said)
    return status, out.getvalue()


def _raise(error: Exception) -> int:
    raise error


def case_id_of(files: Files) -> str:
    return str(json.loads(files["case.json"])["id"])


def looking(seeds: Seeds, which: int, mutations: list[Mutation]) -> None:
    files = seeds[0][which % len(seeds[0])]
    with scratch() as top:
        case = top / "cases" / case_id_of(files)
        write_tree(case, mutated(files, mutations))
        (top / "out").mkdir()
        for verb in VERBS:
            words = [word.replace("CASE", str(case)).replace("OUT", str(top / "out")) for word in verb]
            status, printed = said_by([*words, "--cases", str(top / "cases")])
            if "--json" in verb and status == 0:
                json.loads(printed)


def packed_cases(seeds: Seeds, which: int, mutations: list[Mutation]) -> None:
    files = seeds[0][which % len(seeds[0])]
    archive = packed(case_id_of(files), mutated(files, mutations[1:]))
    first = mutations[0]
    if first.how in ("cut", "flip", "twice", "insert"):
        archive = first.of(archive, False) or b""
    with scratch() as top:
        (top / "x.zip").write_bytes(archive)
        for verb in ("show", "unpack", "list", "report"):
            words = [verb, str(top / "x.zip")] if verb in ("show", "unpack") else [verb]
            said_by([*words, "--cases", str(top / "cases")])


def spools(seeds: Seeds, which: int, mutations: list[Mutation]) -> None:
    from torchsleuth.front.supervise.program import Supervised
    from torchsleuth.front.supervise.program_runs import cases_of_run

    with scratch() as top:
        spool = top / "cases" / ".spool" / "20260101-000000-abcdef"
        write_tree(spool, mutated(seeds[1][which % len(seeds[1])], mutations))
        with contextlib.suppress(SleuthError, NotRead):
            cases_of_run(top / "cases", spool, Supervised(0, []))
        assert said_by(["list", "--cases", str(top / "cases")])[0] == 0


def observed(seeds: Seeds, which: int, mutations: list[Mutation]) -> None:
    from torchsleuth.front.observe import events
    from torchsleuth.front.report import pages

    with scratch() as top:
        seen = [spool for spool in seeds[1] if any(name.startswith("observed-") for name in spool)]
        write_tree(top, mutated(seen[which % len(seen)], mutations, "observed-"))
        found = events.read_events(top)
        for kind in pages.COLLECTED.values():
            with contextlib.suppress(events.DamagedEvents):
                made = kind.of(found)
                list(kind.lines(made))
                json.dumps([made.to_json(), kind.more(made)])
        events.failed_compiles(found)


def searches(seeds: Seeds, which: int, mutations: list[Mutation]) -> None:
    from torchsleuth.script_runtime.inputs import InputsDamaged
    from torchsleuth.search.minify.case_state import search_start
    from torchsleuth.torch_core.tensors import ContentStoreReader

    files = seeds[0][which % len(seeds[0])]
    with scratch() as top:
        case = top / "cases" / case_id_of(files)
        write_tree(case, mutated(files, mutations))
        with contextlib.suppress(SleuthError):
            search_start(open_case(top / "cases", str(case)), _NobodyAsked())  # type: ignore[arg-type]
        store = ContentStoreReader(case / "inputs")
        for path in store.folder.glob("tensors/*.json"):
            with contextlib.suppress(InputsDamaged):
                store.read_tensor(path.stem)


class _NobodyAsked:
    """Trials would know these; a reader copes without."""

    def schemas(self, *_: object) -> list[str]:
        return []

    def passes_in_eager(self, *_: object) -> bool:
        return True

    def begins(self, _: str) -> bool:
        return True


READERS: list[Callable[[Seeds, int, list[Mutation]], None]] = [
    looking,
    packed_cases,
    spools,
    observed,
    searches,
]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    from program_runs import environment, sleuth, write_program

    if given := os.environ.get("MUTATED_SEEDS"):
        return seeds_of(Path(given))
    top = tmp_path_factory.mktemp("seeds")
    write_program(top, PROGRAM)
    env = environment(top, "aten.relu.default:raise")
    ran = sleuth("run", "--record-only", "--explain", "program.py", cwd=top, env=env)
    found = seeds_of(top)
    assert all(found), ran.stderr
    return found


@pytest.mark.parametrize(
    "reader",
    [pytest.param(r, id=r.__name__, marks=[pytest.mark.slow] * (r is looking)) for r in READERS],
)
@given(st.integers(0, 63), MUTATIONS)
@OPTIONS
def test_damage_is_one_sentence(seeds, reader, which: int, mutations: list[Mutation]) -> None:
    reader(seeds, which, mutations)


def main(folder: str, seconds: str) -> None:
    """Tries mutations at random until the time is over, and prints each mistake once, with what it takes."""
    found, rng, known = seeds_of(Path(folder)), random.Random(time.time()), set[object]()
    tried, until = 0, time.monotonic() + float(seconds)
    while time.monotonic() < until:
        which, reader = rng.randrange(1 << 16), rng.choice(READERS)
        how = [
            Mutation(rng.randrange(64), rng.choice(HOW), rng.randrange(4096), rng.randrange(256))
            for _ in range(rng.choice((1, 1, 2, 3)))
        ]
        tried += 1
        began = time.monotonic()
        try:
            reader(found, which, how)
        except Exception as error:
            places = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
            ours = [place for place in places if "torchsleuth/" in place[0]] or places
            if (type(error), ours[-1]) not in known:
                known.add((type(error), ours[-1]))
                print(
                    reader.__name__,
                    which,
                    how,
                    f"{type(error).__name__}: {error!s:.300}",
                    ours[-3:],
                    flush=True,
                )
        if (took := time.monotonic() - began) > 60:
            print(reader.__name__, which, how, f"took {took:.0f} s", flush=True)
        if tried % 500 == 0:
            print(f"tried {tried}, {len(known)} mistakes", flush=True)
    print(f"tried {tried}, {len(known)} mistakes", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
