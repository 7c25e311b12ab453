"""What the road of a failure asks, of trials, scripts and programs, and in which order: written down once, and replayed.

`Decisions` stands where those are run. Live, it asks them for real, one at a time, and keeps every answer with the files
that came of it; replayed, it gives the same answers again, starts nothing and compiles nothing. A question for which
there is no answer ends the road there and then: `NewQuestion`. Answers of trials go through `TrialQueue`, so what is
remembered and what is asked again is decided by the code that decides it for real workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import site
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torchsleuth
from torchsleuth.core.cases.spool import watched_processes
from torchsleuth.core.change_table import NEEDED_PASSES
from torchsleuth.core.changes import CHANGE_VARIABLE
from torchsleuth.core.criteria import Answer
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.processes.prepared import PreparedInterpreter
from torchsleuth.core.protocol.codec import from_json, plain
from torchsleuth.core.protocol.failures import Failure
from torchsleuth.core.protocol.steps import Done, Order, Refused
from torchsleuth.core.protocol.trials import Outcome, Trial
from torchsleuth.front.supervise import case_at_work, program_runs, road, second_look, whole_program
from torchsleuth.front.supervise.host import StepRefused
from torchsleuth.front.supervise.program import Supervised
from torchsleuth.front.supervise.program_runs import Program, ProgramRun, Watch
from torchsleuth.front.supervise.scripts import ScriptRun, ScriptRunner
from torchsleuth.script_runtime.signature import signature_from_json
from torchsleuth.search.host.main import Front, do_step
from torchsleuth.search.host.steps import STEPS, CaseQuestions
from torchsleuth.search.workers.queue import Ticket, TrialQueue

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDENS = REPOSITORY / "tests" / "front" / "supervise" / "decisions"
# So much that no step is cut short by a machine that is busy: what is asked is to depend on answers alone.
SECONDS = 7200.0
# A script without the compiler runs beside the others, so its place among them is nobody's decision.
UNCOMPILED = " uncompiled"
# Of a trial that failed, the text a person reads; blame reads generated code and steps in it.
MOST_TEXT = 16 << 10


class NewQuestion(BaseException):
    """The road asks what it did not ask when it was written down. Nothing on the road catches it."""


@dataclass
class Decisions:
    """The questions of one road in `folder`, which holds the program, the answers, and the files that came of them."""

    folder: Path
    live: bool
    # As lines of text: what was asked in order, and of scripts, some of which run beside that.
    asked: list[str] = field(default_factory=list)
    of_scripts: list[str] = field(default_factory=list)
    answers: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._told: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.scratch = Path(tempfile.mkdtemp(prefix="torchsleuth-decisions-")).resolve()
        self.values = self.folder / "values"
        self.values.mkdir(exist_ok=True)
        if not self.live:
            self.answers = json.loads((self.folder / "answers.json").read_text())

    def close(self) -> None:
        if self.live:
            (self.folder / "answers.json").write_text(self.anywhere(json.dumps(self.answers, indent=0)))
        shutil.rmtree(self.scratch, ignore_errors=True)

    # -- paths, which are others each time

    @property
    def _places(self) -> list[tuple[str, str]]:
        packages = site.getsitepackages()[0]
        ours = str(Path(torchsleuth.__file__).resolve().parent)
        known = [(str(self.folder), "@folder@"), (str(self.scratch), "@scratch@"), (packages, "@packages@")]
        known += [(ours, "@torchsleuth@"), (sys.executable, "@python@"), (sys.base_prefix, "@base@")]
        # What a row of the table holds may grow: that is no other decision.
        return [*known, (json.dumps(NEEDED_PASSES), '["@needed passes@"]')]

    def anywhere(self, text: str) -> str:
        """A text with names in place of this machine's paths, and of a list in the table of changes."""
        for path, name in self._places:
            text = text.replace(path, name)
        return text

    def here(self, text: str) -> str:
        """What `anywhere` made, with the paths of this machine."""
        for path, name in self._places:
            text = text.replace(name, path)
        return text

    def mark(self, doc: str) -> str:
        """A short name for a question."""
        return hashlib.sha256(self.anywhere(doc).encode()).hexdigest()[:12]

    def keep(self, files: Path, name: str) -> None:
        """Keeps what lies in a folder, under a name."""
        for path in sorted(files.rglob("*")):
            if path.is_file():
                kept = self.folder / name / path.relative_to(files)
                kept.parent.mkdir(parents=True, exist_ok=True)
                data = path.read_bytes()
                with contextlib.suppress(UnicodeDecodeError):
                    data = self.anywhere(data.decode().replace(str(files), "@spool@")).encode()
                kept.write_bytes(data)

    def put(self, name: str, files: Path) -> None:
        """Puts what was kept under a name into a folder."""
        for path in sorted((self.folder / name).rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                with contextlib.suppress(UnicodeDecodeError):
                    data = self.here(data.decode()).replace("@spool@", str(files)).encode()
                there = files / path.relative_to(self.folder / name)
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_bytes(data)

    # -- one question

    def ask(self, key: str, lines: list[str], words: str, really: Callable[[str], Any]) -> Any:
        """The answer, as JSON; `really` asks, and is given a name for files that come of it."""
        with self._lock:
            number, place = self._told[key], len(lines)
            self._told[key] += 1
            lines.append(words)
        if self.live:
            name = f"files-{hashlib.sha256(f'{key}{number}'.encode()).hexdigest()[:8]}"
            answer = json.loads(json.dumps(really(name)))
            with self._lock:
                self.answers.setdefault(key, []).append(answer)
        else:
            known = self.answers.get(key, [])
            if number >= len(known):
                raise NewQuestion(words)
            answer = json.loads(self.here(json.dumps(known[number])))
        lines[place] += f" -> {answer['said']}"
        return answer

    @property
    def text(self) -> str:
        """All of it for a person to read: what a change of a decision changes."""
        beside = sorted(line for line in self.of_scripts if UNCOMPILED in line)
        scripts = [line for line in self.of_scripts if UNCOMPILED not in line]
        return "\n".join([*self.asked, "", *scripts, *beside, ""])


# -- trials


def words_of(trial: Trial, decisions: Decisions) -> tuple[str, str]:
    """A trial in words - what is asked, of how much, under what - and all of it, for a mark."""
    doc = {**plain(trial), "store": None, "trace": bool(trial.trace), "expected": trial.expected.kind}
    doc["analysis"] = [bool(trial.analysis.told), bool(trial.analysis.values), list(trial.analysis.without)]
    if trial.question.name == "FOREIGN_SCRIPT":
        doc["graph"] = ""
    ops = [line.partition(" = ")[2].partition("(")[0] for line in trial.graph.splitlines() if " = " in line]
    ops = [op.removeprefix("torch.ops.").removeprefix("torch.") for op in ops if op]
    amount = (
        f"{len(trial.graph.splitlines())} lines" if trial.question.name == "PROGRAM" else f"{len(ops)} calls"
    )
    some = "" if trial.question.name == "PROGRAM" or len(ops) > 6 else f" {' '.join(ops)}"
    changed = _short(trial.change.to_json() | {"eager": sorted(trial.change.eager_nodes)}, decisions)
    specs = [*trial.inputs.get("inputs", ())]
    given = ", ".join(f"{spec.get('dtype', spec['kind'])}{spec.get('shape', '')}" for spec in specs[:3])
    more = "" if len(specs) <= 3 else f" and {len(specs) - 3} more"
    under = f"{trial.settings.level}, {trial.settings.direction}{changed}"
    return f"{trial.question.name} | {amount}{some} | {given}{more} | {under} |", json.dumps(
        doc, sort_keys=True
    )


def _short(change: dict[str, Any], decisions: Decisions) -> str:
    """What is changed, with a mark in place of the rest where that is long."""
    text = decisions.anywhere(
        json.dumps({name: value for name, value in change.items() if value}, sort_keys=True)
    )
    if len(text) > 160:
        text = f"{text[:120]} ... {hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return "" if text == "{}" else f", {text}"


class AnsweredTrials(TrialQueue):
    """One trial at a time, run by `workers` or answered from what is known."""

    def __init__(self, decisions: Decisions, workers: TrialQueue | None) -> None:
        super().__init__(1, Limits() if workers is None else workers.limits, 1, None)
        self._decisions, self._workers = decisions, workers
        self._ready.set()

    def _begin(self, ticket: Ticket) -> None:
        trial, decisions = ticket.trial, self._decisions
        words, doc = words_of(trial, decisions)
        mark = decisions.mark(doc)

        def really(_: str) -> dict[str, Any]:
            outcome = self._workers.run(trial, limits=ticket.limits, fresh=True)
            how = "passes" if outcome.signature is None else outcome.signature.summary
            how = how if outcome.error is None else f"cannot tell: {outcome.error}"
            if (
                trial.question.name not in ("FAILS", "PROGRAM")
                and outcome.signature is None
                and not outcome.error
            ):
                how = "told"
            doc = {**outcome.to_json(), "text": outcome.text[-MOST_TEXT:]}
            left = {path: _text(path) for path in (trial.trace, trial.analysis.told) if path}
            said = " ".join(decisions.anywhere(how).split())[:100]
            return {"said": said, "outcome": doc, "left": list(left.values())}

        answer = decisions.ask(f"trial {mark}", decisions.asked, f"{words} {mark}", really)
        for path, text in zip([p for p in (trial.trace, trial.analysis.told) if p], answer["left"]):
            Path(path).write_text(text)
        self._running.pop(ticket.number)
        self._conclude(ticket, Outcome.from_json(answer["outcome"]))

    def _drop(self, ticket: Ticket) -> None:
        raise AssertionError("every trial is answered at once")


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


class HostHere:
    """Stands where the search host is: its steps, in this process."""

    def __init__(self, decisions: Decisions, trials: TrialQueue) -> None:
        self.front = _FrontHere()
        self.questions = CaseQuestions(trials, decisions.values, self.front.begins)

    def ask(self, order: Order, budget: float, *, said: object = None, heard: Callable[[Any], None]) -> Done:
        self.front.heard = heard
        self.front.came = None
        do_step(STEPS[type(order)], self.front, self.questions, replace(order, budget=budget))
        if isinstance(self.front.came, Refused):
            raise StepRefused(self.front.came.sentence, self.front.came.status)
        assert isinstance(self.front.came, Done)
        return self.front.came


class _FrontHere(Front):
    def __init__(self) -> None:
        self.leave_out = frozenset()
        self.came: Done | Refused | None = None
        self.heard: Callable[[Any], None] = lambda message: None

    def tell(self, message: object) -> None:
        if isinstance(message, (Done, Refused)):
            self.came = message
        else:
            self.heard(message)


# -- scripts and programs


class AnsweredScripts(ScriptRunner):
    """Runs of scripts, real or as they were."""

    decisions: Decisions

    def run(
        self,
        script: Path,
        expected: object,
        *,
        arguments: Sequence[str] = (),
        compiles: bool = True,
        **more: Any,
    ):
        uncompiled = "" if compiles and not arguments else UNCOMPILED
        words = f"SCRIPT | {script.name}{uncompiled}"

        def really(_: str) -> dict[str, Any]:
            run = ScriptRunner.run(self, script, expected, arguments=arguments, compiles=compiles, **more)
            seen = None if run.seen is None else run.seen.to_json()
            told = {"answer": run.answer.name, "summary": run.summary, "seconds": run.seconds, "seen": seen}
            return {"said": run.words, **told}

        got = self.decisions.ask(words, self.decisions.of_scripts, words, really)
        seen = None if got["seen"] is None else signature_from_json(got["seen"])
        return ScriptRun(Answer[got["answer"]], got["summary"], got["seconds"], seen)


def _answered_run(decisions: Decisions) -> Callable[..., Supervised]:
    """In the place of `program_runs.run_unseen`: every run of the program goes through here."""
    for_real = program_runs.run_unseen

    def run_unseen(program: Program, settings: Any, deadline: float, **how: Any) -> Supervised:
        given = how.get("environment")
        base = os.environ if given is None else given
        change = program.change.to_json() if given is None else json.loads(base.get(CHANGE_VARIABLE, "{}"))
        watched = f"level {settings.level}" if settings.watches_failures else "not watched"
        keeps = " everything kept" if settings.keep else ""
        own = (
            " own cache"
            if given is None
            or base.get("TORCHINDUCTOR_CACHE_DIR") == os.environ.get("TORCHINDUCTOR_CACHE_DIR")
            else ""
        )
        changed = _short(change, decisions)
        script = Path(program.command[1]).name
        words = f"RUN | {script} | {watched}{keeps}{own}{changed}"
        spool = Path(settings.spool)

        def really(name: str) -> dict[str, Any]:
            ended = for_real(program, settings, deadline, **how)
            decisions.keep(spool, name)
            lost = [[process.folder.name, plain(failure)] for process, failure in ended.lost]
            lost = json.loads(json.dumps(lost).replace(str(spool), "@spool@"))
            said = f"status {ended.status}" + (", late" if ended.late else "")
            errors = how.get("stderr")
            tail = program_runs._tail(errors) if hasattr(errors, "seek") else ""
            return {
                "said": said,
                "status": ended.status,
                "late": ended.late,
                "lost": lost,
                "tail": tail,
                "files": name,
            }

        got = decisions.ask(words, decisions.asked, words, really)
        if not decisions.live:
            decisions.put(got["files"], spool)
            if hasattr(how.get("stderr"), "seek"):
                how["stderr"].write(got["tail"].encode())
        processes = {process.folder.name: process for process in watched_processes(spool)}
        told = json.loads(json.dumps(got["lost"]).replace("@spool@", str(spool)))
        lost = [(processes[name], from_json(Failure, doc)) for name, doc in told]
        return Supervised(got["status"], got["late"], lost=lost)

    return run_unseen


# -- the road


def walk(
    decisions: Decisions,
    program: Program,
    watch: Watch,
    workers: TrialQueue | None = None,
    prepared: PreparedInterpreter | None = None,
    say: Callable[[object], None] = lambda message: None,
) -> ProgramRun:
    """One program from its first run to the end of every case, asked and answered by `decisions`."""
    host = HostHere(decisions, AnsweredTrials(decisions, workers))
    runner = AnsweredScripts(prepared)
    runner.decisions = decisions

    @contextlib.contextmanager
    def processes_for(*_: object) -> Iterator[case_at_work.Processes]:
        yield case_at_work.Processes(runner, host)

    run_unseen = _answered_run(decisions)
    told: list[str] = []
    with contextlib.ExitStack() as stack:
        for module in (road, whole_program):
            stack.enter_context(mock.patch.object(module, "processes_for", processes_for))
        for module in (program_runs, second_look):
            stack.enter_context(mock.patch.object(module, "run_unseen", run_unseen))
            # Else a process is started that would clean up after this one.
            stack.enter_context(mock.patch.object(module, "scratch", lambda: decisions.scratch))
        for name in ("TRIAGE_SECONDS", "ANALYZE_SECONDS", "WORKAROUND_SECONDS", "PROGRAM_SECONDS"):
            stack.enter_context(mock.patch.object(road, name, SECONDS))
        stack.enter_context(mock.patch.object(whole_program, "nobody", say))
        found = whole_program.run_and_investigate(
            program,
            watch=watch,
            timeout=2 * SECONDS,
            budget=2 * SECONDS,
            cases_dir=decisions.scratch / "cases",
            finished=lambda folder: None,
            say=told.append,
            workers="1",
        )
    assert not told, told
    return found


# -- the programs whose roads are written down


@dataclass(frozen=True)
class Case:
    """A program, what it is watched for, and where it fails by a planted fault, which.

    Programs of the corpus are not the project's: where one is replayed, its file is empty. One of which a decision reads
    the text (the line of a `def`) has to be the project's own.
    """

    file: str
    compares: bool = False
    timeout: float | None = None
    fault: str = ""

    @property
    def watch(self) -> Watch:
        return Watch(self.timeout, self.compares)

    def place(self, folder: Path, corpus: Path | None = None) -> None:
        """Puts the program where it is to run."""
        there = folder / "program"
        there.mkdir(parents=True, exist_ok=True)
        if not self.fault:
            shutil.copy(REPOSITORY / self.file, there)
        elif corpus is None:
            (there / f"{self.file}.py").touch()
        else:
            for name in ("common.py", f"{self.file}.py", f"{self.file}.json"):
                shutil.copy(corpus / "cases" / name, there)

    def program(self, folder: Path) -> Program:
        name = f"{self.file}.py" if self.fault else Path(self.file).name
        return Program((sys.executable, str(folder / "program" / name)), str(folder / "program"))


def goldens_of(name: str) -> tuple[Path, Path]:
    """What was asked, for a person to read; and the answers."""
    return GOLDENS / f"{name}.txt", GOLDENS / f"{name}.tar.xz"


OWN = "tests/front/supervise/decisions/programs"
PROGRAMS = {
    "backend": Case("examples/01_compiler_error.py"),
    "own_bug": Case("examples/08_your_own_bug.py"),
    "capture": Case("benchmarks/uncapturable/branch_on_data.py"),
    "lowering": Case(f"{OWN}/smallest_of_nothing.py"),
    "wrong": Case("examples/02_wrong_numbers.py", compares=True),
    "wrong_gradient": Case(f"{OWN}/pool_gradient.py", compares=True),
    "dynamic": Case("case_06_dyn_cumsum_compile", fault="cumsum_sym_raise"),
    "backward": Case("case_15_cnn_convbwd_runtime", fault="conv_bwd_rt"),
    "data": Case("case_17_mlp_data_runtime", fault="relu_data_rt"),
    "accuracy": Case("case_18_cnn_rsqrt_accuracy", compares=True, fault="rsqrt_wrong"),
    "crash": Case("examples/03_crash.py"),
    "hang": Case("examples/04_hang.py", timeout=10.0),
}
