"""Rounding is measured for each candidate, so that it is never taken for the bug."""

import torch
from made_graphs import aten, traced

from torchsleuth.minify.tolerances import tolerances_of


def test_a_sum_of_numbers_that_cancel_may_be_off_by_more_than_it_is():
    torch.manual_seed(0)
    half = torch.randn(512)
    values = torch.cat([half, -half])[torch.randperm(1024)]
    state = traced(lambda x: (aten.sum.default(x),), values)
    reordered = float(values.flip(0).double().sum().float() - values.sum())
    assert abs(reordered) < tolerances_of(state)["outputs[0]"] < 1e-2


def test_a_result_off_by_one_is_far_beyond():
    state = traced(lambda x: (aten.erf.default(x),), torch.randn(100))
    assert tolerances_of(state)["outputs[0]"] < 1e-4


def test_whole_numbers_may_not_differ_at_all():
    state = traced(lambda x: (aten.add.Tensor(x, 1),), torch.arange(5))
    assert tolerances_of(state) == {"outputs[0]": 0.0}
