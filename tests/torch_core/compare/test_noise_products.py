"""Which products may be read in a shorter format, by torch's own settings."""

from __future__ import annotations

import pytest
import torch

from torchsleuth.torch_core.compare.verdict.noise import TF32, half_ulp, shortened

OWN = half_ulp(torch.float32)


@pytest.fixture(autouse=True)
def _switches():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(
    ("convolves", "matmul", "cudnn", "expected"),
    [
        (False, False, True, 0.0),  # torch's defaults on a GPU: matrix products in full, convolutions not
        (True, False, True, TF32),
        (False, True, False, TF32),
        (True, False, False, 0.0),
    ],
)
def test_convolutions_and_matrix_products_follow_their_own_switch(
    monkeypatch, convolves, matmul, cudnn, expected
):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
    assert shortened(OWN, convolves) == expected


def test_without_a_gpu_in_use_nothing_is_shortened():
    assert shortened(OWN, True) == 0.0
