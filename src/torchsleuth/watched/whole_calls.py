"""Compares whole calls of compiled functions with eager: what capture itself changes shows in no graph.

For each call that is due, a fork of this process makes the call twice more, each in a sealed process of its own: as
Dynamo captures it, with every graph run by eager's kernels, and without Dynamo. The user's process only waits for the
verdict; nothing of what the two do can be seen in it or outside. Where they differ, a third process makes the eager
call again: what differs there as well is chance and not a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from torchsleuth.compare.reference.rng import RngState, restore_rng, save_rng
from torchsleuth.processes.sealed import (
    CannotSeal,
    fill_fresh_memory,
    run_openmp_alone,
    seal,
    why_not_sealable,
)
from torchsleuth.torch_internals.calls_under_way import GUARD_FILTER
from torchsleuth.torch_internals.compiled_calls import CompiledCall, is_dynamos_own
from torchsleuth.torch_internals.configuration import global_state
from torchsleuth.torch_internals.modes import outside_all_modes, tracing_under_way
from torchsleuth.watched import failures, rewritten
from torchsleuth.watched.call_difference import PRINTED, Difference, differences, is_below
from torchsleuth.watched.call_state import (
    Leaf,
    Leaves,
    leaves_of,
    roots_of,
    tensors_of,
    user_function,
    versions_of,
)
from torchsleuth.watched.flight import Flight
from torchsleuth.watched.guard import CannotRepeat

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch

# Of each compiled function; a call after one that compiled something is looked at as well, up to the second number.
FIRST_CALLS, MOST_CALLS = 3, 8
# What one comparison and all of a process may take.
CALL_SECONDS, ALL_SECONDS = 60.0, 300.0
# Sentences that a case keeps.
MOST_DIFFERENCES = 10
_ASKS = {"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"}
_SEALED_OFF = (
    "it reaches beyond its own memory (writes a file, starts or signals a process, opens a connection)"
)


@dataclass
class _Function:
    calls: int = 0
    checked: int = 0
    compiled_last_time: bool = False


@dataclass
class WholeCalls:
    """Which calls of this process were compared, and how much time is left for more."""

    functions: dict[tuple[Any, int], _Function] = field(default_factory=dict)
    seconds_left: float = ALL_SECONDS
    said: set[str] = field(default_factory=set)

    def due(self, key: tuple[Any, int]) -> _Function | None:
        """Counts a call; what is known of its function where the call is to be compared."""
        known = self.functions.setdefault(key, _Function())
        known.calls += 1
        wanted = known.calls <= FIRST_CALLS or known.compiled_last_time
        return known if wanted and known.checked < MOST_CALLS else None


def begin(watch: Watch, flight: Flight, call: CompiledCall) -> Callable[[], None] | None:
    """Starts the comparison of a call that is about to be made; the function it returns waits for what came of it."""
    function = user_function(call.function)
    if function is None or watch.settings.only not in (None, function.__name__):
        return None
    state = watch.whole_calls
    known = state.due((function.__code__, id(call.function)))
    if known is None:
        return None
    graphs, failed = flight.graphs, flight.failures
    why_not = _why_not(state)
    if why_not is not None:
        _say_once(state, flight, f"whole calls are not compared with eager: {why_not}")
        rewritten.end_if_not_compared(why_not)
        return None
    known.checked += 1
    started = time.monotonic()
    judge, answer = _fork_judge(watch, call)

    def end() -> None:
        known.compiled_last_time = flight.graphs != graphs
        verdict = _verdict(judge, answer, started + min(CALL_SECONDS, state.seconds_left))
        state.seconds_left -= time.monotonic() - started
        _conclude(watch, flight, function, known, verdict, failed)

    return end


def _why_not(state: WholeCalls) -> str | None:
    """Why no call of this process, or none at this moment, can be repeated in a fork."""
    if why := why_not_sealable():
        return why
    if tracing_under_way():
        return "torch is tracing the call"
    if state.seconds_left <= 0:
        return f"it has taken {ALL_SECONDS:.0f} s already"
    if torch.cuda.is_initialized() or torch.xpu.is_initialized():
        return "a process that uses an accelerator cannot be forked"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "the process talks to other ranks"
    if threading.current_thread() is not threading.main_thread():
        return "the call is made in another thread than the main one"
    if signal.getsignal(signal.SIGCHLD) not in (signal.SIG_DFL, None):
        return "the program handles the end of its child processes itself"
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with contextlib.suppress(OSError, ValueError, IndexError):
        free = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
        if free < used:
            return "there is too little memory for the call to be made twice more"
    return None


def _say_once(state: WholeCalls, flight: Flight, sentence: str) -> None:
    if sentence not in state.said:
        state.said.add(sentence)
        flight.log(sentence)


# ---- the user's process


def _fork_judge(watch: Watch, call: CompiledCall) -> tuple[int, int]:
    """The process that will judge, and the descriptor its verdict is written to."""
    with outside_all_modes():
        rng = save_rng()
    answer = os.memfd_create("torchsleuth-verdict")
    watch.forks_itself = True
    try:
        judge = _fork()
    finally:
        watch.forks_itself = False
    if judge == 0:
        _as_child(lambda: _judge(watch, call, rng, answer), answer)
    return judge, answer


def _fork() -> int:
    # Taken by hand: a change through the module's functions makes Python show warnings again that it has shown.
    quiet = ("ignore", None, DeprecationWarning, None, 0)
    filters: Any = warnings.filters
    filters.insert(0, quiet)
    try:
        return os.fork()
    finally:
        filters.remove(quiet)


def _verdict(judge: int, answer: int, deadline: float) -> dict[str, Any]:
    status = None
    try:
        while status is None:
            ended, code = os.waitpid(judge, os.WNOHANG)
            status = code if ended else None
            if status is None and time.monotonic() > deadline:
                os.kill(judge, signal.SIGKILL)
                os.waitpid(judge, 0)
                return {"why_not": "the comparison took too long"}
            if status is None:
                time.sleep(0.005)
        text = _content(answer)
    except ChildProcessError:
        return {"why_not": "the program took the end of the comparing process for one of its own"}
    finally:
        os.close(answer)
    if text:
        found: dict[str, Any] = json.loads(text)
        return found
    return {"why_not": _how_it_ended(status)}


def _how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return _SEALED_OFF
    return f"the comparing process ended with status {os.waitstatus_to_exitcode(status)}"


def _conclude(
    watch: Watch,
    flight: Flight,
    function: FunctionType,
    known: _Function,
    verdict: dict[str, Any],
    failed_before: int,
) -> None:
    code = function.__code__
    if "why_not" in verdict:
        _say_once(
            watch.whole_calls,
            flight,
            f"calls of {code.co_name} not compared with eager: {verdict['why_not']}",
        )
        if flight.failures == failed_before:
            rewritten.end_if_not_compared(verdict["why_not"])
        return
    # A call that fails has its case from whoever failed.
    if not verdict["paths"] or (verdict["raises"] and flight.failures != failed_before):
        return
    known.checked = MOST_CALLS  # told once
    place = (code.co_filename, code.co_name, _line_of_definition(code))
    failures.report_wrong_capture(
        watch, flight, place, verdict["paths"], verdict["sentences"], verdict["call"]
    )


def _line_of_definition(code: CodeType) -> int:
    """The line with `def` in it: a function's first one may be that of a decorator."""
    first = code.co_firstlineno
    own = [at for _, _, at in code.co_lines() if at is not None and at >= first]
    lines = range(first, max(own, default=first) + 1)
    defines = re.compile(r"\s*(async\s+)?def\s")
    return next((n for n in lines if defines.match(linecache.getline(code.co_filename, n))), first)


