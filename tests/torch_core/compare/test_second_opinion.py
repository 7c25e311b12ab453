"""An alarm survives a second look: textbook ways to compute a graph are right, and what is outside of all of them is not."""

from fractions import Fraction

import pytest
import torch
import torch._inductor.inductor_prims
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from torchsleuth.torch_core.compare.reference.eager import result_of
from torchsleuth.torch_core.compare.reference.other_ways import equivalent_runs
from torchsleuth.torch_core.compare.reference.rng import noting_draws, restore_rng, save_rng
from torchsleuth.torch_core.compare.verdict.calibrate import UNCALIBRATED
from torchsleuth.torch_core.compare.verdict.evidence import gather, reference_run
from torchsleuth.torch_core.compare.verdict.judge import judge, judge_results, weigh
from torchsleuth.torch_core.compare.verdict.noise import half_ulp
from torchsleuth.torch_core.compare.verdict.textbook import _running_total
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, INCONCLUSIVE, LESS_PRECISE, WITHIN_NOISE

UNIT = half_ulp(torch.float32)


def verdict_on(program, inputs, compiled, **options):
    return judge(fx.symbolic_trace(program), inputs, compiled, calibration=UNCALIBRATED, **options)


def running_sum(x):
    """Over the first dimension, one after the other, in the dtype of `x`."""
    total = torch.zeros_like(x[0])
    for row in x:
        total = total + row
    return total


def pairwise_sum(x):
    while len(x) > 1:
        rest = x[len(x) // 2 * 2 :]
        x = torch.cat([x[0 : len(x) - len(rest) : 2] + x[1 : len(x) - len(rest) : 2], rest])
    return x[0]


def welford(x):
    """Mean and sum of squared distances in one running pass."""
    mean, squares = torch.zeros_like(x[0]), torch.zeros_like(x[0])
    for count, row in enumerate(x, 1):
        apart = row - mean
        mean = mean + apart / count
        squares = squares + apart * (row - mean)
    return mean, squares


SUMS = [
    running_sum,
    pairwise_sum,
    lambda x: running_sum(x.flip(0)),
    lambda x: running_sum(x[::2]) + running_sum(x[1::2]),
]
MEANS = [*(lambda x, s=s: s(x) / len(x) for s in SUMS), lambda x: welford(x)[0]]
VARIANCES = [
    lambda x: welford(x)[1] / (len(x) - 1),
    lambda x: (running_sum(x * x) - running_sum(x) ** 2 / len(x)) / (len(x) - 1),
    lambda x: running_sum((x - running_sum(x) / len(x)) ** 2) / (len(x) - 1),
]


@st.composite
def columns(draw):
    """Many terms, small or large beside their mean, equal in part, or cancelling each other but for a rest."""
    rows, seed = draw(st.integers(8, 400)), draw(st.integers(0, 1 << 20))
    shift, repeat = draw(st.sampled_from([0.0, 1.0, 30.0, 1000.0])), draw(st.sampled_from([1, 4, 50]))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(-(-rows // repeat), 6, generator=generator).repeat_interleave(repeat, 0)[:rows] + shift
    if draw(st.booleans()):
        x = torch.cat([x, -x.flip(0) + 1e-4 * torch.randn(x.shape, generator=generator)])
    return x.float()


@given(columns(), st.sampled_from(SUMS))
@settings(max_examples=40, deadline=None)
def test_sums_in_any_order_are_never_wrong(x, way):
    assert verdict_on(lambda x: x.sum(0), [x], way).kind != DIVERGED


@given(columns(), st.sampled_from(MEANS))
@settings(max_examples=30, deadline=None)
def test_means_by_any_textbook_are_never_wrong(x, way):
    assert verdict_on(lambda x: x.mean(0), [x], way).kind != DIVERGED


@given(columns(), st.sampled_from(VARIANCES))
@settings(max_examples=40, deadline=None)
def test_variances_by_any_textbook_are_never_wrong(x, way):
    assert verdict_on(lambda x: x.var(0), [x], way).kind != DIVERGED


@given(columns(), st.integers(0, 7))
@settings(max_examples=30, deadline=None)
def test_a_sum_without_one_of_its_terms_is_wrong(x, row):
    exact = x.double()
    noise = float(_running_total(exact, [0]).max()) * UNIT
    assume(float(x[row].abs().max()) > 20 * noise)
    assert verdict_on(lambda x: x.sum(0), [x], lambda x: x.sum(0) - x[row]).kind == DIVERGED


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=200), st.sampled_from([1, 3, 20]))
@settings(max_examples=60, deadline=None)
def test_a_running_total_errs_by_what_is_said_of_it_against_exact_fractions(terms, repeat):
    x = torch.tensor(terms, dtype=torch.float32).repeat_interleave(repeat)
    total = running_sum(x[:, None])[0]
    exact = sum(map(Fraction, x.tolist()), Fraction(0))
    said = float(_running_total(x.double(), [0])) * UNIT
    # Half steps that all fall one way are as bad as it gets; ten times the usual error is where alarms begin.
    assert abs(Fraction(float(total)) - exact) <= Fraction(10 * said + 1e-40)


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 0.7, 1.1])
@pytest.mark.parametrize("count", [600, 2000, 4608])
def test_equal_terms_that_are_all_off_the_same_way_are_not_wrong(value, count):
    x = torch.full((count, 1), value) * torch.linspace(1, 2, 8)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.3] = 0.0
    assert verdict_on(lambda x: x.sum(0), [x], running_sum).kind != DIVERGED
    assert verdict_on(lambda x: x.sum(0), [x], lambda x: x.sum(0) * 1.001).kind == DIVERGED


