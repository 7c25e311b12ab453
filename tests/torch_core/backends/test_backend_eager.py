import functools
import logging

import pytest
import torch
from torch.overrides import TorchFunctionMode

from torchsleuth.torch_core.backends.debugging import with_torch_function_modes
from torchsleuth.torch_core.backends.errors import EagerFails, UnknownOption


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
    )


def trained(function, model, x):
    """Output and gradients of one step with a fixed seed."""
    model.zero_grad()
    torch.manual_seed(1)
    out = function(x)
    out.square().sum().backward()
    return [out.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize(
    "backend",
    ["sleuth_eager", "sleuth_eager_noexcept", "sleuth_eager_debug", "sleuth_pre_dispatch_eager", "sleuth_ts"],
)
def test_a_training_step_gives_eagers_numbers_dropout_included(backend):
    model, x = mlp(), torch.randn(3, 4)
    want = trained(model, model, x)
    torch.testing.assert_close(
        trained(torch.compile(model, backend=backend), model, x), want, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("backend", ["sleuth_pre_dispatch_eager", "sleuth_eager_debug", "sleuth_ts"])
def test_an_input_is_changed_once_and_no_random_number_is_drawn_by_compiling(backend):
    def program(x):
        x.add_(1)
        return x * torch.rand_like(x)

    one, other = torch.ones(3), torch.ones(3)
    torch.manual_seed(0)
    want = program(one)
    torch.manual_seed(0)
    got = torch.compile(program, backend=backend)(other)
    assert torch.equal(got, want)
    assert torch.equal(other, one)


def test_an_exception_names_the_line_of_the_generated_graph_and_of_the_program():
    table = torch.arange(4)

    def program(x, index):
        y = x + 1
        return torch.take(y, index)

    with pytest.raises(EagerFails) as caught:
        torch.compile(program, backend="sleuth_eager_noexcept")(torch.ones(3), table + 7)
    error = caught.value
    assert error.line.startswith("take = torch.take(")
    assert error.place == f"test_backend_eager.py:{program.__code__.co_firstlineno + 2}"
    assert error.line in error.code
    assert isinstance(error.__cause__, (IndexError, RuntimeError))
    message = str(error)
    assert "fails when it is run eagerly too" in message
    assert type(error.__cause__).__name__ in message
    assert error.code.strip() in message


def test_the_pre_dispatch_graph_is_logged_as_aten_calls_above_autograd(caplog):
    caplog.set_level(logging.INFO, "torchsleuth.backends.pre_dispatch")
    torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5), backend="sleuth_pre_dispatch_eager")(
        torch.ones(3)
    )
    assert "torch.ops.aten.dropout.default" in caplog.text


@pytest.mark.parametrize("given", [{"mode": "max-autotune"}, {"options": {"speed": 9}}])
@pytest.mark.parametrize(
    "backend", ["sleuth_eager", "sleuth_ts", "sleuth_aot_eager", "sleuth_aot_ts", "sleuth_relu_compile_error"]
)
def test_what_a_backend_does_not_know_is_warned_about_by_name_and_ignored(backend, given):
    with pytest.warns(UnknownOption, match=rf"^{backend} ignores (mode='max-autotune'|speed=9): "):
        assert torch.compile(lambda x: x + 1, backend=backend, **given)(torch.ones(1)).item() == 2


def test_a_keyword_given_with_partial_is_warned_about_too():
    from torchsleuth.torch_core.backends.catalog import sleuth_eager

    with pytest.warns(UnknownOption, match="sleuth_eager ignores depth=3"):
        torch.compile(lambda x: x + 1, backend=functools.partial(sleuth_eager, depth=3))(torch.ones(1))


def test_torchscript_refuses_a_graph_with_a_sentence():
    def program(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with pytest.raises(
        Exception, match=r"TorchScript cannot compile this graph .*says nothing about other backends"
    ):
        torch.compile(program, backend="sleuth_ts")(torch.ones(2))


class Noting(TorchFunctionMode):
    def __init__(self, name, notes):
        super().__init__()
        self.name, self.notes = name, notes

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("sin", "sin.default"):
            self.notes.append(self.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("inner", ["eager", "sleuth_aot_eager"])
def test_modes_see_what_runs_the_last_one_first(inner):
    notes = []
    backend = with_torch_function_modes([Noting("outer", notes), Noting("inner", notes)], inner=inner)
    x = torch.randn(3, requires_grad=True)
    out = torch.compile(lambda x: x.sin() + 1, backend=backend)(x)
    assert torch.equal(out, x.sin() + 1)
    assert notes == ["inner", "outer"]
    out.sum().backward()
    torch.testing.assert_close(x.grad, x.cos())


def test_a_single_mode_needs_no_list():
    notes = []
    torch.compile(torch.sin, backend=with_torch_function_modes(Noting("only", notes)))(torch.ones(2))
    assert notes == ["only"]
