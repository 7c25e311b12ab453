"""The lowered graph is evaluated instead of compiled: it agrees with eager, and it tells lowering from code generation."""

import copy
import re
import sys
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.script_runtime.compiling import aten_compiler
from torchsleuth.torch_internals.inductor_ir.lowering import (
    NotInterpretable,
    interpreted_lowering,
    why_not_interpretable,
)

aten = torch.ops.aten


def randn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def places(below, *shape):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(below))


def no_code(*args, **kwargs):
    raise AssertionError("code generation was reached")


def evaluated(function, *args, dynamic=False, **config):
    """The result of a compiled function whose code is never generated."""
    import torch._inductor.config
    import torch._inductor.scheduler

    torch._dynamo.reset()
    flags = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
    with (
        interpreted_lowering(),
        flags,
        torch._inductor.config.patch(config),
        patch.object(torch._inductor.scheduler.Scheduler, "__init__", no_code),
    ):
        return torch.compile(function, backend="inductor", fullgraph=True, dynamic=dynamic)(*args)


def agrees(function, *args, tolerance=1e-5, **options):
    """Results and mutated arguments are those of eager."""
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    want = function(*theirs)
    got = evaluated(function, *ours, **options)
    torch.testing.assert_close((got, ours), (want, theirs), rtol=tolerance, atol=tolerance, equal_nan=True)


