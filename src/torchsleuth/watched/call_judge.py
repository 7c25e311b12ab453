"""The sealed processes that look at a call beside the program, and the verdict on how a whole call was captured.

The judge makes the call as Dynamo captures it, with every graph run by eager's kernels; one process makes it without
Dynamo, another one does so again where there is a difference: what differs there as well is chance and not a finding.
Where a graph's compiler gave one tensor for several, what the program's own call left behind is compared, too.
The result of one graph is judged in such a process, too: what hangs, dies or fills memory there is a line of the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch

from torchsleuth.core.processes.sealed import CannotSeal, fill_fresh_memory, seal, why_not_sealable
from torchsleuth.core.processes.starting import without_devices
from torchsleuth.core.protocol.codec import from_json, to_json
from torchsleuth.core.protocol.failures import RecordedCall
from torchsleuth.core.watching import LOOK_SECONDS
from torchsleuth.torch_core.compare.reference.rng import RngState, save_rng
from torchsleuth.torch_internals.compiled_calls import GUARD_FILTER, CompiledCall
from torchsleuth.torch_internals.modes import outside_all_modes
from torchsleuth.watched import apply_change, call_failures, failures
from torchsleuth.watched.call_failures import (
    CAPTURED,
    COMPILED,
    CallVerdict,
    differences,
    most_telling,
    verdict_on,
)
from torchsleuth.watched.call_state import (
    PRINTED,
    CannotRepeat,
    Leaf,
    Leaves,
    is_below,
    leaves_after,
    leaves_of,
    packed,
    roots_of,
    unpacked,
    values_only,
)
from torchsleuth.watched.graph_record import state_now
from torchsleuth.watched.startup import unwarned

if TYPE_CHECKING:
    from torchsleuth.watched.watch import Watch

T = TypeVar("T")

# CPU seconds that each process of a comparison may take.
CALL_SECONDS = LOOK_SECONDS
POLL_MILLISECONDS = 1000
REMARK = "a remark"
WITH_RANKS = "the process talks to other ranks"
LITTLE_MEMORY = "there is too little memory for the call to be made twice more"
SOURCE = "the call as a program"
_ASKS = {"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"}
_SEALED_OFF = (
    "it reaches beyond its own memory (writes a file, starts or signals a process, opens a connection)"
)


def _memory(name: str) -> Callable[[], int]:
    return lambda: os.memfd_create(f"torchsleuth-{name}")


@dataclass(frozen=True)
class Between:
    """What goes between the user's process and the judge: the verdict, and what the call itself left behind.

    For the latter the judge waits on `ended` once it has found nothing, until the call has ended.
    """

    answer: int = field(default_factory=_memory("verdict"))
    left: int = field(default_factory=_memory("left"))
    ended: tuple[int, int] = field(default_factory=os.pipe)

    def call_ended(self) -> None:
        """To the judge: there is nothing more to look at."""
        os.write(self.ended[1], b".")

    def call_left(self, watch: Watch, call: CompiledCall, result: Any) -> None:
        """To the judge: what the call of the program itself left behind, which a process apart from it looks at."""
        try:
            looks = fork_of(watch)
            if looks == 0:
                as_child(lambda: _left(call, result, [self.left]), self.left)
            with contextlib.suppress(ChildProcessError):  # the program was waiting for children of its own
                os.waitpid(looks, 0)
        finally:
            os.write(self.ended[1], b"!")

    def close(self) -> None:
        for fd in (self.answer, self.left, *self.ended):
            os.close(fd)

    def left_by_call(self, user: int) -> Leaves | None:
        """In the judge: what the call left, where that is to be looked at."""
        waiting = select.poll()
        waiting.register(self.ended[0], select.POLLIN)
        while not waiting.poll(POLL_MILLISECONDS):
            if os.getppid() != user:  # nobody will ask for the verdict
                return None
        return _unpacked(content_of(self.left)) if os.read(self.ended[0], 1) == b"!" else None


def _left(call: CompiledCall, result: Any, descriptors: list[int]) -> bytes:
    seal(descriptors)
    with outside_all_modes():
        roots = roots_of(call.function, call.args, call.kwargs)
        return packed(leaves_of([*roots, ("result", result)], {}))


def fork_judge(watch: Watch, call: CompiledCall, between: Between) -> int:
    """Starts the process that will judge the call; its id."""
    with outside_all_modes():
        rng = save_rng()
    user = os.getpid()
    judge = fork_of(watch)
    if judge == 0:
        os.close(between.ended[1])
        as_child(lambda: _judge(watch, call, rng, between, user), between.answer)
    return judge


def why_not_forked() -> str | None:
    """Why nothing can be looked at in a fork of this process now; None where it can."""
    if why := why_not_sealable():
        return why
    if torch.cuda.is_initialized() or torch.xpu.is_initialized():
        return "a process that uses an accelerator cannot be forked"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return WITH_RANKS
    if threading.current_thread() is not threading.main_thread():
        return "the call is made in another thread than the main one"
    if signal.getsignal(signal.SIGCHLD) not in (signal.SIG_DFL, None):
        return "the program handles the end of its child processes itself"
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with contextlib.suppress(OSError, ValueError, IndexError):
        free = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
        if free < used:
            return LITTLE_MEMORY
    return None


def ended_by(process: int, deadline: float, waits: Callable[[], object] = lambda: None) -> int | None:
    """How a child process ended; None where it had not by the deadline, and was killed. `waits` is called meanwhile."""
    pause = 0.001
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
        waits()


def fork_of(watch: Watch) -> int:
    """A fork of the user's process that is not part of the program."""
    watch.forks_itself = True
    try:
        return _fork()
    finally:
        watch.forks_itself = False


