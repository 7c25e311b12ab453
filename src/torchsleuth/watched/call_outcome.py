"""What a call of a function leaves behind, made in a process that is there for nothing else.

Beside what `call_state` finds: how the call ended, what it printed, gradients, torch's modes and random numbers, and
what comes out of iterators that it returned.
"""

from __future__ import annotations

import io
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import GeneratorType
from typing import Any

import torch

from torchsleuth.core.processes.sealed import run_openmp_alone
from torchsleuth.torch_core.compare.reference.rng import RngState, restore_rng
from torchsleuth.torch_internals.compiled_calls import CompiledCall, is_dynamos_own
from torchsleuth.torch_internals.modes import outside_all_modes
from torchsleuth.watched.call_difference import ENDED, ITEMS, MOST_ITEMS, PRINTED, RETURNED
from torchsleuth.watched.call_state import (
    Leaf,
    Leaves,
    iterators_of,
    leaves_of,
    roots_of,
    tensors_of,
    versions_of,
)
from torchsleuth.watched.guard import CannotRepeat

CALL = "the call"
# What it may take to look into iterators.
DRAIN_SECONDS = 10.0


def leaves_after(call: CompiledCall, run: Callable[[], Any], rng: RngState) -> Leaves:
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
        leaves.update(_gradients(roots, result) if grad else {})
    # Last, for it runs what the program would run after the call, and in the modes of the program.
    return {**leaves, **_drained(result)}


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


def _drained(result: Any) -> Leaves:
    """What comes out of the iterators of a result, which nobody needs afterwards."""
    found = {path: it for path, it in iterators_of([("result", result)]).items() if _is_pythons(it)}
    if not found:
        return {}
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, DRAIN_SECONDS)
    try:
        return {key: leaf for path, it in found.items() for key, leaf in _drain(path, it).items()}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _is_pythons(iterator: Iterator[Any]) -> bool:
    """Dynamo gives such an iterator for another; what others do when they are asked for an item, only they know."""
    return isinstance(iterator, GeneratorType) or type(iterator).__module__ in ("builtins", "itertools")


def _too_long(*_: Any) -> None:
    raise CannotRepeat(f"the iterator that it returns takes more than {DRAIN_SECONDS:.0f} s")


def _drain(path: str, iterator: Iterator[Any]) -> Leaves:
    leaves: Leaves = {}
    returned: Any = None
    how = Leaf("returns")
    try:
        for place in range(MOST_ITEMS):
            item = next(iterator)
            with outside_all_modes():
                leaves.update(_as_it_is_now(leaves_of([(f"{ITEMS.format(path)}[{place}]", item)], {})))
    except StopIteration as end:
        returned = end.value
    except Exception as error:
        how = Leaf(f"raises {type(error).__name__}", str(error)[:200])
    with outside_all_modes():
        return {**leaves, **leaves_of([(RETURNED.format(path), returned)], {}), ENDED.format(path): how}


def _as_it_is_now(leaves: Leaves) -> Leaves:
    """Copies of the numbers: a generator may write to what it has given away."""
    return {
        path: leaf if leaf.tensor is None else replace(leaf, tensor=leaf.tensor.clone())
        for path, leaf in leaves.items()
    }


def values_only(leaves: Leaves) -> Leaves:
    """Of what a call leaves behind, the values: without how it ended, what it printed, modes and gradients.

    >>> list(values_only({CALL: Leaf("returns"), "result": Leaf("int", "1")}))
    ['result']
    """
    others = ("the ", "torch.", "list(", PRINTED)
    return {path: leaf for path, leaf in leaves.items() if not path.startswith(others)}


def packed(leaves: Mapping[str, Leaf]) -> bytes:
    """Leaves as one process sends them to another: `unpacked(packed(leaves)) == leaves`."""
    buffer = io.BytesIO()
    torch.save(
        {path: (leaf.kind, leaf.text, leaf.tensor, leaf.shown) for path, leaf in leaves.items()}, buffer
    )
    return buffer.getvalue()


def unpacked(content: bytes) -> Leaves:
    """The leaves that another process has sent."""
    sent = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {path: Leaf(*parts) for path, parts in sent.items()}