TABLE = {
    "a pointwise chain": (lambda x: torch.relu(x.sin() * 2 + x), randn(3, 5)),
    "a sum over rows": (lambda x: x.sum(0), randn(7, 33)),
    "a sum over columns": (lambda x: x.sum(1), randn(7, 33)),
    "a sum over all": (lambda x: x.sum(), randn(70, 33)),
    "maximum and place": (lambda x: (*x.max(1), x.argmin(), x.amin(0)), randn(7, 33)),
    "maximum with NaN": (lambda x: (x.argmax(1), x.amax(1)), randn(5, 40).masked_fill(randn(5, 40) > 1, torch.nan)),
    "product and any": (lambda x: (x.prod(1), (x > 2).any(0), (x > -9).all()), randn(20, 13)),
    "variance and mean": (lambda x: torch.var_mean(x, (0, 2)), randn(4, 30, 5)),
    "softmax": (lambda x: x.softmax(-1) + x.log_softmax(0), randn(4, 50)),
    "layer norm": (lambda x, w: F.layer_norm(x, (50,), w, w), randn(4, 50), randn(50)),
    "batch norm that updates its statistics": (lambda x, m, v: F.batch_norm(x, m, v, training=True), randn(4, 3, 5, 5), torch.zeros(3), torch.ones(3)),
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), randn(4, 50)),
    "a concatenation": (lambda x, y: torch.cat([x.sin(), y, x[:, :2]], 1) + 1, randn(4, 5), randn(4, 3)),
    "a concatenation in place": (lambda *xs: torch.cat([x.sin() for x in xs]), *[randn(4, 5) for _ in range(8)]),
    "a concatenation of products": (lambda x, y: torch.cat([x @ y, y @ x], 1), randn(5, 5), randn(5, 5) + 1),
    "indexing": (lambda x, i: x[i] + x[i - 5], randn(10, 4), places(10, 6)),
    "gather and embedding": (lambda x, i: (x.gather(1, i), F.embedding(i, x)), randn(10, 10), places(10, 4, 3)),
    "scatter": (lambda x, i: x.scatter(0, i[:3], 1.5), randn(5, 4), places(5, 7, 4)),
    "scatter with addition": (lambda x, i, y: x.scatter_add(0, i, y), randn(5, 4), places(5, 7, 4), randn(7, 4)),
    "scatter with maximum": (lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), randn(5, 4), places(5, 7, 4), randn(7, 4)),
    "index_put with addition": (lambda x, i, y: x.index_put((i,), y, accumulate=True), randn(5, 4), places(5, 7), randn(7, 4)),
    "where and masked_fill": (lambda x: torch.where(x > 0, x, -3 * x).masked_fill(x > 1, 7.0), randn(5, 4)),
    "pooling": (lambda x: (F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 2)), randn(2, 3, 8, 8)),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, (3, 3)), randn(2, 3, 8, 8)),
    "upsampling": (lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 5), mode="bilinear")), randn(1, 2, 4, 4)),
    "padding": (lambda x: (F.pad(x, (1, 2), value=2.0), F.pad(x, (1, 2), mode="reflect")), randn(1, 5, 6)),
    "a convolution": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), randn(2, 3, 8, 8), randn(4, 3, 3, 3), randn(4)),
    "a linear layer": (lambda x, w, b: F.linear(x, w, b).tanh(), randn(6, 8), randn(4, 8), randn(4)),
    "a batched product": (lambda x, y: torch.bmm(x, y.transpose(1, 2)), randn(2, 6, 8), randn(2, 4, 8)),
    "views": (lambda x: (x.permute(2, 0, 1).reshape(8, 12)[1::2, 3:] + 1).expand(3, 4, 9), randn(2, 6, 8)),
    "an output that is a view": (lambda x: (x.permute(2, 0, 1)[1::2], x), randn(2, 6, 8)),
    "flip, roll and unfold": (lambda x: (x.flip(1).roll(2, 0), x.unfold(1, 3, 2).sum(-1)), randn(5, 9)),
    "an input changed in place": (lambda x: x.add_(1).mul(2), randn(5, 6)),
    "a part of an input changed in place": (lambda x: x[1:3].mul_(3), randn(5, 6)),
    "constants, numbers and None": (lambda x: (x + torch.tensor([1.0, 2.0, 3.0]), torch.arange(4), None, x.shape[0]), randn(2, 3)),
    "integers": (lambda x: (x // 3, x % 3, x / 2, x << 1, (x * 50).to(torch.uint8)), places(20, 5, 3) - 10),
    "bits seen as another dtype": (lambda x: ((x + 1).view(torch.int32), x.view(torch.int32) + 1), randn(5, 3)),
    "boundaries": (lambda x, b: (torch.bucketize(x, b), torch.bucketize(x, b, right=True)), torch.arange(6.0), torch.tensor([1.0, 2, 4])),
    "kernels with several outputs": (lambda x: (x.sort(1), x.topk(3), x.cumsum(0)), randn(9, 6)),
    "no elements": (lambda x: (x + 1, x.sum(0)), randn(0, 5)),
    "one element": (lambda x: x * 2 + x.sum(), torch.tensor(3.0)),
    "an attention kernel": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), randn(1, 2, 5, 8)),
    "nonzero": (lambda x: x[x > 0].sin(), randn(5, 3)),
    "a branch": (lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y * 3, [x]), randn(8)),
    "the other branch": (lambda x: torch.cond(x.sum() > 1e6, lambda y: y.sin(), lambda y: y * 3, [x]), randn(8)),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_the_lowered_graph_computes_what_eager_computes(case):
    function, *args = TABLE[case]
    agrees(function, *args, dynamic=None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_are_computed_in_float32_and_rounded_once(dtype):
    x = randn(200, 6, dtype=dtype)
    got = evaluated(lambda x: ((x * 1.1 + 1).sin(), x.sum(0)), x)
    wide = x.float()
    assert torch.equal(got[0], (wide * 1.1 + 1).sin().to(dtype))
    torch.testing.assert_close(got[1], wide.sum(0).to(dtype))


def test_roundings_the_lowering_asks_for_are_kept():
    x = randn(200, dtype=torch.bfloat16)
    program = lambda x: (x * 1.1 + 1).sin()  # noqa: E731
    assert torch.equal(evaluated(program, x, emulate_precision_casts=True), program(x))


def test_one_compile_serves_several_sizes():
    function = lambda x, y: (torch.cat([x, y]).softmax(0), x.reshape(-1)[::2], x.shape[0] * 2)  # noqa: E731
    torch._dynamo.reset()
    with interpreted_lowering():
        compiled = torch.compile(function, fullgraph=True, dynamic=True)
        for rows, columns in [(4, 6), (7, 9), (50, 3)]:
            x, y = randn(rows, columns), randn(3, columns)
            torch.testing.assert_close(compiled(x, y), function(x, y))


STEPS = {
    "sin": lambda x: x.sin(),
    "times": lambda x: x * 0.5 + 1,
    "transpose": lambda x: x.transpose(0, -1),
    "flat": lambda x: x.reshape(-1, x.shape[0]),
    "slice": lambda x: x[:, ::2],
    "total": lambda x: x - x.sum(0, keepdim=True) / 7,
    "peak": lambda x: x - x.amax(1, keepdim=True),
    "softmax": lambda x: x.softmax(1),
    "cat": lambda x: torch.cat([x, x.cos()], 1),
    "positive": lambda x: torch.where(x > 0, x, 0.1 * x),
    "square": lambda x: x @ x.t(),
    "narrow": lambda x: x.to(torch.bfloat16).float(),
}


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    shape=st.tuples(st.integers(1, 9), st.integers(2, 12)),
)
def test_any_chain_of_steps_computes_what_eager_computes(steps, shape):
    def chain(x):
        for step in steps:
            x = STEPS[step](x)
        return x

    # What is left unrounded between fused steps may show as one bfloat16 rounding.
    agrees(chain, randn(*shape), tolerance=2e-2 if "narrow" in steps else 1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumsum(1),
        lambda x: x.logcumsumexp(0),
        lambda x: x.cummax(1),
        lambda x: torch.sort(x, dim=1, stable=True, descending=True),
    ],
    ids=["cumsum", "logcumsumexp", "cummax", "sort"],
)
def test_scans_and_sorts_are_evaluated_where_the_device_has_them(function):
    from torch._inductor.codegen.common import BackendFeature
    from torch._inductor.graph import GraphLowering

    asked = {BackendFeature.SCAN, BackendFeature.SORT, BackendFeature.TUPLE_REDUCTION}
    original = GraphLowering.has_feature
    with patch.object(GraphLowering, "has_feature", lambda g, d, f: f in asked or original(g, d, f)):
        agrees(function, randn(5, 37), tolerance=1e-4)


