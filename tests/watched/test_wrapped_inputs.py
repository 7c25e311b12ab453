"""Inputs that wrap other tensors are recorded, made small and written as the tensors inside of them."""

import pytest
import torch

from program_runs import run_watched

CLASSES = """
import torch


class Int8Weight(torch.Tensor):
    @staticmethod
    def __new__(cls, data, scale, bits):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data, scale, bits):
        self.data, self.scale, self.bits = data, scale, bits

    def __tensor_flatten__(self):
        return ["data", "scale"], ("symmetric", self.bits)

    @classmethod
    def __tensor_unflatten__(cls, inner, about, size, stride):
        return cls(inner["data"], inner["scale"], about[1])

    def dequantize(self):
        return self.data.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = torch.utils._pytree.tree_map_only(cls, cls.dequantize, args)
        return func(*args, **(kwargs or {}))


def backend(gm, inputs):
    if any("relu" in str(node.target) for node in gm.graph.nodes):
        raise RuntimeError("no relu here")
    return gm
""".replace("self.data", "self.ints").replace('"data"', '"ints"')
QUANTISED = """
weight = Int8Weight(torch.randint(-127, 127, (32, 64), dtype=torch.int8), torch.rand(32, 1) / 127, 8)


@torch.compile(backend=backend)
def f(x, weight):
    return torch.relu(torch.nn.functional.linear(x.sin(), weight)) * 2


f(torch.randn(8, 64), weight)
"""
TWO = """
from torch.testing._internal.two_tensor import TwoTensor


@torch.compile(backend=backend)
def f(x, y):
    return torch.relu(x * y) + 1


f(TwoTensor(torch.randn(4), TwoTensor(torch.randn(4), torch.randn(4))), torch.randn(4))
"""


@pytest.mark.parametrize(
    ("program", "inputs", "made"),
    [
        (QUANTISED, ["l_x_", "l_weight__ints", "l_weight__scale"], "('symmetric', 8), (32, 64), (64, 1))"),
        (TWO, ["l_x__a", "l_x__b_a", "l_x__b_b", "l_y_"], "'b': TwoTensor.__tensor_unflatten__({'a': b_a"),
    ],
    ids=["a quantised weight of the script", "nested, of an installed module"],
)
def test_a_script_makes_a_wrapping_input_of_the_tensors_inside(tmp_path, program, inputs, made):
    options = ("--record-only",) if program is TWO else ()
    ran = run_watched(tmp_path, CLASSES + program, *options)
    assert ran.case["no_repro"] is None, ran.stderr
    assert options or ran.case["verified"]["reproduced"] == 1, ran.stderr
    graph, original = ran.file("graph.py"), ran.file("original.py")
    assert f"def forward(self, {', '.join(inputs)}):" in graph
    assert "= make_l_" in graph and made in original.replace("torch.testing._internal.two_tensor.", "")


def test_a_wrapping_tensor_has_no_memory_of_its_own():
    from torch.testing._internal.two_tensor import TwoTensor

    from torchsleuth.torch_internals.tensors import has_own_memory

    assert not has_own_memory(TwoTensor(torch.ones(2), torch.ones(2)))


@pytest.mark.slow
def test_a_case_with_a_wrapping_input_is_made_small_on_the_tensors_inside(tmp_path):
    ran = run_watched(tmp_path, CLASSES + QUANTISED, "--minify")
    assert ran.case["minified"]["calls"] == 1 and ran.case["verified"]["reproduced"] == 3, ran.stderr
    assert "Int8Weight(" not in ran.file("repro.py").partition("def f(")[2]
