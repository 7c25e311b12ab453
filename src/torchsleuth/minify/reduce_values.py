"""Plainer values: any from a seed, else zeros, ones, or small whole numbers; what is left are values that matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from torchsleuth.minify.contract import Edit, Input, State
from torchsleuth.minify.edits import with_input


def plainer_values(state: State) -> Iterator[Edit]:
    """Per input whose values are kept: none in particular, zeros, ones, small whole numbers."""
    for given in state.inputs:
        if given.value is None or not given.is_tensor:
            continue
        yield Edit(
            f"{given.name} of any value",
            lambda s, n=given.name: with_input(s, n, lambda i: replace(i, value=None)),
        )
    for given in state.inputs:
        if given.value is None or not given.is_tensor:
            continue
        for word, fill in _FILLS.items():
            yield Edit(f"{given.name} of {word}", lambda s, n=given.name, f=fill: _filled(s, n, f))


def _free(given: Input) -> Input:
    return replace(given, value=None)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return (torch.arange(value.numel(), dtype=torch.int64) % 7 - 3).reshape(value.shape)


_FILLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "small whole numbers": _whole,
    "rounded numbers": lambda value: value.round() if value.is_floating_point() else value,
}


def _filled(state: State, name: str, fill: Callable[[torch.Tensor], torch.Tensor]) -> State | None:
    def change(given: Input) -> Input:
        old = given.value
        if old is None or 0 in old.stride():
            return given
        with torch.no_grad():
            new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
            new.copy_(fill(old.detach()))
        return replace(given, value=new.requires_grad_(old.requires_grad))

    return with_input(state, name, change)
