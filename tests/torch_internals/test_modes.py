"""Watching every operator call changes no result."""

import pytest
import torch

from torchsleuth.torch_internals.modes import watching_ops

X = torch.randn(4, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
PROGRAMS = [
    torch.linalg.pinv,  # conjugates inside of one operator
    lambda x: x.conj() @ x.T,
    lambda x: x.mH.mul(2).imag + x.conj().imag.T,
    lambda x: (x.conj().sum(0), x.real.clone().relu()),
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("grad", [True, False])
def test_operators_give_what_they_give_unwatched(program, grad):
    seen = []

    def watch(op, args, kwargs, call):
        seen.append(op)
        return call()

    with torch.set_grad_enabled(grad):
        expected = program(X)
        with watching_ops(watch):
            found = program(X)
    torch.testing.assert_close(found, expected)
    assert seen