def _fork() -> int:
    with unwarned():
        return os.fork()


def how_it_ended(status: int) -> str:
    """Why a comparing process that said nothing has ended."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return _SEALED_OFF
    return f"the comparing process ended with status {os.waitstatus_to_exitcode(status)}"


def content_of(fd: int) -> bytes:
    """All that was written to memory that processes share."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def as_child(work: Callable[[], bytes], answer: int, seconds: float | None = CALL_SECONDS) -> NoReturn:
    """Does `work`, writes what it returns, and ends this process, which is a copy of the user's."""
    try:
        # What waits in a loop for what never comes would do so beside the user's call, however long that takes.
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
        _write(answer, work())
    except (CannotSeal, CannotRepeat) as why:
        _write(answer, _as_bytes(CallVerdict(str(why))))
    except BaseException as error:
        _write(answer, _as_bytes(CallVerdict(f"internal error: {failures.describe(error)}")))
    finally:
        os._exit(0)


def _as_bytes(verdict: CallVerdict) -> bytes:
    return json.dumps(to_json(verdict)).encode()


def _judge(watch: Watch, call: CompiledCall, rng: RngState, between: Between, user: int) -> bytes:
    """Makes the call as captured, has it made in eager, and compares."""
    watch.judges_captures()
    no_lock_of_progress_bars()
    see_no_devices()
    first, again = (os.memfd_create("torchsleuth-eager") for _ in range(2))
    ready, go = os.pipe()
    eager = _fork()
    if eager == 0:
        as_child(lambda: _eager(call, rng, first), first)
    second = _fork()
    if second == 0:
        os.close(go)
        as_child(lambda: _eager_again(watch, call, rng, again, ready), again)
    os.close(ready)
    seal([between.answer, between.left, between.ended[0], first, again, go])
    captured = leaves_after(call, call.run_captured, rng)
    expected = _sent(eager, first)
    if apply_change.prints_less():
        expected.pop(PRINTED), captured.pop(PRINTED)
    how, other = CAPTURED, captured
    found = differences(expected, captured)
    if not found:
        left = between.left_by_call(user)
        if left is not None:
            how, other = COMPILED, left
            found = differences(values_only(expected), left, COMPILED)
    source = RecordedCall()
    if found:
        paths = most_telling([each.path for each in found])
        if how == COMPILED:
            paths = [_without_rounding(path, expected.get(path), other.get(path)) for path in paths]
        os.write(go, json.dumps({"how": how, "paths": paths}).encode())
        chance = _sent(second, again)
        source = from_json(RecordedCall, json.loads(chance.pop(SOURCE).text))
        if REMARK in chance:
            raise CannotRepeat(chance[REMARK].text)
        moving = differences(expected, chance)
        found = [
            each
            for each in found
            if not any(is_below(each.path, m.path) or is_below(m.path, each.path) for m in moving)
        ]
    return _as_bytes(verdict_on(found, how, source))


def no_lock_of_progress_bars() -> None:
    """tqdm shares one with other processes, which a sealed process may not make; torch.fx has such a bar."""
    lock = getattr(sys.modules.get("tqdm.std"), "TqdmDefaultWriteLock", None)
    if lock is not None and not hasattr(lock, "mp_lock"):
        lock.mp_lock = None


