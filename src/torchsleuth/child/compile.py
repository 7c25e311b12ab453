"""The inside of a trial: compiles and runs one candidate the way it failed, and stops as soon as it is decided.

It is the runner of a written script fed with a `Trial` instead of a file, so that what fails here fails there.
Fork servers know it by name; `warm_up` is what they do once so that every trial starts warm.
"""

from __future__ import annotations

import argparse
import contextlib
import linecache
import math
import operator
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import torch

from torchsleuth.core.changes import NOTHING, OWN_BACKEND
from torchsleuth.core.criteria import SAME
from torchsleuth.core.protocol.trials import EAGER, Outcome, Seen, Trial
from torchsleuth.script_runtime import runner
from torchsleuth.script_runtime.compiling import with_reshapes
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.torch_core.compare.verdict.look import joint_graph, path_of_joint
from torchsleuth.torch_core.compare.verdict.tolerances import Tolerances, measured_tolerances
from torchsleuth.torch_core.repro.script import script_facts
from torchsleuth.torch_core.repro.tiny import tiny_trial
from torchsleuth.torch_internals.compile_stages import failing_stage, stopping_after
from torchsleuth.torch_internals.configuration import restore_settings, saved_settings, see_every_compile
from torchsleuth.torch_internals.kernel_builds import (
    built_together,
    forget_vector_instructions,
    note_answers,
    noted_answers,
    probe_vector_instructions,
    recall_vector_instructions,
)
from torchsleuth.torch_internals.loading import no_monitor_thread

# Without a folder: in a signature it counts as the user's file, as it does in a script.
_FILE = "trial.py"
# A graph of thousands of nodes has as many lowerings; a search needs their number and the first of them.
MOST_APPLIED = 20_000
# What the compiler makes of a graph; it takes the inputs as a list.
Compiled = Callable[[list[object]], object]
NOT_INTERPRETABLE = "NotInterpretable"
_PHASES = {"compiling": "compile", "running": "run"}
# Threads for kernels as torch chose them; the server itself runs with one, because OpenMP does not survive a fork.
_threads: int | None = None
_first_settings: dict[str, object] | None = None
# Whether a snippet has run in this process: what it changed stays changed.
_pasted = False
# The user's definitions that this process has executed, and the names they made.
_definitions: tuple[tuple[tuple[str, ...], str], dict[str, object]] | None = None


class Decided(BaseException):
    """The stage in which the original failed has passed: what comes after it cannot be the failure looked for."""


def run_trial(trial: Trial, announce: Callable[[str], None] = lambda phase: None) -> Outcome:
    """What comes of `trial` in this process; a crash takes the process along, so let `workers` call it.

    From outside it is `workers.run(trial).fails_like(trial.expected)`.
    """
    started = time.monotonic()
    seen: dict[str, Any] = {}
    try:
        ready = ready_trial(trial)
        if trial.measure_noise:
            announce("run")
            noise = noise_of(ready)
            seen["tolerances"] = asdict(noise)
            ready.facts["tolerances"] = {**noise.by_path, **trial.tolerances}
    except runner.CannotTell as why:
        return Outcome(None, time.monotonic() - started, error=str(why))
    see_every_compile()
    forget_vector_instructions(trial.settings.config)
    runner._repro_phase = _teller(trial, announce)
    observed: tuple[Signature, str] | None = None
    decided = False
    try:
        # What ends the process leaves no time to ask afterwards.
        if trial.must_pass_in_eager and trial.expected.kind in ("crash", "hang"):
            observed = _fails_in_eager(ready, announce)
        if observed is None:
            with _changed(trial, seen), _built(trial), stopping_after(_last_stage(trial), Decided):
                observed = _observed(ready, trial, seen)
            if trial.must_pass_in_eager and observed and SAME.same(trial.expected, observed[0]):
                # A compile that failed may leave modes behind; they belong to its thread.
                with ThreadPoolExecutor(1) as another:
                    observed = another.submit(_fails_in_eager, ready, announce).result() or observed
    except Decided:
        decided = True
    signature, text = observed or (None, "")
    found = Seen(**seen, stopped_early=decided)
    return Outcome(signature, time.monotonic() - started, text=text, seen=found)


def _fails_in_eager(
    ready: runner.ReproTrial, announce: Callable[[str], None]
) -> tuple[Signature, str] | None:
    """How the graph fails without the compiler, if it does: a failure of a phase of its own, like no other."""
    announce(EAGER)
    observed = ready.observe_eager([])
    return None if observed is None else (replace(observed[0], phase=EAGER), observed[1])