def test_a_sum_over_an_input_too_long_for_one_loop_is_right():
    agrees(lambda x: (x.sin() + x.cos()).sum(), randn(600, 1000), tolerance=1e-3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4 * 16, 10)
        self.embedding = torch.nn.Embedding(10, 10)

    def forward(self, x, labels):
        x = F.max_pool2d(F.relu(self.norm(self.convolution(x))), 2).flatten(1)
        return F.cross_entropy(F.gelu(self.linear(x)) + self.embedding(labels), labels)


def test_forward_and_backward_of_a_module_agree_with_eager():
    torch.manual_seed(0)
    eager = Net()
    watched = copy.deepcopy(eager)
    x, labels = randn(4, 3, 8, 8), places(10, 4)
    torch._dynamo.reset()
    loss = eager(x, labels)
    loss.backward()
    with interpreted_lowering():
        ours = torch.compile(watched, fullgraph=True)(x, labels)
        ours.backward()
    torch.testing.assert_close(ours, loss)
    for (name, want), got in zip(eager.named_parameters(), watched.parameters()):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(dict(watched.named_buffers()), dict(eager.named_buffers()))


def test_a_recorded_aten_graph_is_evaluated_and_its_input_list_emptied():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    x = randn(4, 6)
    graph = make_fx(lambda x: (aten.relu.default(aten.sub.Tensor(x, 1)), None))(x)
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x)]
    with interpreted_lowering():
        compiled = aten_compiler(graph, fakes, mode, {}, {})()
        values = [x]
        got = compiled(values)
    torch.testing.assert_close(got[0], torch.relu(x - 1))
    assert got[1] is None
    assert values == []


def lowered_as(op, lowering):
    """Inductor lowers `op` by `lowering(original)` for a while."""
    from torch._inductor.lowering import lowerings

    return patch.dict(lowerings, {op: lowering(lowerings[op])})


def off_by_one(original):
    from torch._inductor.lowering import lowerings

    return lambda *args, **kwargs: lowerings[aten.add.Tensor](original(*args, **kwargs), 1)


def test_a_wrong_lowering_shows_in_the_evaluated_graph():
    x = randn(5, 3)
    with lowered_as(aten.sin.default, off_by_one):
        got = evaluated(lambda x: x.sin() * 2, x)
    torch.testing.assert_close(got, (x.sin() + 1) * 2)


def test_a_wrong_code_generation_does_not_show_in_the_evaluated_graph():
    from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides

    x = randn(5, 3)
    wrong = staticmethod(lambda x: f"({x} + 1)")
    with patch.object(CppOverrides, "sin", wrong), patch.object(CppVecOverrides, "sin", wrong):
        agrees(lambda x: x.sin() * 2, x)


