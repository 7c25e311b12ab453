"""What may vary is found by trying, and said in sentences."""

import torch

from made_graphs import Oracle, aten, shapes, traced
from torchsleuth.search.minify.explain import explain


def test_a_lower_bound_on_a_size_is_told_with_the_neighbour_that_passes():
    state = traced(lambda x: aten.cat.default([x, x], 1), torch.ones(1, 65), config={})
    state = state.having(inputs=tuple(type(i)(i.name, i.spec) for i in state.inputs))
    told = explain(state, Oracle(lambda s: shapes(s)[0][1] >= 65))
    assert told.sentences == (
        "any size in dim 0 of x",
        "any size >= 65 in dim 1 of x",
        "dtypes float32, float64, bfloat16, float16",
        "any values",
        "default settings",
    )
    assert told.difference == "size 64 instead of 65 in dim 1 of x"
    assert shapes(told.neighbour) == [(1, 64)]


def test_dtypes_values_and_settings_that_matter_are_named():
    state = traced(
        lambda x: aten.relu.default(x), torch.tensor([99.0]), config={"torch._inductor.config": {"a": "1"}}
    )
    told = explain(
        state,
        Oracle(lambda s: s.inputs[0].spec.dtype in ("float32", "float64") and s.inputs[0].value is not None),
    )
    assert "dtypes float32, float64, but not bfloat16, float16" in told.sentences
    assert "the values of x matter" in told.sentences
    assert "needs torch._inductor.config.a" in told.sentences
    assert told.difference == "bfloat16 instead of float32"