def ready_trial(trial: Trial) -> runner.ReproTrial:
    """Graph, inputs and settings of a trial, ready to be run; raises `CannotTell` where that cannot be done here."""
    global _first_settings
    use_threads()
    if _first_settings is None:
        _first_settings = saved_settings()
    backend: Any = trial.change.backend
    if backend is not None and backend.startswith(OWN_BACKEND):  # also where no entry points are installed
        from torchsleuth.torch_internals.compile_overrides import backend_named

        backend = backend_named(backend)
    options = argparse.Namespace(
        backend=backend, accuracy=None, tracing_mode=None, save_dir=trial.store or os.devnull
    )
    return runner.ReproTrial(_facts(trial), trial.graph, namespace_of(trial.imports, trial.embedded), options)


def use_threads() -> None:
    """As many threads as a process of its own would have; the server that this one was forked from keeps to one."""
    if _threads is not None:
        torch.set_num_threads(_threads)


def noise_of(ready: runner.ReproTrial) -> Tolerances:
    """How far rounding alone moves the results of a trial's graph."""
    if ready.facts["gradients"]:
        with ready.ambient():
            return _gradient_tolerances(ready.graph, ready.inputs())
    return measured_tolerances(with_reshapes(ready.graph), ready.inputs())


def _gradient_tolerances(graph: torch.fx.GraphModule, inputs: list[Any]) -> Tolerances:
    """How far rounding alone moves outputs and inputs' gradients; none where that is not known."""
    try:
        joint, everything = joint_graph(graph, inputs)
    except Exception:  # what cannot be traced together is compared by the script's own rule
        return Tolerances()
    found = measured_tolerances(joint, everything)
    return Tolerances({path_of_joint(path): far for path, far in found.by_path.items()}, found.distance)


@contextlib.contextmanager
def _changed(trial: Trial, seen: dict[str, object]) -> Iterator[None]:
    """The compiler with what an experiment of triage changes in it; what it applied is noted in `seen`."""
    global _pasted
    change = trial.change
    if change == NOTHING and trial.trace is None:
        yield
        return
    # Only experiments need these, and a server has to start fast.
    from torchsleuth.torch_internals.compile_overrides import run_snippet
    from torchsleuth.torch_internals.compile_trace import traced
    from torchsleuth.torch_internals.compiler_switches import switched

    with contextlib.ExitStack() as stack:
        if change.snippet:
            _pasted = True
            run_snippet(change.snippet)
        if trial.trace is not None:
            stack.enter_context(traced(trial.trace))
        if change.passes_alone:
            from torchsleuth.torch_internals.compile_stages import passes_alone

            stack.enter_context(passes_alone())
        elif change.interpret:
            from torchsleuth.torch_internals.inductor_ir.lowering import interpreted_lowering

            stack.enter_context(interpreted_lowering())
        applied = stack.enter_context(switched(change.off))
        try:
            yield
        finally:
            seen["applied"] = {name: tuple(found[:MOST_APPLIED]) for name, found in applied.names.items()}
            seen["missing"] = tuple(applied.missing)


def _built(trial: Trial) -> contextlib.AbstractContextManager[object]:
    """How its kernels are built: together, each a fifth of the time, where only the numbers they give are asked for."""
    numbers = trial.expected.kind == "accuracy" and not trial.time_runs
    return built_together() if numbers else contextlib.nullcontext()


def _observed(ready: Any, trial: Trial, seen: dict[str, Any]) -> tuple[Signature, str] | None:
    """What the run shows; an experiment may leave the compiler out, or be one that cannot be made here."""
    if trial.change.forward_only:
        ready.differentiate = lambda out: None
    if trial.change.uncompiled:
        names: list[str] = []
        runner._repro_phase("running")
        observed = ready.observe_eager(names)
        seen["node"] = names[-1] if names else None
        return observed
    observed = _observed_and_timed(ready, seen) if trial.time_runs else ready.observe()
    if observed is not None and NOT_INTERPRETABLE in "".join(observed[0].exceptions[-1:]):
        seen["not_interpretable"] = True
    return observed


def _observed_and_timed(ready: runner.ReproTrial, seen: dict[str, Any]) -> tuple[Signature, str] | None:
    """As `observe`; where the graph ran to its end, rightly or wrongly, `seen` says how long a run takes."""
    compiled = keep_compiled(ready)
    observed = ready.observe()
    if compiled and (observed is None or observed[0].kind == "accuracy"):
        seen["run_seconds"] = fastest(ready, lambda values: ready.differentiate(compiled[-1](values)))
    return observed


def _facts(trial: Trial) -> dict[str, object]:
    return script_facts(
        trial.settings,
        signature={"kind": trial.kind or trial.expected.kind, "outputs": trial.expected.outputs},
        placeholders=trial.placeholders,
        inputs=trial.inputs,
        constants=trial.constants,
        tolerances=trial.tolerances,
    )


