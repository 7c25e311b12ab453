"""Decompositions that are kernels in Python are seen when they are used, and gone when they are to be."""

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.torch_internals.compiler_switches import IN_PYTHON, switched
from torchsleuth.torch_internals.decompositions import (
    changed_decompositions,
    remember_table,
    where_registered,
)

OP = "aten.upsample_nearest2d"


def resized(x):
    return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")


def traced(off):
    """The operators a tracer sees, and the decompositions that were used."""
    with switched(off) as applied, enable_python_dispatcher():
        gm = make_fx(resized, tracing_mode="fake")(torch.ones(1, 1, 2, 2))
    calls = [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
    return calls, applied.names[IN_PYTHON]


def test_a_decomposition_is_seen_left_out_and_back_afterwards():
    calls, used = traced({})
    assert f"{OP}.default" not in calls and set(used) == {OP}
    assert traced({IN_PYTHON: {"names": [OP]}}) == ([f"{OP}.default"], [])
    assert traced({IN_PYTHON: {}}) == ([f"{OP}.default"], [])
    assert traced({IN_PYTHON: {"names": ["aten.lstm"]}})[0] == calls == traced({})[0]


def test_it_is_known_where_torch_registers_it():
    assert where_registered(OP).startswith("upsample_nearest2d at torch/_decomp/decompositions.py:")
    assert where_registered("aten.relu") == ""


def test_a_table_that_the_program_chooses_in_the_place_of_torchs_is_seen(monkeypatch):
    import torch._inductor.compile_fx as inductor

    def silu(x):
        return x * torch.sigmoid(x) + 1

    remember_table()
    assert changed_decompositions()[0] == {}
    torchs, op = inductor.select_decomp_table, torch.ops.aten.silu.default
    monkeypatch.setattr(inductor, "select_decomp_table", lambda: {**torchs(), op: silu})
    assert changed_decompositions() == ({str(op): silu}, [])
