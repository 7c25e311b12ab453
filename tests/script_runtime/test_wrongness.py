"""The plain check that scripts carry along."""

import pytest
import torch

from torchsleuth.script_runtime.runner import wrong_outputs


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_of_eight_bits_are_compared_though_they_know_no_arithmetic(dtype):
    right = torch.tensor([1.0, 2.0, 4.0]).to(dtype)
    wrong = torch.tensor([1.0, 2.0, 32.0]).to(dtype)
    assert wrong_outputs(([right], []), ([right.clone()], [])) == []
    ((path, said),) = wrong_outputs(([right], []), ([wrong], []))
    assert path == "outputs[0]" and "by up to 28 at [2]" in said
