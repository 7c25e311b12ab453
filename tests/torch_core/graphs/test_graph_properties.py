"""Random graphs with random arguments survive print and read."""

import enum
import math
import operator
from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from same_graph import same_graph

from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.graphs.spelling import Vocabulary, expression


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: float


ANY_ARITY = [
    torch.add,
    torch.relu,
    torch.nn.functional.gelu,
    torch.nn.functional.linear,
    torch.ops.aten.add.Tensor,
    torch.ops.aten.sum.dim_IntList,
    torch.ops.aten.sym_size.int,
    torch.ops.higher_order.cond,
    math.floor,
    max,
    torch.sym_int,
]

# What fx itself can hold in a graph.
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(max_size=5),
    st.just(...),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e5m2, torch.strided, torch.channels_last]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda:1"), torch.device("meta"), torch.Size([2, 3])]),
    st.just(torch.per_tensor_affine),
    st.just(range(2, 9, 3)),
)
# What a value of an attribute may be besides.
rarities = st.sampled_from(
    [
        torch.nn.attention.SDPBackend.MATH,
        Colour.RED,
        Pair(1, -0.0),
        frozenset({1, 2}),
        torch.utils._pytree.tree_structure([1, {"a": 2}]),
        *(torch.finfo(torch.float16), torch.iinfo(torch.int8)),
        *(enum.Flag, int, torch.Tensor, torch.relu, len, operator.mul),
        *(torch.ops.aten.mul, torch.ops.aten.mul.Tensor, torch.ops.higher_order.cond),
    ]
)


@st.composite
def arguments(draw, nodes, depth=2):
    if nodes and draw(st.booleans()):
        return draw(st.sampled_from(nodes))
    kind = (
        draw(st.sampled_from(["scalar", "scalar", "list", "tuple", "dict", "slice"])) if depth else "scalar"
    )
    if kind == "scalar":
        return draw(scalars)
    parts = [draw(arguments(nodes, depth - 1)) for _ in range(draw(st.integers(0, 3)))]
    if kind == "list":
        return parts
    if kind == "tuple":
        return tuple(parts)
    if kind == "dict":
        return {draw(st.text(max_size=3)): part for part in parts}
    return slice(*(parts + [None] * 3)[:3])


def fx_can_write_as_default(value):
    """Not an imaginary part that is no finite number: fx writes it "nanj" or "infj", which nothing defines."""
    if isinstance(value, complex):
        return math.isfinite(value.imag)
    if isinstance(value, slice):
        return all(map(fx_can_write_as_default, (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return all(map(fx_can_write_as_default, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(fx_can_write_as_default, value))


@st.composite
def graphs(draw):
    graph = torch.fx.Graph()
    nodes = [
        graph.placeholder(name) for name in draw(st.lists(st.sampled_from("abcxyz"), unique=True, max_size=3))
    ]
    if draw(st.booleans()):
        default = draw(arguments([], 1).filter(fx_can_write_as_default))
        nodes.append(graph.placeholder("last", default_value=default))
    for _ in range(draw(st.integers(1, 6))):
        args = tuple(draw(st.lists(arguments(nodes), max_size=3)))
        kwargs = draw(st.dictionaries(st.sampled_from(["dim", "alpha", "_x"]), arguments(nodes), max_size=2))
        if nodes and draw(st.booleans()):
            nodes.append(
                graph.call_method(draw(st.sampled_from(["sin", "view", "to"])), (nodes[-1], *args), kwargs)
            )
        else:
            nodes.append(graph.call_function(draw(st.sampled_from(ANY_ARITY)), args, kwargs))
    graph.output(draw(arguments(nodes)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_every_printed_graph_is_read_back_equal(gm):
    printed = print_graph(gm)
    again = read_graph(printed.source, namespace=printed.references)
    assert same_graph(gm, again) is None
    assert print_graph(again).source == printed.source


@given(
    st.recursive(
        scalars | rarities,
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_value_is_written_as_an_equal_expression(value):
    words = Vocabulary(set())
    text = expression(value, {}, words)
    scope = {
        "torch": torch,
        "operator": operator,
        "math": math,
        "inf": math.inf,
        "nan": math.nan,
        **words.references,
    }
    for line in words.imports:
        exec(line, scope)
    rebuilt = eval(text, scope)
    assert type(rebuilt) is type(value)
    assert expression(rebuilt, {}, words) == text
    assert expression([rebuilt], {}, words) == f"[{text}]"


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data())
def test_a_changed_argument_is_noticed(gm, data):
    printed = print_graph(gm)
    again = read_graph(printed.source, namespace=printed.references)
    calls = [node for node in again.graph.nodes if node.op.startswith("call_")]
    changed = data.draw(st.sampled_from(calls))
    changed.args = (*changed.args, "one more")
    difference = same_graph(gm, again)
    assert difference is not None and changed.name in difference