def namespace_of(imports: tuple[str, ...], embedded: str) -> dict[str, object]:
    """The names a script would have: the usual imports, those of a trial, and the user's definitions.

    Definitions are executed once per process: an operator cannot be registered twice.
    """
    global _definitions
    if embedded and _definitions is not None and _definitions[0] == (imports, embedded):
        return _definitions[1]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    scope = module.__dict__
    scope.update(math=math, operator=operator, inf=math.inf, nan=math.nan, torch=torch, __file__=_FILE)
    text = "\n".join([*imports, embedded])
    linecache.cache[_FILE] = (len(text), None, text.splitlines(keepends=True), _FILE)
    try:
        exec(compile(text, _FILE, "exec"), scope)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise runner.CannotTell(f"could not set up the program's own definitions here ({why})") from error
    _definitions = (imports, embedded), scope
    return scope


def _teller(trial: Trial, announce: Callable[[str], None]) -> Callable[[str], None]:
    """Tells the phases on, and stops where the one that matters is over."""

    def tell(name: str) -> None:
        phase = _PHASES[name]
        if phase == "run" and trial.stop_early and trial.expected.phase != "run":
            raise Decided
        announce(phase)

    return tell


def _last_stage(trial: Trial) -> str | None:
    """The stage after which a compile of this trial is decided; None where all of it must run."""
    if trial.change.stop_after and _one_compile(trial):
        return trial.change.stop_after
    if not trial.stop_early or trial.expected.kind != "compile_error":
        return None
    stage = failing_stage(trial.expected.exceptions, trial.expected.frames)
    # Forward and backward have one joint graph.
    return stage if stage == "joint" or _one_compile(trial) else None


def _one_compile(trial: Trial) -> bool:
    """Whether Inductor compiles this trial's graph once: with gradients it compiles a backward graph as well."""
    if trial.settings.level == "aot":
        return True
    return not trial.constants and not any(spec.get("requires_grad") for spec in trial.inputs["inputs"])


def warm_up() -> dict[str, object]:
    """Imports and exercises everything a trial uses, up to but not including the C++ compiler; facts for the log.

    The server forks after this: it must be left with one thread and no accelerator.
    """
    global _threads
    no_monitor_thread()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    known = recall_vector_instructions(noted_answers())
    _exercise("aot", "torch.ops.aten.abs.default(a)", "codegen" if known else "lowering")
    _exercise("dynamo", "torch.abs(a)", "lowering")
    _threads = threads
    return {
        "torch": torch.__version__,
        "kernel_threads": threads,
        "vector_instructions_known": known,
    }


def learn() -> dict[str, bool]:
    """What takes seconds to find out and holds for every trial, and a first kernel in the shared cache."""
    global _threads
    _threads = 1  # as in the server, which will look for the very same kernel
    answers = noted_answers() or probe_vector_instructions()
    note_answers(answers)
    _exercise("aot", "torch.ops.aten.abs.default(a)", "run")
    return answers


def recall(answers: dict[str, bool]) -> None:
    """Takes over what `learn` found in another process, and loads the kernel it made.

    What torch finds out on the way, about the compiler and its headers, is then known to every trial.
    """
    global _threads
    threads, _threads = _threads, None
    if recall_vector_instructions(answers):
        _exercise("aot", "torch.ops.aten.abs.default(a)", "run")
    _threads = threads


def _exercise(level: str, call: str, stage: str) -> None:
    """One tiny compile up to the end of `stage`, with everything set back afterwards."""
    try:
        run_trial(tiny_trial(level, call, stage))
    except Exception:  # the compiler may be broken for good: that is for the trials to find out
        pass
    restore_settings(_first_settings or {})


def still_good() -> bool:
    """Whether this process can run another trial: settings are put back, and its accelerator still answers."""
    if _pasted:
        return False
    try:
        restore_settings(_first_settings or {})
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.zeros(1, device="cuda").add_(1).item()
    except Exception:
        return False
    return True


# The fastest of many runs is what the machine can do; a slow graph gets fewer.
RUNS = 50
SECONDS = 0.7


def keep_compiled(ready: Any) -> list[Compiled]:
    """The list into which a trial will put what its compiler yields: `kept = keep_compiled(ready)`.

    From here on there is one thread: on a busy machine threads that wait for each other take any time (measured: a
    graph of 0.1 ms took 104 ms with two threads beside other work on two cores).
    """
    torch.set_num_threads(1)
    kept: list[Compiled] = []
    prepare = ready.prepare

    def prepare_and_keep() -> Callable[[], Compiled]:
        compile_it = prepare()

        def compile_and_keep() -> Compiled:
            kept.append(compile_it())
            return kept[-1]

        return compile_and_keep

    ready.prepare = prepare_and_keep
    return kept


def fastest(ready: runner.ReproTrial, run: Compiled, most: int = RUNS) -> float:
    """Seconds of the fastest run: `fastest(ready, compiled)`."""
    best, until = float("inf"), time.monotonic() + SECONDS
    for _ in range(most):
        values = ready.inputs()
        with ready.ambient():
            runner._repro_wait()
            started = time.perf_counter()
            run(values)
            runner._repro_wait()
            best = min(best, time.perf_counter() - started)
        if most == RUNS and time.monotonic() > until:
            break
    return best