CORNERS = [
    (F.relu, 0.0), (F.hardswish, -3.0), (F.hardswish, 3.0), (F.hardsigmoid, 3.0), (F.hardtanh, 1.0), (F.relu6, 6.0),
    (F.leaky_relu, 0.0), (lambda x: F.hardshrink(x, 0.5), 0.5), (lambda x: x.clamp(max=2.0), 2.0), (torch.abs, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("function", "corner"), CORNERS)
def test_a_value_that_rounding_puts_on_the_other_side_of_a_corner_has_its_gradient(function, corner):
    x = torch.linspace(-0.97, 1.04, 24).repeat(8, 1) + torch.arange(8.0)[:, None] / 7
    x[3, 5] = corner
    w = torch.full_like(x, 1.7)

    def both(x, w, tangent):
        x = x.detach().requires_grad_()
        y = function(x + w - w) * 3  # a compiler that adds nothing is as right, and on the corner exactly
        return y, torch.autograd.grad(y, x, tangent)[0]

    inputs = [x, w, torch.ones_like(x)]
    graph = make_fx(both)(*inputs)

    def beside(step):
        def run(x, w, tangent):
            moved = x.clone()
            moved[3, 5] += step
            return graph(moved, w, tangent)

        return run

    for step in (-4 * UNIT, 4 * UNIT):
        verdict = judge(graph, inputs, beside(step), calibration=UNCALIBRATED)
        assert verdict.kind != DIVERGED, str(verdict)

    def wrong(x, w, tangent):
        y, gradient = graph(x, w, tangent)
        gradient = gradient.clone()
        gradient[6, 2] += 0.5
        return y, gradient

    assert judge(graph, inputs, wrong, calibration=UNCALIBRATED).kind == DIVERGED


def batch_norm(x, mean, variance, momentum=0.1):
    y = F.batch_norm(x, mean, variance, training=True, momentum=momentum)
    return F.gelu(y).mean((2, 3))


def batch_norm_by_welford(x, mean, variance):
    rows = x.transpose(0, 1).flatten(1).T
    middle, squares = welford(rows)
    count = len(rows)
    mean.copy_(0.9 * mean + 0.1 * middle)
    variance.copy_(0.9 * variance + 0.1 * squares / (count - 1))
    scale = torch.rsqrt(squares / count + 1e-5)
    y = (x - middle[None, :, None, None]) * scale[None, :, None, None]
    return F.gelu(y).mean((2, 3))


@pytest.mark.parametrize("shift", [0.0, 0.5, 20.0])
def test_a_batch_norm_by_welford_is_less_precise_at_most_and_one_with_another_momentum_is_wrong(shift):
    x = torch.randn(8, 4, 12, 12, generator=torch.Generator().manual_seed(1)) + shift
    inputs = [x, torch.zeros(4), torch.ones(4)]
    graph = fx.symbolic_trace(batch_norm, concrete_args={"momentum": 0.1})
    healthy = judge(graph, inputs, batch_norm_by_welford, calibration=UNCALIBRATED)
    assert healthy.kind in (WITHIN_NOISE, LESS_PRECISE), str(healthy)
    wrong = judge(graph, inputs, lambda *a: batch_norm(*a, momentum=0.11), calibration=UNCALIBRATED)
    assert wrong.kind == DIVERGED


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_value_that_is_rounded_once_where_eager_does_so_twice_is_right(dtype):
    """A saved logarithm is rounded, what it is taken from again is not: eager's two roundings cancel."""

    def program(x):
        y = x * 50
        return torch.exp(y - y.logsumexp(-1, keepdim=True))

    def fused(x):
        y = x.float() * 50
        return torch.exp(y - y.logsumexp(-1, keepdim=True).to(dtype).float()).to(dtype)

    x = torch.randn(16, 24, generator=torch.Generator().manual_seed(0)).to(dtype) * 4
    assert verdict_on(program, [x], fused).kind != DIVERGED
    assert verdict_on(program, [x], lambda x: program(x).roll(1, 0)).kind == DIVERGED


def test_less_precise_says_how_much_and_where():
    x = torch.full((1568, 8), 0.1) * (1 + torch.arange(8.0))
    verdict = verdict_on(lambda x: x.sum(0), [x], running_sum)
    assert verdict.kind == LESS_PRECISE and not verdict.diverged
    assert "times its error" in verdict.sentence and "where values are about" in verdict.sentence
    assert verdict.to_json()["kind"] == "LESS_PRECISE"


def test_a_second_opinion_costs_nothing_where_nothing_is_suspicious(monkeypatch):
    monkeypatch.setattr("torchsleuth.torch_core.compare.verdict.evidence.TextbookRun", None)
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    assert (
        verdict_on(lambda x: F.softmax(x, -1).sum(0), [x], lambda x: F.softmax(x, -1).sum(0)).kind
        == WITHIN_NOISE
    )


def test_an_operator_whose_decomposition_is_wrong_is_judged_whole(monkeypatch):
    """Else a wrong decomposition, which a compiler uses as well, would make its own result right."""
    from torchsleuth.torch_core.compare.verdict import textbook

    halved = {torch.ops.aten.silu.default: lambda x: x * torch.sigmoid(x) * 0.5}
    monkeypatch.setattr(textbook, "decomposition_of", halved.get)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    assert verdict_on(F.silu, [x], lambda x: F.silu(x) * 0.5).kind == DIVERGED


def test_an_operator_whose_decomposition_refuses_float64_is_judged_whole(monkeypatch):
    """As that of a softmax from float16 to float32 does; a corner beside it must not become a wrong number."""
    from torchsleuth.torch_core.compare.verdict import textbook

    def refuses(*_):
        raise AssertionError("expected torch.half")

    monkeypatch.setattr(textbook, "decomposition_of", {torch.ops.aten.silu.default: refuses}.get)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    verdict = verdict_on(F.silu, [x], lambda x: F.silu(x) * (1 + 1e-6))
    assert "no second opinion" not in str(verdict)
    assert verdict_on(F.silu, [x], lambda x: F.silu(x) * 0.5).kind == DIVERGED


def test_without_a_second_opinion_a_few_elements_are_no_proof(monkeypatch):
    """A corner may lie behind them, however far they are off."""

    def fails(*_, **__):
        raise RuntimeError("not supported")

    def wrong(x):
        out = x.sum(1)
        out[3] += 1.0
        return out

    monkeypatch.setattr("torchsleuth.torch_core.compare.verdict.evidence.TextbookRun.run", fails)
    assert verdict_on(lambda x: x.sum(1), [torch.ones(40, 3)], wrong).kind == INCONCLUSIVE


def added_up(x, index):
    rows = x.new_zeros(4, 6).index_add(0, index, x)
    cells = x.new_zeros(4, 6).scatter_add(0, index[:, None].expand_as(x), x)
    return rows + cells, x.new_zeros(4, 6).index_put((index,), x, accumulate=True)


def added_up_backwards(x, index):
    return added_up(x.flip(0), index.flip(0))


@given(columns(), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_terms_added_where_they_meet_may_come_in_any_order(x, seed):
    index = torch.randint(0, 4, (len(x),), generator=torch.Generator().manual_seed(seed))
    assert verdict_on(added_up, [x, index], added_up_backwards).kind != DIVERGED

    def forgets(x, index):
        rows, cells = added_up(x, index)
        return rows * 1.01, cells + 1

    assert verdict_on(added_up, [x + 1, index], forgets).kind == DIVERGED


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_wrong_value_beside_exact_zeros_is_found(dtype):
    """Zeros that nothing rounds have no noise, and half a step of zero is zero."""
    x = torch.eye(4, dtype=dtype)
    assert verdict_on(lambda x: x.flip(0), [x], lambda x: x).kind == DIVERGED
    assert verdict_on(lambda x: x.flip(0), [x], lambda x: x.flip(0)).kind == WITHIN_NOISE


def test_sums_of_complex_numbers_have_a_second_opinion():
    x = torch.randn(40, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    assert verdict_on(lambda x: x.sum(0), [x], lambda x: x.sum(0) * 1.01).kind == DIVERGED
    assert verdict_on(lambda x: x.mean(0), [x], lambda x: running_sum(x) / 40).kind != DIVERGED


@pytest.mark.parametrize(("times", "kind"), [(1.01, DIVERGED), (1 + 3e-6, INCONCLUSIVE)])
def test_where_a_second_opinion_cannot_be_had_only_what_is_beyond_doubt_is_wrong(monkeypatch, times, kind):
    def fails(*_, **__):
        raise RuntimeError("not supported")

    monkeypatch.setattr("torchsleuth.torch_core.compare.verdict.evidence.TextbookRun.run", fails)
    verdict = verdict_on(lambda x: x.sum(0), [torch.ones(40, 3)], lambda x: x.sum(0) * times)
    assert verdict.kind == kind and "no second opinion: RuntimeError: not supported" in str(verdict)


def test_steps_of_several_results_that_add_nothing_up_have_a_second_opinion():
    def program(x):
        values, places = torch.ops.prims._low_memory_max_pool_with_offsets(
            x, [2, 2], [2, 2], [0, 0], [1, 1], False
        )
        return values.mean((2, 3)), places

    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    verdict = verdict_on(program, [x], lambda x: (program(x)[0] * (1 + 1e-5), program(x)[1]))
    assert "no second opinion" not in str(verdict)


@pytest.mark.parametrize("handed", [True, False])
def test_what_a_dropout_kept_is_known_where_it_was_given_nothing(handed):
    """Rounding puts 0.5 below hardshrink's corner in eager and float64 above it: the mask does not show in zeros."""

    def program(x, w):
        return (F.dropout(torch.hardshrink(x @ w, 0.5), 0.1, training=True),)

    factors = torch.tensor([[0.5, 2.0**-10]]).expand(64, 2).bfloat16()
    inputs = [
        factors,
        torch.ones(2, 8, dtype=torch.bfloat16),
    ]  # products of 0.50098, which bfloat16 rounds to 0.5
    graph, start, masks = fx.symbolic_trace(program), save_rng(), []
    with noting_draws(masks):
        assert not program(*inputs)[0].any()
    restore_rng(start)
    results = (
        (0.5 + 2.0**-10) * masks[0].value.float() / 0.9
    ).bfloat16()  # of a product that was never rounded
    verdict = judge_results(
        graph,
        inputs,
        None,
        (results,),
        rng_state=start,
        drawn=masks if handed else [],
        rng_matched=not handed,
        calibration=UNCALIBRATED,
    )
    assert verdict.kind in (WITHIN_NOISE, LESS_PRECISE), str(verdict)


def dropped(x):
    return F.dropout(F.logsigmoid(x), 0.3, training=True) * 2


def drawn_in_another_layout(x):
    """What a compiler does that keeps another layout: as many numbers, for other elements."""
    return dropped(x.contiguous(memory_format=torch.channels_last)).contiguous()


def judged_dropout(compiled, note=True, dtype=torch.float32, **options):
    x = torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    graph, start, drawn = fx.symbolic_trace(dropped), save_rng(), []
    with noting_draws(drawn if note else []):
        results = compiled(x)
    after = save_rng()
    verdict = judge_results(
        graph,
        [x],
        None,
        results,
        rng_state=start,
        rng_after=after,
        drawn=drawn,
        calibration=UNCALIBRATED,
        **options,
    )
    restore_rng(start)
    return verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_random_numbers_are_handed_over_whatever_layout_they_were_drawn_in(dtype):
    assert judged_dropout(drawn_in_another_layout, dtype=dtype).kind == WITHIN_NOISE


def test_a_wrong_value_behind_a_mask_that_was_handed_over_is_found():
    verdict = judged_dropout(lambda x: drawn_in_another_layout(x) * 1.01)
    assert verdict.kind == DIVERGED, str(verdict)


def test_random_numbers_that_cannot_be_shown_equal_accuse_nobody():
    def draws_more(x):
        torch.rand(1)
        return dropped(x)

    verdict = judged_dropout(draws_more, note=False)
    assert verdict.kind == INCONCLUSIVE and "could not be shown" in verdict.sentence


def test_whatever_was_drawn_a_result_that_is_not_finite_is_wrong():
    verdict = judged_dropout(lambda x: (torch.rand(1), dropped(x) * float("nan"))[1], note=False)
    assert verdict.kind == DIVERGED


DRAWING = [
    lambda x: x * torch.ops.aten.randint.low(1, 9, [4, 6]),
    lambda x: x * torch.ops.aten.randint.default(9, [4, 6]),
    lambda x: x[torch.ops.aten.randperm.default(4)] * 2,
    lambda x: x * (torch.ops.aten.rand_like.default(x, dtype=torch.float32) > 0.5),
    lambda x: x + torch.ops.aten.rand.default([4, 6]),
]


@pytest.mark.parametrize("program", DRAWING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whatever_is_drawn_is_handed_over_as_it_is(program, dtype):
    x, drawn = torch.ones(4, 6, dtype=dtype), []
    graph, start = make_fx(program)(x), save_rng()
    torch.rand(3)  # a compiler that draws other numbers than eager would
    with noting_draws(drawn):
        results = program(x)
    for found, kind in ((results, WITHIN_NOISE), (results * 1.5 + 1, DIVERGED)):
        verdict = judge_results(
            graph,
            [x],
            None,
            found,
            rng_state=start,
            rng_after=save_rng(),
            drawn=drawn,
            calibration=UNCALIBRATED,
        )
        assert verdict.kind == kind, str(verdict)


def test_attention_that_drops_weights_has_eagers_other_ways():
    def program(q):
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    q = torch.randn(2, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    reference = reference_run(fx.symbolic_trace(program), [q], start=save_rng())
    ways = dict(equivalent_runs(reference.graph, [q], reference.recorder, q.device, {}))
    assert len(ways) == 4
    for result in ways.values():
        torch.testing.assert_close(result["outputs"], reference.eager["outputs"])


def test_evidence_serves_many_results_and_gathers_the_textbook_once_asked():
    x = torch.full((700, 4), 0.1)
    evidence = gather(fx.symbolic_trace(lambda x: x.sum(0)), [x], start=save_rng())
    assert not weigh(evidence, result_of(running_sum(x))).diverged
    assert weigh(evidence, result_of(x.sum(0) * 1.001)).diverged


@pytest.mark.parametrize(
    ("step", "corner"),
    [(torch.floor, 2.0), (torch.ceil, 3.0), (torch.trunc, -5.0), (lambda x: x.round(decimals=1), 0.25)],
)
def test_a_value_that_rounding_puts_on_the_other_side_of_a_jump_has_the_value_there(step, corner):
    x = torch.randn(16, 24, generator=torch.Generator().manual_seed(0)) * 4
    x[::5, ::7] = corner / 3  # three times that is the corner in float32 and beside it in float64
    size = torch.linspace(1, 2, 24)

    def program(x, size):
        return step(x * 3) * size

    moved = (x == x[0, 0]) * 2e-7
    for sign in (1, -1):
        other = step(x * 3 * (1 + sign * moved)) * size
        assert not verdict_on(program, [x, size], lambda *_, other=other: other).diverged
    elsewhere = torch.zeros_like(x).index_fill(0, torch.tensor(3), 1.0)
    assert verdict_on(program, [x, size], lambda *given: program(*given) + elsewhere).diverged


def test_a_mean_of_values_that_are_not_rounded_yet_is_right():
    """Seen on a GPU: a bias added to rounded products moves a channel of bfloat16, and its mean was taken before."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(8, 3, 12, 12, generator=generator) + 3).bfloat16()
    weight = (torch.randn(8, 3, 3, 3, generator=generator) / 5).bfloat16()
    bias = (torch.randn(8, generator=generator) / 8).bfloat16()

    def convolved(x, weight, bias):
        return torch.ops.aten.convolution.default(x, weight, bias, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def normed(values, of):
        variance, mean = torch.ops.aten.var_mean.correction(of.float(), [0, 2, 3], correction=0, keepdim=True)
        return F.elu((values - mean) * variance.rsqrt()).bfloat16().mean((2, 3))

    def program(*given):
        y = convolved(*given)
        return y, normed(y, y)

    def compiled(x, weight, bias):
        fine = convolved(x, weight, None).float() + bias[:, None, None].float()
        return fine.bfloat16(), normed(fine.bfloat16(), fine)

    graph = make_fx(program)(x, weight, bias)
    found = compiled(x, weight, bias)
    assert not judge(graph, [x, weight, bias], lambda *_: found, calibration=UNCALIBRATED).diverged
    wrong = found[0], found[1] + 0.05
    assert judge(graph, [x, weight, bias], lambda *_: wrong, calibration=UNCALIBRATED).diverged


def mapped(x):
    def one(row, number):
        return row.exp() * number

    return torch.vmap(one, in_dims=(0, 0))(x, torch.arange(4.0)).sum(-1)


def captured(function, *inputs):
    graphs = []
    torch.compile(function, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)(*inputs)
    return graphs[0]


def test_a_captured_vmap_is_judged():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    graph = captured(mapped, x)
    assert "vmap" in graph.code
    assert judge(graph, [x], mapped, calibration=UNCALIBRATED).kind == WITHIN_NOISE
    assert judge(graph, [x], lambda x: mapped(x) * 1.001, calibration=UNCALIBRATED).kind == DIVERGED


def test_a_captured_vmap_that_cannot_be_run_for_reference_leaves_no_transform_behind(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("not here")

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    graph = captured(mapped, x)
    exp = next(n for n in graph.graph.nodes if "exp" in str(n.target))
    exp.op, exp.target = "call_function", fails
    graph.recompile()
    assert judge(graph, [x], mapped, calibration=UNCALIBRATED).kind == INCONCLUSIVE
    assert torch.vmap(torch.sin)(x).shape == x.shape
    assert not torch._C._functorch.peek_interpreter_stack()


def flexible_attention(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score - 0.1 * (i - j).abs())


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_flex_attention_has_the_noise_of_its_products(precision):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(1, 2, 128, 16, generator=generator) for _ in range(3)]
    graph = captured(flexible_attention, *given)
    assert "flex_attention" in graph.code
    torch.set_float32_matmul_precision(precision)
    try:
        bits = 23 if precision == "highest" else 10
        # Every factor cut off: what the shortest way to read them does.
        cut = [(t.view(torch.int32) & -(1 << (23 - bits))).view(torch.float32) for t in given]
        found = graph(*cut)
        assert not judge(graph, given, lambda *_: found, calibration=UNCALIBRATED).diverged
        wrong = (found[0] * 1.02,)
        assert judge(graph, given, lambda *_: wrong, calibration=UNCALIBRATED).diverged
    finally:
        torch.set_float32_matmul_precision("highest")


def test_as_many_random_numbers_in_another_layout_accuse_nobody():
    verdict = judged_dropout(lambda x: dropped(x.transpose(0, 3)).transpose(0, 3), note=False)
    assert verdict.kind == INCONCLUSIVE and "could not be shown" in verdict.sentence


def test_a_dropout_of_nothing_draws_nothing():
    def program(x):
        return F.dropout(torch.hardshrink(F.dropout(x, 0.3, training=True), 0.5), 0.0, training=True)

    x, drawn = torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(0)), []
    start = save_rng()
    with noting_draws(drawn):
        results = program(x.contiguous(memory_format=torch.channels_last)).contiguous()
    graph = fx.symbolic_trace(program)
    for found, kind in ((results, WITHIN_NOISE), (results * 1.01, DIVERGED)):
        verdict = judge_results(
            graph, [x], None, found, rng_state=start, drawn=drawn, calibration=UNCALIBRATED
        )
        assert verdict.kind == kind, str(verdict)


@pytest.mark.parametrize(
    "precision, shortened", [("highest", {"convolution"}), ("high", {"convolution", "product"})]
)
def test_on_a_gpu_only_what_torchs_settings_shorten_is_excused_by_tf32(precision, shortened):
    """That convolutions may be shortened, as by default, acquitted wrong matrix products of float32."""
    ops = {
        "product": (torch.mm, [torch.randn(8, 8), torch.randn(8, 8)]),
        "convolution": (torch.conv1d, [torch.randn(1, 4, 8), torch.randn(4, 4, 3)]),
    }
    moved = set()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for name, (op, inputs) in ops.items():
            graph = fx.symbolic_trace(lambda x, y: op(x, y))
            reference = reference_run(graph, inputs, start=save_rng())
            ways = dict(equivalent_runs(graph, inputs, reference.recorder, torch.device("cuda"), {}))
            cut = ways["factors cut off to TF32"]["outputs"]
            if float((cut - op(*inputs)).abs().max()) > 1e-5:
                moved.add(name)
    finally:
        torch.set_float32_matmul_precision(before)
    assert moved == shortened
