"""A call of a compiled function written as a program: what is read back is what was written, and it fails alike."""

import dataclasses
import enum
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.repro.program import program_of_call
from torchsleuth.torch_internals.calls_under_way import CallUnderWay, call_under_way
from torchsleuth.torch_internals.configuration import global_state
from torchsleuth.watched.call_source import Around, call_sources


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
    forms, why = call_sources(CallUnderWay(identity, (value,), {}, backend="eager"), Around(global_state()))
    assert why is None
    program = program_of_call(dataclasses.asdict(forms[number])).replace("compiled(", "result = compiled(")
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
        CallUnderWay(identity, ({"lock": open}, [(n for n in ())]), {}), Around(global_state())
    )
    assert why is None and "generator" in forms[-1].replaced[0]


def test_the_call_under_way_is_found_with_its_arguments_and_options():
    seen = []

    def backend(graph, inputs):
        seen.append(call_under_way())
        return graph.forward

    net = torch.nn.Linear(2, 2)
    torch.compile(net, backend=backend, fullgraph=True, dynamic=False)(torch.ones(1, 2))
    (call,) = seen
    assert call.function is net and call.backend is backend and call.fullgraph and call.dynamic is False
    assert call.args[0].tolist() == [[1.0, 1.0]]


def test_modes_of_the_caller_are_written_around_the_call():
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        forms, _ = call_sources(CallUnderWay(identity, (1,), {}), Around(global_state()))
    assert forms[0].call[0] == "with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):"


@pytest.mark.parametrize("number", [0, -1])
def test_large_tensors_keep_their_shape_and_layout(number):
    tensor = torch.randn(4, 5, 6).transpose(0, 2)
    again = read_back(tensor, number)
    assert (again.shape, again.stride()) == (tensor.shape, tensor.stride())
