import pytest
import torch
from torch import fx

from torchsleuth.torch_core.compare.reference.cloning import clone_inputs
from torchsleuth.torch_core.compare.reference.other_ways import _cut_factors
from torchsleuth.torch_core.compare.reference.rng import rng_kept
from torchsleuth.torch_core.compare.same import differences, same
from torchsleuth.torch_core.compare.verdict.calibrate import UNCALIBRATED, healthy_graph, judge_compiled
from torchsleuth.torch_core.compare.verdict.judge import judge
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, INCONCLUSIVE, LESS_PRECISE, WITHIN_NOISE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def block(x, w):
    return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x @ w, (w.shape[-1],))).softmax(-1) * 8


def block_inputs(dtype, width=512):
    torch.manual_seed(0)
    return [torch.randn(256, width, device="cuda", dtype=dtype) for _ in range(1)] + [
        torch.randn(width, width, device="cuda", dtype=dtype) * width**-0.5
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", [3000, 3001, 3002])
def test_triton_raises_no_false_alarm_on_healthy_graphs(seed, dtype):
    assert not judge_compiled(healthy_graph(seed, dtype, "cuda")).diverged


@pytest.mark.parametrize("dtype", DTYPES)
def test_triton_on_a_block_with_a_product_is_within_noise_and_a_fault_is_found(dtype):
    inputs = block_inputs(dtype)
    graph = fx.symbolic_trace(block)
    compiled = torch.compile(graph)
    assert judge(graph, inputs, compiled, calibration=UNCALIBRATED).kind == WITHIN_NOISE

    def wrong(*args):
        out = compiled(*args).clone()
        out[17, 33] += 0.5
        return out

    verdict = judge(graph, inputs, wrong, calibration=UNCALIBRATED)
    assert verdict.kind == DIVERGED and verdict.worst.index == (17, 33)


def test_tf32_products_are_judged_by_their_own_precision():
    inputs = block_inputs(torch.float32)
    graph = fx.symbolic_trace(block)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert judge(graph, inputs, torch.compile(graph), calibration=UNCALIBRATED).kind == WITHIN_NOISE
    finally:
        torch.set_float32_matmul_precision(before)


def test_tf32_products_whose_factors_are_cut_off_and_not_rounded_are_right():
    """Triton's products leave out the rounding that cuBLAS does; all of a matrix is then too small together."""
    inputs = block_inputs(torch.float32)
    graph = fx.symbolic_trace(block)

    def cut_off(x, w):
        with _cut_factors():
            torch.set_float32_matmul_precision("highest")
            try:
                return block(x, w)
            finally:
                torch.set_float32_matmul_precision("high")

    torch.set_float32_matmul_precision("high")
    try:
        assert judge(graph, inputs, cut_off, calibration=UNCALIBRATED).kind in (WITHIN_NOISE, LESS_PRECISE)
        wrong = judge(graph, inputs, lambda x, w: cut_off(x, w) * 1.02, calibration=UNCALIBRATED)
        assert wrong.kind == DIVERGED, wrong
    finally:
        torch.set_float32_matmul_precision("highest")


def test_tf32_where_eager_has_full_float32_is_called_wrong():
    inputs = block_inputs(torch.float32)

    def shortened(x, w):
        torch.set_float32_matmul_precision("high")
        try:
            return block(x, w)
        finally:
            torch.set_float32_matmul_precision("highest")

    verdict = judge(fx.symbolic_trace(block), inputs, shortened, calibration=UNCALIBRATED)
    assert verdict.kind == DIVERGED, verdict


def test_attention_without_float64_kernel_is_no_false_alarm():
    def attention(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    inputs = [torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    graph = fx.symbolic_trace(attention)
    assert judge(graph, inputs, torch.compile(graph), calibration=UNCALIBRATED).kind in (
        WITHIN_NOISE,
        INCONCLUSIVE,
    )


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_softmax_under_autocast_beside_a_corner_is_no_false_alarm(precision):
    """Two percent of the elements differed, by the corner, and the second opinion could not be had."""

    def program(q, k, w):
        with torch.autocast("cuda", getattr(torch, precision)):
            weights = (q @ k.transpose(-1, -2) / 5).softmax(-1)
            return torch.nn.functional.hardshrink((weights @ k) @ w, 0.5) @ w

    torch.manual_seed(0)
    inputs = [torch.randn(4, 2, 64, 48, device="cuda") for _ in range(2)]
    inputs.append(torch.randn(48, 48, device="cuda"))
    graph = torch.fx.experimental.proxy_tensor.make_fx(program)(*inputs)
    verdict = judge(graph, inputs, torch.compile(graph), calibration=UNCALIBRATED)
    assert not verdict.diverged and "no second opinion" not in str(verdict), verdict
    assert not verdict.fallbacks, verdict.fallbacks


def test_dropout_on_the_device_draws_the_same_numbers_from_the_same_state():
    def draw():
        return torch.rand(8, device="cuda").tolist()

    with rng_kept():
        inside = draw()
    assert draw() == inside


def test_float64_that_does_not_fit_on_the_device_is_computed_on_the_cpu():
    x = torch.rand(1 << 22, device="cuda")
    graph = fx.symbolic_trace(lambda v: torch.sin(v) * 2)
    torch.cuda.empty_cache()  # what other tests left there would count as room
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved() + (96 << 20)) / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        verdict = judge(graph, [x], graph, calibration=UNCALIBRATED)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert verdict.kind == WITHIN_NOISE or "memory" in verdict.sentence
    assert any("CPU" in note for note in verdict.notes) or "memory" in verdict.sentence


def test_devices_are_told_apart_and_aliasing_survives_on_the_device():
    assert differences(torch.ones(1), torch.ones(1, device="cuda"))[0].kind == "device"
    base = torch.zeros(4, device="cuda")
    whole, part = clone_inputs([base, base[1:]])
    whole[1] = 1
    assert part[0].item() == 1


def test_plain_same_keeps_its_extra_memory_small_on_the_device():
    left = torch.randn(1 << 27, device="cuda")
    right = left + 1e-6
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    assert same(left, right)
    assert torch.cuda.max_memory_allocated() - base <= 64 << 20
