"""Fake inputs rebuilt from a description make a graph compile with dynamic sizes again."""

import json

import pytest
import torch
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.script_runtime.inputs import load_inputs
from torchsleuth.script_runtime.symbolic_inputs import symbolic_inputs, symbolic_tracing
from torchsleuth.torch_core.tensors import describe_inputs


def tensor(shape_expr, shape, stride_expr, stride, **more):
    base = {
        "kind": "tensor",
        "dtype": "float32",
        "device": "cpu",
        "requires_grad": False,
        "is_parameter": False,
    }
    base |= {"storage_offset": 0, "offset_expr": None, "storage": None, "alias_of": None, "same_as": None}
    return (
        base | {"shape_expr": shape_expr, "shape": shape, "stride_expr": stride_expr, "stride": stride} | more
    )


DYNAMIC = {
    "schema": 1,
    "inputs": [
        {"kind": "symint", "value": 4, "expr": "s0"},
        {"kind": "symint", "value": 3, "expr": "s1"},
        tensor(["s0", "6"], [4, 6], ["6", "1"], [6, 1]),
        tensor(["2*s0", "6"], [8, 6], ["6", "1"], [6, 1]),
        tensor(["Max(1, s0//2)", "s0"], [2, 4], ["s0 + s1", "1"], [7, 1], storage_offset=3, offset_expr="s1"),
    ],
    "symbols": {"s0": {"hint": 4, "lower": 2, "upper": 1000}, "s1": {"hint": 3, "lower": 0, "upper": None}},
}


def program(size, start, x, y, z):
    return torch.cat([x, x]) * y + size, z.sum(1) - start


def test_sizes_share_their_symbols():
    (size, _, x, y, z), _ = symbolic_inputs(DYNAMIC, load_inputs(DYNAMIC))
    symbol = size.node.expr
    assert x.shape[0].node.expr == symbol and y.shape[0].node.expr == 2 * symbol
    assert (y.shape[0].node.hint, z.stride(0).node.hint, z.storage_offset().node.hint) == (8, 7, 3)
    env = x.fake_mode.shape_env
    assert (int(env.var_to_range[symbol].lower), int(env.var_to_range[symbol].upper)) == (2, 1000)


@pytest.mark.parametrize("hint, lower", [(1, 0), (0, 0), (-3, None), (1, 1)])
def test_small_and_negative_hints_stay_symbolic(hint, lower):
    description = {
        "schema": 1,
        "inputs": [{"kind": "symint", "value": hint, "expr": "s0"}],
        "symbols": {"s0": {"hint": hint, "lower": lower, "upper": None}},
    }
    (number,), _ = symbolic_inputs(description, [hint])
    assert isinstance(number, torch.SymInt) and number.node.hint == hint


def test_static_descriptions_give_static_fakes():
    values = [torch.nn.Parameter(torch.ones(2, 3)), torch.ones(9)[3:], 5, None]
    description = json.loads(json.dumps(describe_inputs(values).to_json()))
    (weight, part, number, nothing), mode = symbolic_inputs(description, values)
    assert weight.shape == (2, 3) and weight.requires_grad and isinstance(weight, torch.nn.Parameter)
    assert part.storage_offset() == 3 and part.fake_mode is mode
    assert (number, nothing) == (5, None)


def test_an_expression_that_is_unknown_here_says_so():
    description = {
        "schema": 1,
        "inputs": [{"kind": "symint", "value": 1, "expr": "Strange(s0)"}],
        "symbols": {},
    }
    with pytest.raises(ValueError, match="Strange"):
        symbolic_inputs(description, [1])


def test_tracing_fixes_no_size():
    fakes, mode = symbolic_inputs(DYNAMIC, load_inputs(DYNAMIC))
    with symbolic_tracing(mode):
        make_fx(lambda size, start, x, y, z: torch.ops.aten.constant_pad_nd.default(x, [0, 1], 1.0))(*fakes)
    assert not mode.shape_env.replacements


def test_inductor_compiles_the_rebuilt_inputs_with_dynamic_sizes():
    real = load_inputs(DYNAMIC)
    fakes, mode = symbolic_inputs(DYNAMIC, real)
    with symbolic_tracing(mode):
        traced = make_fx(program, decomposition_table=select_decomp_table())(*fakes)
    compiled = None

    def compile_and_run():
        nonlocal compiled
        compiled = compile_fx_inner(traced, fakes)
        return compiled(list(real))

    results, (code,) = run_and_get_code(compile_and_run)
    assert "ks0" in code
    torch.testing.assert_close(list(results), list(program(*real)))
    other = [5, 3, torch.randn(5, 6), torch.randn(10, 6), torch.randn(40).as_strided((2, 5), (8, 1), 3)]
    torch.testing.assert_close(list(compiled(list(other))), list(program(*other)))


def test_fakes_share_memory_where_the_inputs_do():
    base = torch.zeros(3, 3)
    described = describe_inputs([base[0], base[1], torch.ones(3), base.view(torch.int32)]).to_json()
    first, second, other, ints = symbolic_inputs(described, load_inputs(described))[0]
    memory = [t.untyped_storage()._cdata for t in (first, second, ints, other)]
    assert memory[0] == memory[1] == memory[2] != memory[3]
    assert second.storage_offset() == 3 and ints.dtype is torch.int32


def test_a_symbolic_offset_is_not_taken_for_the_size_it_equals():
    spec = tensor(["s0"], [4], None, [1], storage_offset=4, offset_expr="s0")
    described = {"inputs": [spec], "symbols": {"s0": {"hint": 4, "lower": 2, "upper": None}}}
    (fake,) = symbolic_inputs(described, [torch.zeros(4)])[0]
    assert str(fake.storage_offset()) == str(fake.shape[0])
    assert fake.storage_offset().node is not fake.shape[0].node
