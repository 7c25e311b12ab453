"""A call of a compiled function written as a program: what is read back is what was written, and it fails alike."""

import ast
import collections
import copy
import dataclasses
import enum
import importlib
import math
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.utils.parametrizations
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from torchsleuth.torch_core.repro.program import program_of_call
from torchsleuth.torch_internals.compiled_calls import (
    CallUnderWay,
    call_of_wrapper,
    call_under_way,
    caller_of_compiled,
)
from torchsleuth.watched.call_failures import call_place
from torchsleuth.watched.call_source import Around, EarlierCalls, call_sources
from torchsleuth.watched.graph_record import state_now


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Options:
    width: int
    colour: Colour = Colour.RED


class Point:
    __slots__ = ("x", "y")


class Net(torch.nn.Module):
    def __init__(self, options):
        raise AssertionError("the constructor of the user's class must not run")

    def forward(self, x):
        return self.lin(x) + self.shift + self.scale * self.options.width


def made_net():
    net = Net.__new__(Net)
    torch.nn.Module.__init__(net)
    net.options = Options(3, Colour.BLUE)
    net.lin = torch.nn.Linear(4, 2, bias=False)
    net.scale = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    net.register_buffer("shift", torch.arange(2.0))
    return net.eval()


def identity(value):
    return value


def read_back(value, number=-1):
    """What the program of a call hands to the function, in the last of the forms (or another)."""
    forms, why = call_sources(CallUnderWay(identity, (value,), {}, backend="eager"), Around(state_now()))
    assert why is None
    program = program_of_call(forms[number]).replace("compiled(", "result = compiled(")
    names: dict = {}
    exec(program.replace("torch.compile(identity, backend='eager')", "identity"), names)
    return names["result"]


def alike(a, b):
    if isinstance(a, torch.Tensor):
        same = (a.shape, a.dtype, a.stride(), a.requires_grad) == (
            b.shape,
            b.dtype,
            b.stride(),
            b.requires_grad,
        )
        return same and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, enum.Enum):  # its class is defined anew in the program
        return (type(a).__name__, a.name) == (type(b).__name__, b.name)
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b


small_tensors = st.builds(
    lambda values, dtype: torch.tensor(values).to(dtype),
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]),
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(Colour), small_tensors,
    st.just(torch.float16), st.just(slice(1, None)),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(values)
@settings(max_examples=60, deadline=None)
def test_a_value_is_read_back_as_it_was(value):
    assert alike(value, read_back(value))


def remembering(first, second):
    """A function and an object of a class that exist in here only, and remember what they were made with."""

    class Holder:
        def __init__(self):
            raise AssertionError("the constructor of the user's class must not run")

        def held(self):
            return self.given, second

    def function(default=second, *, named=first):
        return first, default, named

    holder = Holder.__new__(Holder)
    holder.given = first
    return function, holder


@given(values, values)
@settings(max_examples=30, deadline=None)
def test_closures_defaults_and_local_classes_are_read_back_as_they_were(first, second):
    function, holder = read_back(list(remembering(first, second)))
    assert alike((first, second, first), function())
    assert alike((first, second), holder.held())


def test_what_a_function_of_a_library_returned_is_made_by_it_again():
    gradients = torch.vmap(torch.func.hessian(lambda x: (x**3).sum()), in_dims=1)
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(read_back(gradients)(x), gradients(x))