# ---- the sealed processes

CALL = "the call"
REMARK = "a remark"
SOURCE = "the call as a program"


def _as_child(work: Callable[[], bytes], answer: int) -> NoReturn:
    """Does `work`, writes what it returns, and ends this process, which is a copy of the user's."""
    try:
        # What waits in a loop for what never comes would do so beside the user's call, however long that takes.
        resource.setrlimit(resource.RLIMIT_CPU, (int(CALL_SECONDS), int(CALL_SECONDS)))
        _write(answer, work())
    except (CannotSeal, CannotRepeat) as why:
        _write(answer, _refusal(str(why)))
    except BaseException as error:
        _write(answer, _refusal(f"internal error: {failures.describe(error)}"))
    finally:
        os._exit(0)


def _judge(watch: Watch, call: CompiledCall, rng: RngState, answer: int) -> bytes:
    """Makes the call as captured, has it made in eager, and compares."""
    watch.judges_captures()
    first, again = (os.memfd_create("torchsleuth-eager") for _ in range(2))
    ready, go = os.pipe()
    eager = _fork()
    if eager == 0:
        _as_child(lambda: _eager(call, rng, first, perturb=0x55), first)
    second = _fork()
    if second == 0:
        os.close(go)
        _as_child(lambda: _eager(call, rng, again, perturb=0xAA, after=ready, watch=watch), again)
    os.close(ready)
    seal([answer, first, again, go])
    captured = _leaves_after(call, call.run_captured, rng)
    expected = _sent(eager, first)
    if rewritten.prints_less():
        expected.pop(PRINTED), captured.pop(PRINTED)
    found = differences(expected, captured)
    source: dict[str, Any] = {}
    if found:
        os.write(go, json.dumps(_most_telling(found)).encode())
        chance = _sent(second, again)
        source = json.loads(chance.pop(SOURCE).text)
        if REMARK in chance:
            raise CannotRepeat(chance[REMARK].text)
        moving = differences(expected, chance)
        found = [each for each in found if not any(_related(each.path, other.path) for other in moving)]
    found.sort(key=_is_elsewhere)
    kept = found[:MOST_DIFFERENCES]
    verdict: dict[str, Any] = {"paths": [each.path for each in kept], "call": source}
    verdict["sentences"] = [each.sentence for each in kept]
    return json.dumps({**verdict, "raises": any(each.path == CALL for each in found)}).encode()


