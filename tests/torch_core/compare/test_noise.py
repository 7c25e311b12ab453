import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from torchsleuth.torch_core.compare.reference.rng import save_rng
from torchsleuth.torch_core.compare.verdict.calibrate import healthy_graph
from torchsleuth.torch_core.compare.verdict.evidence import gather
from torchsleuth.torch_core.compare.verdict.noise import FOOTPRINT, NoiseSource, Perturbation, half_ulp


def noise_of(program, *inputs, runs=32):
    evidence = gather(fx.symbolic_trace(program), inputs, runs=runs, start=save_rng())
    leaf = evidence.leaves[0]
    return leaf, leaf.spread.square.double().sqrt()


@given(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.integers(0, 1000))
@settings(max_examples=30)
def test_a_rounding_moves_a_value_by_about_half_an_ulp_and_keeps_zero_and_infinity(dtype, seed):
    values = torch.tensor([0.0, 1.0, -3.7, 1e5, float("inf"), -float("inf")], dtype=torch.float64)
    source = NoiseSource(torch.device("cpu"), seed=seed)
    rounded = source.round(values, half_ulp(dtype), in_place=False, infinite=True)
    assert rounded[0] == 0 and torch.equal(rounded[4:], values[4:])
    assert ((rounded - values)[1:4].abs() <= 2 * half_ulp(dtype) * values[1:4].abs()).all()


def test_equal_values_round_equally():
    source = NoiseSource(torch.device("cpu"))
    rounded = source.round(torch.full((100,), 1 / 3, dtype=torch.float64), 2.0**-8, False, False)
    assert len(set(rounded.tolist())) == 1 and rounded[0] != 1 / 3


def test_a_large_tensor_is_rounded_piece_by_piece_to_the_same_bits(monkeypatch):
    values = torch.randn(7, 300, dtype=torch.float64)
    for each in (values, values.T, values[:, ::3], values[0, 0]):
        whole = NoiseSource(torch.device("cpu")).round(each, 2.0**-8, False, False)
        monkeypatch.setattr("torchsleuth.torch_core.compare.reference.trees.CHUNK", 64)
        given = each.clone()
        parts = NoiseSource(torch.device("cpu")).round(given, 2.0**-8, True, False)
        monkeypatch.undo()
        assert parts is given and torch.equal(parts, whole) and not torch.equal(whole, each)


def test_a_run_that_takes_too_much_is_ended_between_two_steps():
    def full():
        raise MemoryError("it would take too much")

    source = NoiseSource(torch.device("cpu"), before_each=full)
    with pytest.raises(MemoryError, match="too much"):
        source.spread(torch.ones(3, dtype=torch.float64), 2.0**-8)
    with pytest.raises(MemoryError, match="too much"):
        source.perturb(torch.ones(3, dtype=torch.float64), Perturbation(2.0**-8), True)


@pytest.mark.parametrize("shape", [(), (3,), (40, 50), (300, 1000), (2, FOOTPRINT * 2), (0, 4), (5, 6, 7, 8)])
def test_pool_windows_have_the_shape_asked_for_and_are_not_constant(shape):
    window = NoiseSource(torch.device("cpu")).uniform(torch.Size(shape))
    assert window.shape == shape and window.abs().max() <= 1 if window.numel() else True
    if window.numel() > 10:
        assert len(window.reshape(-1)[:64].unique()) > 10


def test_noise_matches_what_eager_rounding_really_does():
    x = torch.randn(64, 256, dtype=torch.float32).to(torch.bfloat16)
    leaf, noise = noise_of(lambda v: (v * 1.3).sin() * 0.7 + v, x)
    real = (leaf.eager.double() - leaf.truth).square().mean().sqrt()
    assert 0.7 < float(noise.square().mean().sqrt() / real) < 2.0


def test_cancellation_shows_up_as_noise():
    x = torch.rand(1000) + 1
    _, near = noise_of(lambda v: (v * 1.1 + 1e4) - 1e4, x)
    _, plain = noise_of(lambda v: v * 1.1, x)
    assert near.mean() > 1000 * plain.mean()


def test_moving_and_selecting_values_adds_no_noise():
    x = torch.randn(8, 8)
    _, noise = noise_of(lambda v: torch.relu(-v).t().flip(0).reshape(-1).contiguous(), x, runs=4)
    assert noise.max() == 0


def test_a_cast_is_noisy_only_where_it_loses_digits():
    x = torch.randn(100)
    assert noise_of(lambda v: v.to(torch.float64), x, runs=4)[1].max() == 0
    assert noise_of(lambda v: v.to(torch.bfloat16), x, runs=4)[1].max() > 1e-4


def test_the_noise_of_a_graph_is_a_function_of_the_seed():
    case = healthy_graph(7, torch.bfloat16)
    first, second = (gather(case.graph, case.inputs, runs=2, start=save_rng(), seed=3) for _ in range(2))
    assert all(torch.equal(x.spread.square, y.spread.square) for x, y in zip(first.leaves, second.leaves))


def test_gathering_leaves_inputs_graph_and_generators_alone():
    graph = fx.symbolic_trace(lambda x: torch.dropout(x.add_(1), 0.5, True))
    x = torch.zeros(4)
    before = save_rng()
    gather(graph, [x], runs=2, start=before)
    assert x.sum() == 0 and torch.equal(before.cpu, save_rng().cpu)


def test_dropout_in_float64_keeps_the_mask_that_eager_drew():
    graph = fx.symbolic_trace(lambda x: torch.dropout(x, 0.5, True))
    leaf = gather(graph, [torch.rand(1000).bfloat16() + 0.5], runs=2, start=save_rng()).leaves[0]
    assert torch.equal(leaf.eager == 0, leaf.truth == 0) and leaf.random


def test_a_cast_to_half_precision_loses_small_numbers():
    """Below 6e-5 the steps of float16 are all 6e-8, however small the number."""
    x = torch.full((64,), 1e-7)
    _, noise = noise_of(lambda v: v.to(torch.float16), x, runs=8)
    assert noise.min() > 5e-9
