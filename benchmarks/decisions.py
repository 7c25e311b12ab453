"""What the road of a failure asks, written down for tests/front/supervise/test_decisions.py, and counted.

    make goldens                                                          # the programs of the project
    python benchmarks/decisions.py --corpus FOLDER [--only NAME ...]      # the planted ones as well

Every program goes down its road once, for real and one question at a time (tests/kit/roads.py). The questions and what
came of them are tests/front/supervise/decisions/NAME.txt, for a person to read; the answers, with those files that a
replay opens, are NAME.tar.xz beside it. Run it where a decision is changed on purpose, and look at what git says of the
texts. Rows go to benchmarks/results/decisions.json: questions, the processes started for them, and seconds from the end
of the program's first run to the first answer, with one worker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "kit"))

from roads import PROGRAMS, Decisions, goldens_of, walk  # noqa: E402
from torchsleuth.core.processes.prepared import PreparedInterpreter  # noqa: E402
from torchsleuth.search.workers.pool import Workers  # noqa: E402

RESULTS = HERE / "results" / "decisions.json"
# A first answer is who is at fault; where capture failed the case knows that before its script has run.
FIRST_ANSWERS = ("at fault: ", "with nothing compiled")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=Path, help="a folder with cases/, hook/ and faults.py: the planted faults"
    )
    parser.add_argument("--only", nargs="+", default=[], help="names that begin so")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, about in PROGRAMS.items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        if about.fault and options.corpus is None:
            continue
        rows[name] = record(name, options.corpus and options.corpus.resolve())
        RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
    print_rows(rows)


def record(name: str, corpus: Path | None) -> dict[str, Any]:
    """Walks the road of one program and writes its goldens; its row."""
    about = PROGRAMS[name]
    with tempfile.TemporaryDirectory(prefix="decisions-") as place:
        folder = Path(place).resolve() / name
        about.place(folder, corpus)
        before = dict(os.environ)
        if about.fault:
            paths = [f"{corpus}/hook", str(corpus), *filter(None, [os.environ.get("PYTHONPATH")])]
            os.environ |= {"FAULT": about.fault, "PYTHONPATH": os.pathsep.join(paths)}
        began = time.monotonic()
        first: list[float] = []
        ended: list[float] = []

        def say(message: object) -> None:
            if isinstance(message, str):
                print(f"{name} {time.monotonic() - began:6.1f} {message}", file=sys.stderr, flush=True)
                ended.append(time.monotonic())
                if not first and any(words in message for words in FIRST_ANSWERS):
                    first.append(time.monotonic() - ended[0])

        decisions = Decisions(folder, live=True)
        with Workers(1) as workers, PreparedInterpreter() as prepared:
            run = walk(decisions, about.program(folder), about.watch, workers, prepared, say)
            ran = workers.ran
        decisions.close()
        os.environ.clear()
        os.environ.update(before)
        for case in run.cases:
            found = case["triage"] or {}
            print(f"{name}: {found.get('component')}, {found.get('part')}", file=sys.stderr)
        opened = opened_by_replay(name, folder, decisions.text)
        text, archive = goldens_of(name)
        text.write_text(decisions.text)
        with tarfile.open(archive, "w:xz", preset=9) as tar:
            for path in sorted(folder.rglob("*")):
                # Values lie in files with the name of their hash, of which a road reads few.
                if path.is_file() and (path.suffix != ".safetensors" or path.name in opened):
                    tar.add(path, path.relative_to(folder), filter=_anyone)
        trials = [line for line in decisions.asked if not line.startswith("RUN")]
        return {
            "questions": len(decisions.asked) + len(decisions.of_scripts),
            "distinct": len(set(decisions.asked) | set(decisions.of_scripts)),
            "trials": ran,
            "scripts": len(decisions.of_scripts),
            "programs": len(decisions.asked) - len(trials),
            "first_answer": round(first[0], 1) if first else 0.0,
            "seconds": round(time.monotonic() - began, 1),
        }


def _anyone(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def opened_by_replay(name: str, folder: Path, text: str) -> set[str]:
    """The names of the files that a replay of what was just recorded opens."""
    opened: set[str] = set()
    watching = [True]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str):
            opened.add(os.path.basename(arguments[0]))

    sys.addaudithook(hook)
    decisions = Decisions(folder, live=False)
    for unneeded in folder.glob("files-*/*/counters"):
        unneeded.unlink()
    walk(decisions, PROGRAMS[name].program(folder), PROGRAMS[name].watch)
    decisions.close()
    watching.clear()
    assert decisions.text == text, f"{name} does not come out the same again"
    shutil.rmtree(folder / "program")
    return opened


def print_rows(rows: dict[str, dict[str, Any]]) -> None:
    """The table for BENCHMARKS.md."""
    print(
        "| program | questions | distinct | trials | scripts | programs | s to the first answer | s in all |"
    )
    print("|---|---|---|---|---|---|---|---|")
    columns = ("questions", "distinct", "trials", "scripts", "programs", "first_answer", "seconds")
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(str(row[column]) for column in columns) + " |")
    total = [sum(row[column] or 0 for row in rows.values()) for column in columns[:5]]
    print(f"| **all** | {' | '.join(map(str, total))} | | |")


if __name__ == "__main__":
    main()