def _is_elsewhere(difference: Difference) -> bool:
    return not difference.path.startswith((CALL, "result"))


def _most_telling(found: list[Difference]) -> list[str]:
    """The paths that a script of the call is to show; few, for they go through a pipe while nobody reads it."""
    return [each.path for each in sorted(found, key=_is_elsewhere)][:MOST_DIFFERENCES]


def _related(one: str, other: str) -> bool:
    return is_below(one, other) or is_below(other, one)


def _refusal(why: str) -> bytes:
    return json.dumps({"why_not": why}).encode()


def _eager(
    call: CompiledCall,
    rng: RngState,
    answer: int,
    perturb: int,
    after: int | None = None,
    watch: Watch | None = None,
) -> bytes:
    """Makes the call without Dynamo; where `after` is given, once it is told there what differs.

    Then everything is as it was before the call, so that this is where the call is written as a program.
    """
    seal([answer] if after is None else [answer, after])
    told = b"" if after is None else os.read(after, 1 << 16)
    if after is not None and not told:
        return b""
    source = None if watch is None else _source_of(watch, call, json.loads(told))
    # Memory that nobody wrote to holds other bytes in each of the two eager processes.
    fill_fresh_memory(perturb)
    remarks: list[str] = []
    run = call.run_eager if after is None else lambda: _noting_questions(call.run_eager, remarks)
    leaves = _leaves_after(call, lambda: _as_written(run), rng)
    if _numpy_drew(rng):
        remarks.append("it draws numpy's random numbers, in place of which torch.compile draws torch's")
    if remarks:
        leaves[REMARK] = Leaf("remark", remarks[0])
    if source is not None:
        leaves[SOURCE] = Leaf("source", json.dumps(source))
    buffer = io.BytesIO()
    torch.save(
        {path: (leaf.kind, leaf.text, leaf.tensor, leaf.shown) for path, leaf in leaves.items()}, buffer
    )
    return buffer.getvalue()


def _as_written(run: Callable[[], Any]) -> Any:
    """Runs the program's own text, also where another is tried in its place."""
    with rewritten.as_it_was():
        return run()


