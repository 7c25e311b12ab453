import collections
import logging

import pytest
import torch

from torchsleuth.torch_core.compare.two_models import (
    NotReducible,
    reduce_to_scalar_loss,
    run_fwd_maybe_bwd,
    same_two_models,
)


class Net(torch.nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        self.dropout, self.scale = torch.nn.Dropout(0.5), scale

    def forward(self, x):
        return {"y": self.dropout(self.norm(self.linear(x))) * self.scale}


X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def test_a_run_collects_outputs_gradients_and_mutations_and_changes_nothing():
    model, x = Net(), X.clone().requires_grad_()
    result = run_fwd_maybe_bwd(model, [x])
    assert set(result["param_grads"]) == {"linear.weight", "linear.bias", "norm.weight", "norm.bias"}
    assert result["input_grads"][0].shape == x.shape
    assert set(result["mutated_buffers"]) == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }
    assert x.grad is None and model.linear.weight.grad is None and model.norm.num_batches_tracked == 0


def test_without_clone_the_given_inputs_are_the_ones_mutated():
    def double(x):
        x.mul_(2)
        return x

    x = torch.ones(2)
    result = run_fwd_maybe_bwd(double, [x], disable_clone=True)
    assert x.tolist() == [2.0, 2.0] and "input 0" in result["mutated_inputs"]


def test_the_boxed_convention_hands_over_a_list():
    def boxed(args):
        x = args.pop()
        assert not args
        return x + 1

    boxed._boxed_call = True
    assert run_fwd_maybe_bwd(boxed, [torch.zeros(1)], only_fwd=True).item() == 1.0


def test_equal_models_with_dropout_are_the_same():
    assert same_two_models(Net(), Net(), [X.clone().requires_grad_()], require_fp64=True)


def test_a_wrong_output_is_named(caplog):
    with caplog.at_level(logging.ERROR):
        assert not same_two_models(Net(), Net(1.1), [X])
    assert "outputs['y']" in caplog.text


def test_a_wrong_gradient_is_found_behind_a_right_output():
    class Detached(Net):
        def forward(self, x):
            y = super().forward(x)["y"]
            return {"y": (y - 2 * y).detach() + 2 * y}

    assert not same_two_models(Net(), Detached(), [X.clone().requires_grad_()])
    assert same_two_models(Net(), Detached(), [X.clone().requires_grad_()], only_fwd=True)


def test_a_missing_mutation_is_found():
    def writes(x):
        x.add_(1)
        return x * 1

    assert not same_two_models(writes, lambda x: x + 1, [torch.ones(3)])


def test_an_exception_in_the_optimised_model_is_another_problem():
    def raises(x):
        raise ValueError("other")

    assert same_two_models(Net(), raises, [X])


def test_a_failing_float64_cast_is_an_error_only_when_required():
    def needs_float32(x):
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return x

    class Model(torch.nn.Module):
        def forward(self, x):
            return needs_float32(x)

    assert same_two_models(Model(), Model(), [X])
    with pytest.raises(RuntimeError, match="no float64 reference"):
        same_two_models(Model(), Model(), [X], require_fp64=True)


Normal = collections.namedtuple("Normal", "loc")


class WithMean:
    mean = torch.full((3,), 2.0)


class WithLogits:
    logits = torch.full((3,), 2.0)


@pytest.mark.parametrize(
    ("out", "loss"),
    [
        (torch.tensor([1, 2, 3]), 2.0),
        (torch.ones(2, 2), 1.0),
        ([torch.ones(2), torch.full((3,), 3.0)], 2.0),
        ({"a": torch.ones(1), "b": (torch.full((1,), 3.0), None)}, 2.0),
        (torch.zeros(0), 0.0),
        (WithMean(), 6.0),
        (WithLogits(), 2.0),
    ],
)
def test_outputs_reduce_to_their_mean(out, loss):
    assert float(reduce_to_scalar_loss(out)) == loss


def test_what_cannot_be_reduced_is_told_with_a_remedy():
    with pytest.raises(NotReducible, match="only_fwd=True"):
        reduce_to_scalar_loss(object())