@pytest.mark.parametrize(
    ("value", "look"),
    [
        (re.compile("a(b)", re.IGNORECASE), lambda v: (v.pattern, v.flags)),
        (collections.deque([1, 2], maxlen=3), lambda v: (list(v), v.maxlen)),
        (collections.defaultdict(list, {"a": [1]}), lambda v: (dict(v), v["new"])),
        (iter([5, 6]), lambda v: list(copy.copy(v))),
        (torch.Tensor.__add__, lambda v: v(torch.ones(1), 2).tolist()),
        (torch.eye(2).to_sparse(), lambda v: v.to_dense().tolist()),
        (torch.Generator().manual_seed(7), lambda v: v.initial_seed()),
        ([3].append, lambda v: v.__self__),
        (np.random.default_rng(3), lambda v: copy.deepcopy(v).integers(1000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_written_in_c_are_made_from_what_they_say(value, look):
    assert look(read_back(value)) == look(value)


def test_weak_references_lead_to_an_object_that_lives():
    net = made_net()
    assert read_back(weakref.ref(net))().options.width == 3


def double(module, args, output):
    return output * 2


def test_a_module_keeps_its_hooks():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    net[0].register_forward_hook(double)
    again = read_back(net)
    again.load_state_dict(net.state_dict())
    x = torch.ones(1, 2)
    assert torch.equal(again(x), net(x))


def test_an_attribute_in_front_of_a_part_of_a_module_does_not_take_its_place():
    net = made_net()
    object.__setattr__(net, "lin", torch.nn.Identity())
    again = read_back(net)
    assert type(again.lin) is torch.nn.Identity and type(again._modules["lin"]) is torch.nn.Linear


class Stack(torch.nn.Sequential):
    pass


@pytest.mark.parametrize(
    "container",
    [
        torch.nn.ModuleList,
        lambda nets: torch.nn.Sequential(*nets),
        lambda nets: Stack(*nets),
        lambda nets: torch.nn.ModuleDict({"first": nets[0], "a b": nets[1]}),
        lambda nets: torch.nn.ModuleList([torch.nn.ModuleList(nets)]),
    ],
    ids=["ModuleList", "Sequential", "subclass", "ModuleDict", "nested"],
)
def test_modules_of_the_users_in_a_container_of_torchs_are_all_there(container):
    given = container([made_net(), made_net()]).eval()
    again = read_back(given)
    assert type(again).__name__ == type(given).__name__
    assert [(name, type(each).__name__, each.training) for name, each in again.named_modules()] == [
        (name, type(each).__name__, each.training) for name, each in given.named_modules()
    ]
    assert again.state_dict().keys() == given.state_dict().keys()
    assert repr(again) == repr(given)


class Symmetric(torch.nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


def test_a_parametrised_module_is_made_so_again():
    net = made_net()
    net.lin = torch.nn.Linear(3, 3)
    torch.nn.utils.parametrize.register_parametrization(net.lin, "weight", Symmetric())
    net.out = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    again = read_back(net)
    assert again.state_dict().keys() == net.state_dict().keys()
    again.load_state_dict(net.state_dict())
    x = torch.ones(2, 3)
    assert torch.equal(again.out(again.lin(x)), net.out(net.lin(x)))


class Tagged(torch.Tensor):
    pass


def test_a_tensor_of_a_class_of_the_users_keeps_its_class():
    again = read_back(torch.arange(3.0).as_subclass(Tagged))
    assert type(again).__name__ == "Tagged" and again.tolist() == [0.0, 1.0, 2.0]


def test_a_tensor_that_wraps_others_is_made_from_them():
    two = read_back(TwoTensor(torch.ones(2), torch.zeros(2)))
    assert type(two) is TwoTensor and (two.a.tolist(), two.b.tolist()) == ([1.0, 1.0], [0.0, 0.0])


class Shy:
    @property
    def __dict__(self):
        raise RuntimeError("look away")


def test_an_object_that_cannot_be_looked_at_is_replaced_and_named():
    forms, why = call_sources(
        CallUnderWay(identity, ({"shy": Shy(), "x": 1},), {}, backend="eager"), Around(state_now())
    )
    assert why is None and any("RuntimeError: look away" in each for each in forms[0].replaced)


def test_parameters_in_a_list_are_all_there():
    net = made_net()
    net.scales = torch.nn.ParameterList(
        [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(3))]
    )
    again = read_back(net)
    assert [alike(a, b) for a, b in zip(again.scales, net.scales, strict=True)] == [True, True]


def test_calls_that_compiled_before_come_first_and_the_limit_is_lowered():
    calls = EarlierCalls()
    for size in (2, 2, 3):
        calls.note(CallUnderWay(identity, (torch.ones(size),), {"scale": size}, backend="eager"))
    last = CallUnderWay(identity, (torch.ones(4),), {"scale": 4}, backend="eager", fullgraph=True)
    around = Around(state_now(), calls.before(last), at_limit=True)
    forms, _ = call_sources(last, around)
    assert [line.count("compiled(") for line in forms[0].call] == [1, 1, 1]
    assert forms[0].setup[0] == "torch._dynamo.config.recompile_limit = 1"
    alone, _ = call_sources(last, Around(state_now(), calls.before(last)))
    assert len(alone[0].call) == 1 and len(alone[-1].call) == 3


def test_what_differs_has_its_names_in_the_program():
    net = made_net()
    wrong = ["result[1]", "args[0].grad", "self.shift", "count (global)", "log (closure)"]
    forms, _ = call_sources(
        CallUnderWay(net, (torch.ones(4),), {}, backend="eager"), Around(state_now(), wrong=wrong)
    )
    assert forms[0].call[-2:] == ("result = compiled(x)", "wrong = [result[1], x.grad, model.shift, count]")


def test_a_variable_of_the_functions_closure_has_a_name(tmp_path):
    total = 0

    def add(x):
        nonlocal total
        total = total + 1
        return x + total

    wrong = ["total (closure)", "other (closure)"]
    forms, _ = call_sources(
        CallUnderWay(add, (torch.ones(4),), {}, backend="eager"), Around(state_now(), wrong=wrong)
    )
    script = "\n".join([*forms[0].imports, forms[0].source, *forms[0].setup, *forms[0].call])
    assert forms[0].call[-1] == "wrong = [inspect.getclosurevars(_made_0).nonlocals['total']]"
    names = {}
    exec(script, names)
    assert names["wrong"] == [1]


def test_gradients_and_printed_text_have_lines_of_their_own():
    call = CallUnderWay(made_net(), (torch.ones(4, requires_grad=True),), {}, backend="eager")
    forms, _ = call_sources(call, Around(state_now(), wrong=["the gradient of args[0]"]))
    assert forms[0].call[-1] == "wrong = [torch.autograd.grad(result.sum(), x, allow_unused=True)[0]]"
    forms, _ = call_sources(call, Around(state_now(), wrong=["what it prints"]))
    assert forms[0].call[-4:] == (
        "printed = io.StringIO()",
        "with contextlib.redirect_stdout(printed):",
        "    compiled(x)",
        "wrong = [printed.getvalue()]",
    )
    assert {"import io", "import contextlib"} <= set(forms[0].imports)


SCALE = 1


def by_the_way(x):
    return x * SCALE


def test_what_a_call_read_before_is_set_as_it_was_then_and_as_it_is_now(monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", 2)
    call, calls = CallUnderWay(by_the_way, (torch.ones(4),), {}, backend="eager"), EarlierCalls()
    calls.note(call)
    monkeypatch.setitem(globals(), "SCALE", 5)
    forms, _ = call_sources(call, Around(state_now(), calls.before(call), wrong=["result"]))
    assert forms[-1].call == (
        "SCALE = 2",
        "compiled(x)",
        "SCALE = 5",
        "result = compiled(x_2)",
        "wrong = [result]",
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if x.sum() > 0 else x,
        lambda x: (lambda y: y + 1 if y.sum() > 0 else y)(x),
        (lambda k: lambda x: x * k)(3),
    ],
)
def test_a_lambda_is_found_by_what_it_holds(function):
    assert read_back(function)(torch.ones(1)) == function(torch.ones(1))


def test_objects_are_rebuilt_without_their_constructors():
    net = made_net()
    again = read_back(net)
    assert type(again).__name__ == "Net" and not again.training
    assert (again.options.width, again.options.colour.name) == (3, "BLUE")
    x = torch.ones(1, 4)
    again.lin.weight.data.copy_(net.lin.weight)
    assert torch.equal(again(x), net(x))
    assert {n: p.requires_grad for n, p in again.named_parameters()} == {"scale": False, "lin.weight": True}
    assert dict(again.named_buffers())["shift"].tolist() == [0.0, 1.0]


def test_what_is_shared_stays_shared_and_slots_are_filled():
    tensor, point = torch.ones(3), Point()
    point.x, point.y = tensor, 5
    first, second = read_back([tensor, point])
    assert second.x is first and second.y == 5


def test_what_cannot_be_written_is_replaced_and_named():
    forms, why = call_sources(
        CallUnderWay(identity, ({"lock": open}, [(n for n in ())]), {}), Around(state_now())
    )
    assert why is None and "generator" in forms[-1].replaced[0]


def test_the_call_under_way_is_found_with_its_arguments_and_options():
    seen = []

    def backend(graph, inputs):
        seen.append((call_under_way(), call_place(caller_of_compiled())))
        return graph.forward

    net = torch.nn.Linear(2, 2)
    torch.compile(net, backend=backend, fullgraph=True, dynamic=False)(torch.ones(1, 2))
    ((call, place),) = seen
    first, last, begin, end = place.span
    line = Path(place.file).read_text().splitlines()[first - 1]
    assert (
        first == last and line[begin:end].startswith("torch.compile(net") and line[begin:end].endswith("2))")
    )
    assert call.function is net and call.backend is backend and call.fullgraph and call.dynamic is False
    assert call.args[0].tolist() == [[1.0, 1.0]]


def my_backend(graph, inputs, **given):
    return graph.forward


@pytest.mark.parametrize(
    "given",
    [
        {"backend": my_backend, "mode": "fast"},
        {"backend": my_backend, "options": {"a": 1, "mode": 2}},
        {"mode": "max-autotune-no-cudagraphs"},
        {"options": {"max_fusion_size": 3}},
        pytest.param(
            {"backend": my_backend, "name": "r", "mode": "fast"}, marks=pytest.mark.since_torch("2.15")
        ),
    ],
    ids=lambda given: "-".join(key for key in given if key != "backend"),
)
def test_how_it_was_compiled_is_written_as_it_was_given(given):
    compiled = torch.compile(identity, **given)
    call = call_of_wrapper({"self": context_of(compiled), "fn": identity, "args": (), "kwargs": {}})
    forms, why = call_sources(call, Around(state_now()))
    assert why is None
    written = ast.parse(forms[0].setup[-1]).body[0].value
    said = {k.arg: ast.literal_eval(k.value) for k in written.keywords if k.arg != "backend"}
    assert said == {key: value for key, value in given.items() if key != "backend"}


def context_of(compiled):
    """What of torch knows how a function was compiled."""
    cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__))
    return cells["self"].cell_contents


@pytest.mark.since_torch("2.15")
def test_the_sizes_that_a_program_promises_are_written():
    compiled = torch.compile(identity, backend=my_backend, dynamic_shapes={"x": {0: None}})
    call = call_of_wrapper({"self": context_of(compiled), "fn": identity, "args": (1,), "kwargs": {}})
    forms, why = call_sources(call, Around(state_now()))
    assert why is None and "dynamic_shapes=" in forms[0].setup[-1]


@pytest.mark.parametrize("key", ["dynamic_sources", "unbacked_sources"])
def test_settings_of_torch_compiler_and_of_shapes_are_written(key):
    fx = importlib.import_module("torch.fx.experimental._config")
    with torch.compiler.config.patch({key: "L['x']"}), fx.patch(use_duck_shape=False):
        forms, _ = call_sources(CallUnderWay(identity, (1,), {}), Around(state_now()))
    assert f"torch.compiler.config.{key} = \"L['x']\"" in forms[0].setup
    assert "torch.fx.experimental._config.use_duck_shape = False" in forms[0].setup
    assert "import torch.fx.experimental._config" in forms[0].imports


def test_modes_of_the_caller_are_written_around_the_call():
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        forms, _ = call_sources(CallUnderWay(identity, (1,), {}), Around(state_now()))
    assert forms[0].call[0] == "with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):"


@pytest.mark.parametrize("number", [0, -1])
def test_large_tensors_keep_their_shape_and_layout(number):
    tensor = torch.randn(4, 5, 6).transpose(0, 2)
    again = read_back(tensor, number)
    assert (again.shape, again.stride()) == (tensor.shape, tensor.stride())