def _source_of(watch: Watch, call: CompiledCall, wrong: list[str]) -> dict[str, Any]:
    """The call as a program; capture alone is wrong, so no backend is needed to see it."""
    state = global_state()
    of_dynamo = {name: value for name, value in call.under_way.options.items() if name == GUARD_FILTER}
    bare = replace(call.under_way, backend="eager", options=of_dynamo)
    try:
        with outside_all_modes(), torch.no_grad():
            return failures.recorded_call(watch, bare, state, wrong=wrong)
    except Exception as error:  # then the case has no script, and says why
        return {"forms": [], "why_none": failures.describe(error)}


def _numpy_drew(rng: RngState) -> bool:
    return rng.numpy is not None and repr(save_rng().numpy) != repr(rng.numpy)


def _noting_questions(run: Callable[[], Any], remarks: list[str]) -> Any:
    """Runs, and notes whether code outside of torch asks whether it is being compiled."""
    inside = str(Path(torch.__file__).parent)

    def look(frame: Any, event: str, _: Any) -> None:
        asked = event == "call" and frame.f_code.co_name in _ASKS and frame.f_back is not None
        if asked and not frame.f_back.f_code.co_filename.startswith(inside):
            remarks.append("it asks whether it is being compiled, and may do something else then")

    sys.setprofile(look)
    try:
        return run()
    finally:
        sys.setprofile(None)


def _leaves_after(call: CompiledCall, run: Callable[[], Any], rng: RngState) -> Leaves:
    """Makes the call; what it leaves behind."""
    if not run_openmp_alone():
        torch.set_num_threads(1)  # the other threads did not come along
    # oneDNN's kernels are made for so many threads, which wait for each other.
    torch.backends.mkldnn.enabled = False
    before = versions_of(roots_of(call.function, call.args, call.kwargs))
    printed = sys.stdout = io.StringIO()
    restore_rng(rng)  # Python's own generator is seeded anew in every fork
    result: Any = None
    ended = Leaf("returns")
    try:
        result = run()
    except Exception as error:
        if is_dynamos_own(error):
            raise CannotRepeat("Dynamo does not capture it") from error
        ended = Leaf(f"raises {type(error).__name__}", str(error)[:200])
    grad = torch.is_grad_enabled()
    with outside_all_modes():
        roots = roots_of(call.function, call.args, call.kwargs)
        leaves = {
            CALL: ended,
            **leaves_of([*roots, ("result", result)], before),
            PRINTED: Leaf("str", repr(re.sub(r"0x[0-9a-f]+", "0x", printed.getvalue()))),
            "the state of torch's random numbers": Leaf("Tensor", "", torch.get_rng_state()),
            "torch.is_grad_enabled()": Leaf("bool", str(grad)),
            "torch.get_default_dtype()": Leaf("torch.dtype", str(torch.get_default_dtype())),
        }
        return {**leaves, **(_gradients(roots, result) if grad else {})}


def _gradients(roots: list[tuple[str, Any]], result: Any) -> Leaves:
    """The gradients of the result with respect to what it was made from, where it has any."""
    found = tensors_of([("result", result)]).values()
    outputs = [tensor for tensor in found if tensor.requires_grad and tensor.is_floating_point()]
    inputs = {path: tensor for path, tensor in tensors_of(roots).items() if tensor.requires_grad}
    # What an earlier call made is as far back as this one goes.
    made_before = {path: tensor for path, tensor in inputs.items() if not tensor.is_leaf}
    wanted = made_before or inputs
    if not outputs or not wanted:
        return {}
    try:
        scales = [torch.linspace(0.5, 1.5, o.numel(), device=o.device).reshape(o.shape) for o in outputs]
        total = [(o * scale).sum() for o, scale in zip(outputs, scales)]
        grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    except Exception:  # a call that went through its own backward has none left
        return {}
    return {f"the gradient of {p}": Leaf("Tensor", "", g) for p, g in zip(wanted, grads) if g is not None}


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _sent(process: int, fd: int) -> Leaves:
    """What an eager process left to compare with."""
    _, status = os.waitpid(process, 0)
    content = _content(fd)
    if not content:
        raise CannotRepeat(_how_it_ended(status))
    if content.startswith(b"{"):
        raise CannotRepeat(json.loads(content)["why_not"])
    sent = torch.load(io.BytesIO(content), weights_only=True)
    return {path: Leaf(*parts) for path, parts in sent.items()}
