"""Two calls of one function compared by what they left behind, in words.

Both ran the same kernels in the same order, one after Dynamo's capture and one without it, so almost nothing but the
same bits is the same; the little that may differ, may do so for numbers that Dynamo turns into tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from torchsleuth.core.protocol.failures import RecordedCall
from torchsleuth.torch_core.compare.reference.cloning import same_bits
from torchsleuth.watched.call_state import CALL, Leaf, Leaves, is_below

# What is compared with eager: the call as Dynamo captures it, or as all of the compiler makes it, which rounds more.
# In another process than eager's a device may have chosen another kernel for it.
CAPTURED, COMPILED, ELSEWHERE = "captured", "compiled", "captured elsewhere"
_WIDER = {CAPTURED: 1.0, COMPILED: 100.0, ELSEWHERE: 10.0}
# Sentences that a case keeps.
MOST_DIFFERENCES = 10
MAY_DIFFER = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}
# An assertion on a tensor becomes a check inside the graph, which raises this: torch says so in its manual.
SAME_ERRORS = {"raises AssertionError", "raises RuntimeError"}


@dataclass(frozen=True)
class Difference:
    """Where two calls differ, and how: `Difference("result[0]", "result[0] is ...")`."""

    path: str
    sentence: str


@dataclass(frozen=True)
class CallVerdict:
    """What came of comparing a call: where it differs, in words, by whose doing and whether because it `raises`, and
    the `call` as a program; or why it could not be compared."""

    why_not: str | None = None
    how: str = CAPTURED
    paths: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    raises: bool = False
    call: RecordedCall = field(default_factory=RecordedCall)


def differences(eager: Leaves, other: Leaves, how: str = CAPTURED) -> list[Difference]:
    """Where the calls differ, without what only follows from a difference above it; `how` the other was made.

    >>> before, after = {"result": Leaf("torch.Size", "of 1 items")}, {"result": Leaf("tuple", "of 1 items")}
    >>> differences(before, after)[0].sentence
    'result is a torch.Size of 1 items in eager and a tuple of 1 items when compiled'
    """
    found: list[Difference] = []
    wider = _WIDER[how]
    for path in [*eager, *(path for path in other if path not in eager)]:
        if any(is_below(path, known.path) for known in found):
            continue
        words = _how(eager.get(path), other.get(path), wider)
        if words is not None:
            found.append(Difference(path, f"{path} {words}"))
    return found


def most_telling(paths: list[str]) -> list[str]:
    """What the call itself gives comes first; few, for they go through a pipe while nobody reads it.

    >>> most_telling(["args[0]", "result"])
    ['result', 'args[0]']
    """
    return sorted(paths, key=lambda path: not path.startswith((CALL, "result")))[:MOST_DIFFERENCES]


def verdict_on(found: list[Difference], how: str, call: RecordedCall) -> CallVerdict:
    """What a case is told of the differences that count: `verdict_on([], CAPTURED, RecordedCall())`."""
    sentences = {each.path: each.sentence for each in found}
    kept = most_telling(list(sentences))
    told = tuple(sentences[path] for path in kept)
    return CallVerdict(None, how, tuple(kept), told, CALL in sentences, call)


def _how(eager: Leaf | None, captured: Leaf | None, wider: float) -> str | None:
    if eager is None or captured is None:
        return "is there only in eager" if captured is None else "is there only when compiled"
    if eager.kind.startswith("raises") and {eager.kind, captured.kind} <= SAME_ERRORS:
        return None
    if eager.kind != captured.kind or not _same_text(eager, captured, wider):
        is_ = "" if eager.kind.startswith(("raises", "returns")) else "is "
        return f"{is_}{_described(eager)} in eager and {_described(captured)} when compiled"
    if eager.tensor is None or captured.tensor is None:
        return None
    return _apart(eager.tensor, captured.tensor, wider)


def _same_text(eager: Leaf, captured: Leaf, wider: float) -> bool:
    if eager.text == captured.text:
        return True
    if eager.kind.startswith("raises"):
        return eager.kind == captured.kind
    if eager.kind != "float":
        return False
    return math.isclose(float(eager.text), float(captured.text), rel_tol=1e-6 * wider)


def _described(leaf: Leaf) -> str:
    if leaf.kind.startswith(("raises", "returns")):
        return f"{leaf.kind}: {leaf.text[:120]}" if leaf.text else leaf.kind
    if leaf.kind == "same object":
        return f"the same object as {leaf.text}"
    if leaf.kind.rpartition(".")[2] in ("Tensor", "Parameter", "Buffer"):
        return f"a {leaf.kind.rpartition('.')[2]}, {leaf.text}"
    if leaf.kind in ("NoneType", "str"):
        return leaf.text[:160]
    return f"a {leaf.kind} {(leaf.shown or leaf.text)[:160]}".rstrip()


def _apart(eager: torch.Tensor, captured: torch.Tensor, wider: float) -> str | None:
    """How far two tensors of one shape and type are apart; None where that is not worth a word."""
    if eager.numel() == 0 or same_bits(eager, captured):
        return None
    share = MAY_DIFFER.get(eager.dtype, 0.0)
    wide = torch.complex128 if eager.is_complex() else torch.float64
    want, got = eager.to(wide), captured.to(wide)
    if eager.is_complex():
        share = 1e-4
    share *= wider
    # Measured against the largest number: small ones may be what is left of large ones.
    most = float(want.abs().nan_to_num(0.0, 0.0, 0.0).max())
    near = torch.isclose(want, got, rtol=share, atol=share * most, equal_nan=True)
    wrong = int((~near).sum())
    if wrong == 0:
        return None
    far = float((want - got).abs().nan_to_num(math.inf, math.inf, math.inf).max())
    return f"differs in {wrong} of {eager.numel()} elements, by up to {far:.3g}, from eager"
