"""What a program can call: a watched backend, a guarded compiler, a repro of a graph at hand.

The same watch as under `torchsleuth run`, for one backend object. There is no supervisor, so a case is made in
this process as soon as something fails; after a crash, the next `torchsleuth run` makes it from what was recorded.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, open_case
from torchsleuth.core.cases.record import CompileSettings
from torchsleuth.core.cases.spool import read_process
from torchsleuth.core.protocol.steps import REPRO
from torchsleuth.core.watching import Settings, settings_from_environment
from torchsleuth.front.supervise.case_at_work import CaseAtWork, processes_for
from torchsleuth.front.supervise.replay import Replay, replay_case
from torchsleuth.front.supervise.road import minify
from torchsleuth.torch_core.repro.assemble import make_case
from torchsleuth.torch_core.repro.script import script_text
from torchsleuth.torch_internals import hooks as seams
from torchsleuth.watched.flight import Flight
from torchsleuth.watched.graph_record import GraphOrigin, record_graph, state_now
from torchsleuth.watched.watch import Watch

log = logging.getLogger("torchsleuth")
KNOWN_OPTIONS = {
    "verb": ("run", "get_args", "verify", "analyze", "minify"),
    "accuracy": (None, "on", "off", "strict"),
    "tracing_mode": (None, "real", "fake", "symbolic"),
}
# What the search of level 2 may take of the program, which waits for it.
MINIFY_SECONDS = 120.0
WORKERS = "2"


def watch(
    backend: str | Callable[..., object] = "inductor",
    *,
    cases: str | os.PathLike[str] | None = None,
    level: int = 1,
    after: str = "auto",
) -> Callable[..., Any]:
    """A backend for torch.compile that does what `backend` does and keeps every failure as a case.

    From level 2 on the case is made small at once, while the program waits (two minutes at most).

    Used as `torch.compile(model, backend=torchsleuth.watch("inductor"))`.
    """
    compiler = seams.lookup_backend(backend)
    if settings_from_environment() is not None:
        return compiler  # `torchsleuth run` watches this process already
    watcher = _watch_for(str(cases or _default_cases()), level, after)
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)

    @functools.wraps(compiler)
    def watched(gm: torch.fx.GraphModule, example_inputs: Sequence[object], **kwargs: object) -> object:
        return watcher.on_backend(
            seams.BackendCall(
                backend=compiler,
                name=name,
                options=seams.backend_options(compiler, kwargs),
                graph=gm,
                inputs=example_inputs,
                compile=lambda g, i: compiler(g, i, **kwargs),
            )
        )

    return watched


def wrap_compiler_debug(
    compiler_fn: Callable[..., Callable[..., object]],
    compiler_name: str,
    *,
    cases: str | os.PathLike[str] | None = None,
    level: int = 1,
) -> Callable[..., Any]:
    """A compiler of aten graphs with the signature of `compiler_fn`, guarded when it compiles and when its result runs.

    Example inputs may be fake: the real ones are looked at when the compiled function is called. From level 2
    on a failure is made small before its exception goes on (two minutes at most).

    Used as `aot_autograd(fw_compiler=wrap_compiler_debug(my_compiler, "mine"))`.
    """
    watcher = _watch_for(str(cases or _default_cases()), level, "aot")

    @functools.wraps(compiler_fn)
    def debugged(
        gm: torch.fx.GraphModule, example_inputs: Sequence[object], **kwargs: object
    ) -> Callable[..., object]:
        return watcher.on_compiler(
            seams.BackendCall(
                backend=compiler_fn,
                name=compiler_name,
                options={},
                graph=gm,
                inputs=example_inputs,
                compile=lambda g, i: compiler_fn(g, i, **kwargs),
            ),
            kwargs,
        )

    return debugged


def save_graph_repro(
    fd: TextIO,
    gm: torch.fx.GraphModule,
    args: Sequence[object],
    compiler_name: str = "inductor",
    *,
    stable_output: bool = False,
    save_dir: str | os.PathLike[str] | None = None,
    level: str = "aot",
    command: str = "run",
    accuracy: bool | str | None = None,
    tracing_mode: str | None = None,
    check_str: str | None = None,
) -> None:
    """Writes a standalone script that compiles and runs `gm` on inputs like `args`.

    With `save_dir` the values of the inputs are kept there, where the script looks for them; else it makes values of
    the same dtype, shape and strides. `command`, `accuracy` (True, False or "strict"), `tracing_mode` and `check_str`
    are what the script does unless it is told otherwise (`python repro.py --help`). Raises ValueError where the graph
    cannot be written.

    >>> with open("repro.py", "w") as file:
    ...     save_graph_repro(file, gm, [torch.randn(8)], "inductor")
    """
    from torchsleuth.watched.graph_record import keep_values

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        settings = CompileSettings(level, compiler_name, state=state_now())
        record = record_graph(folder, 0, gm, args, GraphOrigin(settings))
        if record.facts.no_repro is not None or record.inputs is None:
            raise ValueError(f"no repro can be written for this graph: {record.facts.no_repro}")
        inputs = record.facts.inputs
        if save_dir is not None:
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            inputs = keep_values(record.inputs, args, tensors, Path(save_dir)).to_json()
        source = (folder / "graph.py").read_text(encoding="utf-8")
    asked: dict[str, object] = {"verb": command, "tracing_mode": tracing_mode, "check_str": check_str}
    asked["accuracy"] = ("off", "on")[accuracy] if isinstance(accuracy, bool) else accuracy
    if save_dir is not None:  # from the script on, where it is known where that lies
        name = getattr(fd, "name", None)
        asked["save_dir"] = (
            os.path.relpath(save_dir, os.path.dirname(name)) if isinstance(name, str) else str(save_dir)
        )
    wrong = [
        f"{name}={value!r}" for name, value in asked.items() if value not in KNOWN_OPTIONS.get(name, (value,))
    ]
    if wrong:
        raise ValueError(f"a script knows no {', '.join(wrong)}; it knows {KNOWN_OPTIONS}")
    fd.write(
        script_text(
            record.facts,
            source,
            None,
            inputs=inputs,
            name="repro.py",
            stable=stable_output,
            pasted=True,
            asked={name: value for name, value in asked.items() if value not in (None, "run")},
        )
    )


@dataclass(frozen=True)
class RecordedFrames:
    """What `record_frame` has recorded so far: the folders of the cases, to give to `replay`."""

    cases: list[Path] = field(default_factory=list)


@contextlib.contextmanager
def record_frame(*, cases: str | os.PathLike[str] | None = None) -> Iterator[RecordedFrames]:
    """Records what Dynamo cannot capture in here: the call, with its function, arguments and options, becomes a case.

    The exception goes its way. Used as::

        with torchsleuth.record_frame() as recorded:
            step(batch)
        torchsleuth.replay(recorded.cases[0])
    """
    recorded = RecordedFrames()
    if settings_from_environment() is not None:
        yield recorded  # `torchsleuth run` watches this process already
        return
    folder = Path(cases or _default_cases())

    def finish(flight: Flight) -> None:
        recorded.cases.extend(make_cases(folder, flight))

    # A process has many of these: each leaves its own record, and none hears of the others' failures.
    spool = folder.absolute() / ".spool" / f"frame-{os.getpid()}-{time.monotonic_ns()}"
    watcher = Watch(Settings(spool=str(spool)), finish=finish, everything=False)
    undo = seams.hook_frame_captures(watcher.on_frame)
    try:
        yield recorded
    finally:
        undo()


def replay(
    case: str | os.PathLike[str],
    *,
    eager: bool = False,
    timeout: float | None = None,
    cases: str | os.PathLike[str] | None = None,
) -> Replay:
    """Runs a recorded frame again, in a fresh process: `replay("last").answer`. Executes what is in the case."""
    folder = open_case(Path(cases or _default_cases()), str(case))
    return replay_case(folder, eager=eager, timeout=timeout)


def _default_cases() -> str:
    return os.environ.get("TORCHSLEUTH_CASES", "torchsleuth-cases")


@functools.cache
def _watch_for(cases: str, level: int, after: str) -> Watch:
    spool = Path(cases).absolute() / ".spool" / f"watch-{os.getpid()}"
    watcher = Watch(
        Settings(spool=str(spool), level=level, after=after),
        finish=lambda flight: (
            _minified(make_cases(Path(cases), flight)) if level >= 2 else make_cases(Path(cases), flight)
        ),
        everything=False,
    )
    seams.hook_inner_compiles(watcher.on_inner)
    return watcher


# The cases of this process, in order.
_made: list[CaseFolder] = []


def save_repro(into: str | os.PathLike[str]) -> Path:
    """Copies the script of the last failure that this process met, and what it needs, into a new folder; says where.

    For an `except` of a program that goes on: the failure must have come from a backend of `watch`, or after `start()`.
    Under `torchsleuth run` cases are made at the program's end.

    Used as `except Exception: print(torchsleuth.save_repro("repro"))`.
    """
    if not _made:
        raise LookupError(
            "no failure was recorded in this process: compile with backend=torchsleuth.watch(...), or call "
            "torchsleuth.start() before anything is compiled"
        )
    last = _made[-1]
    if last.case.no_repro is not None:
        raise LookupError(f"the last failure has no script: {last.case.no_repro}")
    return Path(shutil.copytree(last.path, into)) / "original.py"


def make_cases(cases: Path, flight: Flight) -> list[Path]:
    """Makes cases of what this process has reported so far, and says in one line where they are.

    Used as `Watch(settings, finish=lambda flight: make_cases(Path("cases"), flight))`.
    """
    process = read_process(flight.folder)
    made = []
    for failure in process.failures()[flight.finished :]:
        folder = make_case(cases, process, failure, os.environ)
        flight.finished += 1
        made.append(folder.path)
        _made.append(folder)
        log.warning(
            "torchsleuth: case %s: %s; next: torchsleuth show %s",
            folder.case.id,
            folder.case.signature.summary,
            folder.path,
        )
    return made


def _minified(cases: list[Path]) -> None:
    """Makes cases small in processes of their own. What fails in that is told; the program's exception goes on."""
    for path in cases:
        folder = open_case(path.parent, path.name)
        try:
            with processes_for(folder, WORKERS) as processes:
                until = time.monotonic() + MINIFY_SECONDS
                found = minify(CaseAtWork(folder, processes, until, log.info), MINIFY_SECONDS)
        except SleuthError as why:
            log.warning("torchsleuth: case %s was not made smaller: %s", folder.case.id, why)
        else:
            small = found.folder.case.minified
            left = "" if small is None or small.calls is None else f", {small.calls} calls left"
            log.warning("torchsleuth: case %s%s: python %s", folder.case.id, left, found.folder.path / REPRO)
