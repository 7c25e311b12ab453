"""Rounding is measured for each candidate, so that it is never taken for the bug."""

import torch

from torchsleuth.torch_core.compare.verdict.tolerances import measured_tolerances

aten = torch.ops.aten


def tolerances_of(function, *values):
    return measured_tolerances(torch.fx.symbolic_trace(function), values).by_path


def test_a_sum_of_numbers_that_cancel_may_be_off_by_more_than_it_is():
    torch.manual_seed(0)
    half = torch.randn(512)
    values = torch.cat([half, -half])[torch.randperm(1024)]
    told = tolerances_of(lambda x: (aten.sum.default(x),), values)
    reordered = float(values.flip(0).double().sum().float() - values.sum())
    assert abs(reordered) < told["outputs[0]"] < 1e-2


def test_a_result_off_by_one_is_far_beyond():
    assert tolerances_of(lambda x: (aten.erf.default(x),), torch.randn(100))["outputs[0]"] < 1e-4


def test_whole_numbers_may_not_differ_at_all():
    assert tolerances_of(lambda x: (aten.add.Tensor(x, 1),), torch.arange(5)) == {"outputs[0]": 0.0}


def gradient_of_relu(x, grad):
    clamped = aten.relu.default(aten.mul.Tensor(x, 1.1))
    return (aten.where.self(aten.le.Scalar(clamped, 0), torch.zeros(()), grad),)


def test_what_relu_has_clamped_stays_clamped_whatever_the_rounding():
    torch.manual_seed(0)
    x, grad = torch.randn(32, 32), torch.randn(32, 32)
    assert tolerances_of(gradient_of_relu, x, grad)["outputs[0]"] < 1e-4


def test_what_is_nearly_zero_before_relu_may_be_clamped_or_not():
    def cancelling(x, grad):
        return gradient_of_relu(aten.sub.Tensor(aten.add.Tensor(x, 100.0), 100.0), grad)

    torch.manual_seed(0)
    x, grad = torch.randn(8, 8), torch.ones(8, 8)
    x[3, 3] = 1e-9
    assert tolerances_of(cancelling, x, grad)["outputs[0]"] >= 1.0


def test_the_distance_of_a_script_is_one_of_numbers_that_have_a_distance():
    def program(x):
        values, places = aten.topk.default(x, 3)
        return (values, places)

    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    told = measured_tolerances(torch.fx.symbolic_trace(program), [x])
    assert told.by_path["outputs[1]"] >= 0
    assert told.distance is not None and 0 < told.distance < 1e-3


def test_results_without_a_distance_have_none():
    graph = torch.fx.symbolic_trace(lambda x: (aten.argmax.default(x),))
    assert measured_tolerances(graph, [torch.randn(5)]).distance is None


def test_inputs_that_overlap_and_are_written_have_no_more_noise_than_others():
    def halved(x, y):
        aten.mul_.Tensor(x, 0.5)
        return (aten.add.Tensor(x, y),)

    line = torch.linspace(1, 2, 6)
    told = tolerances_of(halved, line[:4], line[2:])
    assert told.keys() == {"outputs[0]", "inputs[0]", "inputs[1]"}
    assert max(told.values()) < 1e-4
