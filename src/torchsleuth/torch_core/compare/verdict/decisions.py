"""Comparisons inside a graph that rounding may decide either way, and what follows when it does.

The idea: noisy runs show how far each compared difference moves; where it could reach zero, one more run takes
every such decision the other way. Whatever changes then in the outputs, a healthy compiler may change too.
Of `relu(x) <= 0` it is `x` that must come near zero: all that was clamped is equal to the bound, and in no doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from torchsleuth.torch_core.compare.reference.opkinds import plain_name

COMPARE = frozenset(["gt", "lt", "ge", "le", "eq", "ne"])

GATE = "threshold_backward"
"""The gradient of a relu in one operation: compares, and lets through or not."""

AT_RISK = 5.0
"""Standard deviations of its noise within which a difference may change its sign: 1 in a million goes further."""


class Decision:
    """One comparison: watches how far its operands lie apart in ordinary runs, so that it knows what is in doubt."""

    def __init__(self) -> None:
        self.seen = 0
        self.first = self.total = self.square = torch.zeros((), device="cpu")

    def watch(self, gap: torch.Tensor) -> None:
        """Folds in how far the operands lay apart in one run."""
        if self.seen == 0:
            self.first, self.total, self.square = gap, torch.zeros_like(gap), torch.zeros_like(gap)
        # Relative to the first run: the spread may be a billion times smaller than the difference itself.
        moved = gap - self.first
        self.total = self.total + moved
        self.square = self.square + moved * moved
        self.seen += 1

    def doubtful(self) -> torch.Tensor | None:
        """Where rounding could take the decision the other way; None before two runs were watched."""
        if self.seen < 2:
            return None
        return (self.first + self.total / self.seen).abs() < self._risk()

    def _risk(self) -> torch.Tensor:
        """How far what was watched may go by rounding."""
        mean = self.total / self.seen
        spread = (self.square / self.seen - mean * mean).clamp_min(0.0)
        if spread.dim():
            spread = torch.maximum(spread, spread.mean(-1, keepdim=True) / 4)
        return AT_RISK * spread.sqrt()

    def stepped(
        self,
        step: Callable[[torch.Tensor], torch.Tensor],
        x: torch.Tensor,
        reverse: Callable[[torch.Tensor], torch.Tensor] | None,
        watching: bool,
    ) -> torch.Tensor:
        """`step(x)` of a function that jumps, like floor; from beyond the jump where `reverse` is and `x` may get."""
        value = step(x)
        if watching:
            self.watch(x)
        if reverse is None or self.seen < 2:
            return value
        risk = self._risk()
        above, below = step(x + risk), step(x - risk)
        other = torch.where(above != value, above, below)
        return torch.where(reverse(other != value), other, value)

    def taken(
        self,
        value: Any,
        left: Any,
        right: Any,
        reverse: Callable[[torch.Tensor], torch.Tensor] | None,
        watching: bool,
    ) -> Any:
        """What a comparison gave, `reverse(doubtful)` of it turned round; `watching` notes the operands of this run."""
        operands = [v for v in (left, right) if isinstance(v, torch.Tensor)]
        if not isinstance(value, torch.Tensor) or not any(v.is_floating_point() for v in operands):
            return value
        if watching:
            self.watch(left - right)
        doubtful = self.doubtful() if reverse is not None else None
        if doubtful is None or reverse is None:
            return value
        if not isinstance(right, torch.Tensor) and right == 0:
            # A zero that no noise ever moves, like those behind a relu, is one.
            doubtful = doubtful & ((left != 0) | (self.square > 0))
        return value ^ reverse(doubtful)


def unclamped_operand(left: Any, right: Any) -> Node | None:
    """What a comparison's operand was before it was clamped to the very number it is compared with, if it was."""
    while isinstance(left, Node) and plain_name(left) in ("detach", "alias", "clone") and left.args:
        left = left.args[0]
    if not isinstance(left, Node) or isinstance(right, Node) or right != 0 or plain_name(left) != "relu":
        return None
    before = left.args[0] if left.args else None
    return before if isinstance(before, Node) else None


def comparison(target: Any) -> Callable[..., Any]:
    """A comparison as a function of two operands, whether the graph calls a function or a method."""
    if callable(target):
        return target

    def by_method(left: Any, right: Any) -> Any:
        return getattr(left, target)(right)

    return by_method
