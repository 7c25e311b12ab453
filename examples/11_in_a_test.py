"""A test that fails under the compiler; and what a test can claim.

$ pytest --torchsleuth 11_in_a_test.py
your line  11_in_a_test.py:16: return torch.relu(x).sin()
at fault   backend, sleuth_relu_compile_error
repro.py, fails the same way in 3 of 3
1 failed, 1 passed
"""

import pytest
import torch


@torch.compile(backend="sleuth_relu_compile_error")
def model(x):
    return torch.relu(x).sin()


def test_model():
    assert model(torch.ones(3)).shape == (3,)


@pytest.mark.no_graph_breaks
def test_one_graph():
    torch.compile(lambda x: x.cos() + 1, backend="eager")(torch.ones(3))