@pytest.mark.slow
def test_the_same_wrong_code_generation_does_show_in_compiled_code(tmp_path, monkeypatch):
    import torch._inductor.config
    from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    x = randn(64)
    wrong = staticmethod(lambda x: f"({x} + {x})")
    with (
        patch.object(CppOverrides, "sin", wrong),
        patch.object(CppVecOverrides, "sin", wrong),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        got = torch.compile(lambda x: x.sin())(x)
    torch.testing.assert_close(got, x + x)


def test_what_a_called_kernel_raises_comes_out_unchanged():
    from torch._inductor.lowering import fallback_handler

    @torch.library.custom_op("sleuth_ir_test::explodes", mutates_args=())
    def explodes(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("the kernel says no")

    explodes.register_fake(lambda x: torch.empty_like(x))
    kernel = torch.ops.sleuth_ir_test.explodes.default
    with (
        lowered_as(aten.sin.default, lambda _: fallback_handler(kernel, add_to_fallback_set=False)),
        pytest.raises(ValueError, match=r"^the kernel says no$"),
    ):
        evaluated(lambda x: x.sin() * 2, randn(3))


def test_a_kernel_whose_result_is_laid_out_unlike_promised_stops_the_run():
    @torch.library.custom_op("sleuth_ir_test::turned", mutates_args=())
    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t()

    turned.register_fake(lambda x: torch.empty(x.shape))
    with pytest.raises(AssertionError, match="stride"):
        evaluated(lambda x: turned(x) + 1, randn(4, 3))


def test_a_lowering_that_reads_past_its_input_is_caught():
    from torch._inductor.ir import Pointwise

    def shifted(original):
        def lowering(x):
            load = x.make_loader()
            return Pointwise.create(
                device=x.get_device(),
                dtype=x.get_dtype(),
                inner_fn=lambda index: load([index[0] + 1]),
                ranges=x.get_size(),
            )

        return lowering

    with (
        lowered_as(aten.sin.default, shifted),
        pytest.raises(IndexError, match="reads arg0_1 at 5; it has 5"),
    ):
        evaluated(lambda x: x.sin(), randn(5))


def test_an_index_out_of_bounds_is_an_error_as_in_generated_code():
    with pytest.raises(RuntimeError, match="index out of bounds"):
        evaluated(lambda x, i: x[i] + 1, randn(4), torch.tensor([7]))


def test_random_numbers_drawn_in_a_kernel_are_refused_and_eager_ones_are_drawn():
    x = torch.ones(100)
    with pytest.raises(NotInterpretable, match="random numbers"):
        evaluated(lambda x: F.dropout(x, 0.5), x, fallback_random=False)
    torch.manual_seed(3)
    want = F.dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(evaluated(lambda x: F.dropout(x, 0.5), x, fallback_random=True), want)


def test_a_step_that_is_not_known_is_refused_with_a_reason():
    from torch._inductor.lowering import make_pointwise
    from torch._inductor.virtualized import ops

    strange = make_pointwise(lambda x: ops.halide_clamp(x, 3, True))
    with (
        lowered_as(aten.sin.default, lambda _: strange),
        pytest.raises(NotInterpretable, match=r"ops\.halide_clamp, which is not known"),
    ):
        evaluated(lambda x: x.sin(), randn(5))


def test_a_torch_whose_graphs_lack_something_is_refused_and_a_kernel_that_lacks_it_is_not():
    from torch._inductor.lowering import fallback_handler

    import torchsleuth.torch_internals.inductor_ir.lowering as door
    from torchsleuth.torch_internals.inductor_ir.lowering import Run

    with (
        patch.object(door, "run_graph", lambda graph, *rest: Run(object(), *rest)),
        pytest.raises(NotInterpretable, match="built differently"),
    ):
        evaluated(lambda x: x.sin(), randn(3))

    @torch.library.custom_op("sleuth_ir_test::lacks", mutates_args=())
    def lacks(x: torch.Tensor) -> torch.Tensor:
        return x.no_such_method()

    lacks.register_fake(lambda x: torch.empty_like(x))
    kernel = torch.ops.sleuth_ir_test.lacks.default
    with (
        lowered_as(aten.sin.default, lambda _: fallback_handler(kernel, add_to_fallback_set=False)),
        pytest.raises(AttributeError, match="no_such_method"),
    ):
        evaluated(lambda x: x.sin(), randn(3))


def test_afterwards_code_is_generated_again():
    from torch._inductor.graph import GraphLowering

    before = GraphLowering.compile_to_module
    with pytest.raises(KeyError), interpreted_lowering():
        assert GraphLowering.compile_to_module is not before
        raise KeyError
    assert GraphLowering.compile_to_module is before


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["softmax", "layer norm", "kernels with several outputs", "a linear layer"])
def test_graphs_on_a_gpu_are_evaluated_there(case):
    function, *args = TABLE[case]
    agrees(function, *(each.cuda() for each in args), tolerance=1e-3)


@pytest.mark.parametrize("version", ["2.9.1", "2.99.0a0+git1234"])
def test_a_release_that_is_not_known_is_refused_with_a_sentence(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    reason = rf"^the lowered graphs of torch {re.escape(version)} are not known here, only those of 2\.11 to"
    with pytest.raises(NotInterpretable, match=reason):
        evaluated(lambda x: x.sin(), randn(3))


@pytest.mark.parametrize("name", ["ComputedBuffer", "ComputedBuffer.get_store_function"])
def test_a_torch_that_lacks_a_class_or_an_attribute_is_refused_with_a_sentence(monkeypatch, name):
    monkeypatch.delattr(f"torch._inductor.ir.{name}")
    with pytest.raises(NotInterpretable, match=rf"^torch \S+ has no torch\._inductor\.ir\.{name}$"):
        evaluated(lambda x: x.sin(), randn(3))


def test_a_torch_that_lacks_a_whole_module_is_refused_with_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor.virtualized", None)
    assert why_not_interpretable().endswith("has no module torch._inductor.virtualized")