def see_no_devices() -> None:
    """Torch asks for devices on many occasions; the first question opens their files, which a sealed process may not.

    So it is asked here, and told that there are none: the process that was forked uses none (`whole_calls.py`).
    """
    hidden = without_devices()
    asks_files = hidden.pop("PYTORCH_NVML_BASED_CUDA_CHECK")
    os.environ.update(hidden)
    with unwarned():
        torch.cuda.is_available()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = asks_files


def _without_rounding(path: str, eager: Leaf | None, compiled: Leaf | None) -> str:
    """Of a tensor what differs so that it can be shown: two compilers round each in their own way.

    >>> one, other = (Leaf("Tensor", f"float32 tensor of shape ({n},)") for n in (1, 2))
    >>> _without_rounding("result", one, other)
    'result.shape'
    """
    if (
        eager is None
        or compiled is None
        or eager.kind != compiled.kind
        or " tensor of shape " not in eager.text
    ):
        return path
    one, other = (re.split(r" tensor of shape |(?=, requires grad)", each.text) for each in (eager, compiled))
    if one[0] != other[0]:
        return f"{path}.dtype"
    if one[1] != other[1]:
        return f"{path}.shape"
    if one != other:
        return f"{path}.requires_grad"
    floats = eager.tensor is not None and eager.tensor.is_floating_point()
    return f"{path}.round(decimals=2)" if floats else path


def _eager(call: CompiledCall, rng: RngState, answer: int) -> bytes:
    """Makes the call without Dynamo."""
    seal([answer])
    return packed(_left_by_eager(call, rng, call.run_eager, [], fresh_bytes=0x55))


def _eager_again(watch: Watch, call: CompiledCall, rng: RngState, answer: int, asked: int) -> bytes:
    """Makes the call without Dynamo once more, where it is asked for by what differs.

    Until then everything is as it was before the call, so that this is where the call is written as a program.
    """
    seal([answer, asked])
    order = os.read(asked, 1 << 16)
    if not order:
        return b""
    source = source_of(watch, call, **json.loads(order))
    remarks: list[str] = []
    with noting_questions(remarks):
        leaves = _left_by_eager(call, rng, call.run_eager, remarks, fresh_bytes=0xAA)
    return packed({**leaves, SOURCE: Leaf("source", json.dumps(to_json(source)))})


def _left_by_eager(
    call: CompiledCall, rng: RngState, run: Callable[[], Any], remarks: list[str], fresh_bytes: int
) -> Leaves:
    """What the call leaves behind in eager, with the first of the `remarks` why that cannot be compared."""
    # Memory that nobody wrote to holds other bytes in each of the two eager processes.
    fill_fresh_memory(fresh_bytes)
    with apply_change.as_it_was():
        leaves = leaves_after(call, run, rng)
    if rng.numpy is not None and repr(save_rng().numpy) != repr(rng.numpy):
        remarks.append("it draws numpy's random numbers, in place of which torch.compile draws torch's")
    return {**leaves, REMARK: Leaf("remark", remarks[0])} if remarks else leaves


def source_of(watch: Watch, call: CompiledCall, how: str, paths: list[str]) -> RecordedCall:
    """The call as a program; where capture alone is wrong, no backend is needed to see it."""
    state = state_now()
    under_way = call.under_way
    if how == CAPTURED:
        of_dynamo = {name: value for name, value in under_way.options.items() if name == GUARD_FILTER}
        under_way = replace(under_way, backend="eager", options=of_dynamo)
    try:
        with outside_all_modes(), torch.no_grad():
            return call_failures.recorded_call(watch, under_way, state, wrong=paths)
    except Exception as error:  # then the case has no script, and says why
        return RecordedCall(why_none=failures.describe(error))


@contextlib.contextmanager
def noting_questions(remarks: list[str]) -> Iterator[None]:
    """Inside, it is noted whether code outside of torch asks whether it is being compiled."""
    inside = str(Path(torch.__file__).parent)

    def look(frame: Any, event: str, _: Any) -> None:
        asked = event == "call" and frame.f_code.co_name in _ASKS and frame.f_back is not None
        if asked and not frame.f_back.f_code.co_filename.startswith(inside):
            remarks.append("it asks whether it is being compiled, and may do something else then")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


def _sent(process: int, fd: int) -> Leaves:
    """What an eager process left to compare with."""
    _, status = os.waitpid(process, 0)
    content = content_of(fd)
    if not content:
        raise CannotRepeat(how_it_ended(status))
    return _unpacked(content)


def _unpacked(content: bytes) -> Leaves:
    if content.startswith(b"{"):
        raise CannotRepeat(str(from_json(CallVerdict, json.loads(content)).why_not))
    return unpacked(content)
