"""Patterns are called what torch's source calls them, and each can be left out by that name."""

import operator

import torch
from torch._inductor.pattern_matcher import (
    CallFunction,
    KeywordArg,
    PatternMatcherPass,
    fwd_only,
    register_graph_pattern,
    register_replacement,
)

from torchsleuth.torch_internals.compile_trace import traced, unfinished
from torchsleuth.torch_internals.compiler_switches import entries_of, pattern_name, switched

aten = torch.ops.aten


def twice(x):
    return x + x


def doubled(x):
    return x * 2


def a_pass():
    """One pattern of each kind: replaced by a traced function, and handled by one."""
    found = PatternMatcherPass(pass_name="mine")
    register_replacement(twice, doubled, [torch.ones(4)], fwd_only, found)

    @register_graph_pattern(CallFunction(aten.sin.default, KeywordArg("x")), pass_dict=found)
    def sine_to_cosine(match, x):
        match.replace_by_example(lambda x: aten.cos.default(x), [x])

    return found


def graph(function):
    return torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(torch.ones(4))


def calls(gm):
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def test_a_pattern_is_known_by_the_function_it_was_written_as():
    named = {pattern_name(entry) for entry in entries_of(a_pass())}
    assert "test_pattern_names: twice" in named and "test_pattern_names: a_pass" in named


def test_what_was_matched_is_recorded_and_a_pattern_left_out_leaves_the_others():
    patterns = a_pass()
    gm = graph(lambda x: aten.sin.default(aten.add.Tensor(x, x)))
    with switched({"patterns": {"names": ["twice"]}}) as applied:
        patterns.apply(gm)
    assert calls(gm) == ["aten.add.Tensor", "aten.cos.default"]
    assert sorted(name.partition(" at ")[0] for name in applied.names["patterns"]) == [
        "test_pattern_names: a_pass",
        "test_pattern_names: twice",
    ]
    patterns.apply(gm)
    assert calls(gm) == ["aten.mul.Tensor", "aten.cos.default"]


def test_a_pattern_whose_replacement_cannot_be_traced_is_where_it_stopped(tmp_path):
    def broken(x):
        raise TypeError("no such scale")

    patterns = PatternMatcherPass(pass_name="mine")
    register_replacement(twice, broken, [torch.ones(4)], fwd_only, patterns)
    path = tmp_path / "trace.txt"
    gm = graph(lambda x: aten.add.Tensor(x, x))
    with traced(str(path)):
        try:
            patterns.apply(gm)
        except TypeError as error:
            assert operator.contains(str(error), "no such scale")
    last = unfinished(path)[-1]
    assert (last.kind, last.name, last.nodes) == ("pattern", "test_pattern_names: twice", ("add",))
