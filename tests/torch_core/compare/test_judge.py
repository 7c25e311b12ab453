import json
import math
import random
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import fx

from planted_faults import VISIBLE_ULPS, effect_in_ulps, faults, run_fused
from torchsleuth.torch_core.compare.reference import float64
from torchsleuth.torch_core.compare.reference.rng import save_rng
from torchsleuth.torch_core.compare.verdict.calibrate import UNCALIBRATED, healthy_graph
from torchsleuth.torch_core.compare.verdict.evidence import gather
from torchsleuth.torch_core.compare.verdict.judge import judge, judge_results
from torchsleuth.torch_core.compare.verdict.look import Called, Numbers, looked_at
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, EAGER_SUSPECT, INCONCLUSIVE, WITHIN_NOISE

LOW = [torch.bfloat16, torch.float16]


def verdict_on(program, inputs, compiled, **options):
    return judge(fx.symbolic_trace(program), inputs, compiled, calibration=UNCALIBRATED, **options)


def changed(program, index, change):
    """The program with one element of its first output changed."""

    def wrong(*args):
        out = program(*args)
        first = out[0] if isinstance(out, tuple) else out
        spoilt = first.clone()
        spoilt[index] = change(spoilt[index])
        return (spoilt, *out[1:]) if isinstance(out, tuple) else spoilt

    return wrong


def mlp(x, w):
    return torch.nn.functional.gelu(x @ w).softmax(-1) * 8


def mlp_inputs(dtype):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype) for s in ((32, 64), (64, 64))]


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_eager_judged_against_itself_is_within_noise(dtype):
    assert verdict_on(mlp, mlp_inputs(dtype), mlp).kind == WITHIN_NOISE


@pytest.mark.parametrize("dtype", LOW)
def test_fewer_roundings_than_eager_are_praised_not_blamed(dtype):
    def fused(x, w):
        return mlp(x.float(), w.float()).to(dtype)

    verdict = verdict_on(mlp, mlp_inputs(dtype), fused)
    assert verdict.kind == WITHIN_NOISE
    assert verdict.sentence == "the compiled result is closer to the truth than eager"
    assert verdict.leaves[0].rmse_ratio < 1


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_one_wrong_element_is_found_with_index_ulps_z_and_share(dtype):
    verdict = verdict_on(mlp, mlp_inputs(dtype), changed(mlp, (3, 5), lambda v: v + 0.5))
    leaf = verdict.worst
    assert verdict.diverged and leaf.index == (3, 5) and leaf.z > leaf.limit
    assert leaf.ulps > 10 and leaf.share == pytest.approx(1 / 2048)
    assert "element [3, 5]" in verdict.sentence


@pytest.mark.parametrize("dtype", LOW)
def test_a_small_common_scale_is_found_where_no_element_stands_out(dtype):
    def program(x):
        return torch.sin(x) + 2

    def scaled(x):
        return (program(x.double()) * (1 + 0.7 * torch.finfo(dtype).eps)).to(dtype)

    verdict = verdict_on(program, [torch.rand(64, 64).to(dtype)], scaled)
    assert verdict.diverged and verdict.worst.rule in ("bias", "spread") and verdict.worst.share == 0


def test_one_wrong_lane_is_found_where_no_element_stands_out():
    def program(x):
        return ((x * 1.1).sin() * 1.3).cos()

    def wrong(x):
        out = program(x.float())
        out[:, -1] *= 1 + 2.5 * torch.finfo(torch.bfloat16).eps
        return out.to(torch.bfloat16)

    verdict = verdict_on(program, [torch.rand(256, 16).to(torch.bfloat16)], wrong)
    assert verdict.diverged and verdict.worst.rule in ("lane", "element")


@given(st.integers(3000, 3400), st.sampled_from([torch.float32, *LOW]))
@settings(max_examples=12, deadline=None)
def test_healthy_graphs_run_with_wider_intermediates_raise_no_alarm(seed, dtype):
    case = healthy_graph(seed, dtype)
    results = run_fused(case.graph, case.inputs, dtype)
    assert not judge_results(case.graph, case.inputs, None, results, calibration=UNCALIBRATED).diverged


@given(st.integers(3000, 3400))
@example(3213)  # zeros behind a relu, compared with zero: no decision is in doubt there
@settings(max_examples=6, deadline=None)
def test_visible_faults_in_float32_are_found(seed):
    case = healthy_graph(seed, torch.float32)
    for fault in faults(case.graph, random.Random(seed), torch.float32, per_kind=1):
        if fault.kind in ("scaled", "wrong lane") and (
            effect_in_ulps(fault.graph, case.graph, case.inputs, torch.float32) > 1000 * VISIBLE_ULPS
        ):
            verdict = judge_results(
                case.graph, case.inputs, None, fault.graph(*case.inputs), calibration=UNCALIBRATED
            )
            assert verdict.kind in (DIVERGED, INCONCLUSIVE)


def test_integers_and_booleans_are_exact():
    x = torch.linspace(-1, 1, 101)
    assert verdict_on(lambda v: v > 0.123, [x], lambda v: v > 0.123).kind == WITHIN_NOISE
    wrong = verdict_on(lambda v: v > 0.123, [x], lambda v: v > 0.2)
    assert wrong.diverged and wrong.worst.rule == "exact" and wrong.worst.index == (57,)


def test_a_decision_within_the_noise_may_fall_either_way():
    x = torch.rand(2000) + 1

    def program(v):
        return (v / 3 * 3) == v

    verdict = verdict_on(program, [x], lambda v: torch.ones_like(v, dtype=torch.bool))
    assert verdict.kind != DIVERGED


def test_a_whole_row_that_hangs_on_one_doubtful_decision_may_fall_either_way():
    torch.manual_seed(0)
    x = torch.rand(32, 64).bfloat16() + 1
    x[7, 3] = 1e-3

    def program(v):
        chosen = torch.where((v + 100) - 100 > 0.001, v, -8 * v)
        return chosen / chosen.sum(-1, keepdim=True)

    def fused(v):
        return program(v.float()).bfloat16()

    assert verdict_on(program, [x], fused).kind != DIVERGED
    assert verdict_on(program, [x], lambda v: program(v.float()).bfloat16() * 1.1).diverged


@pytest.mark.parametrize("pick", [torch.argmax, torch.argmin])
def test_ties_of_argmax_are_recognised_and_other_indices_are_not(pick):
    x = torch.rand(16, 8)
    x[:, 3] = 2.0 if pick is torch.argmax else -2.0

    def program(v):
        return pick(v * 1.1, -1)

    tied = x.clone()
    tied[:, 6] = tied[:, 3] * (1 + 1e-8)
    other = verdict_on(program, [tied], lambda v: torch.full((16,), 6))
    assert other.kind in (WITHIN_NOISE, INCONCLUSIVE)
    assert verdict_on(program, [x], lambda v: torch.full((16,), 6)).diverged


def test_topk_values_and_indices_of_a_healthy_result_pass():
    x = torch.randn(16, 64).bfloat16()

    def program(v):
        values, indices = torch.topk(v * 1.3, 4)
        return values, indices

    def fused(v):
        values, indices = torch.topk(v.float() * 1.3, 4)
        return values.bfloat16(), indices

    assert not verdict_on(program, [x], fused).diverged


@pytest.mark.parametrize("made", [math.nan, math.inf])
def test_a_made_up_nan_or_infinity_diverges(made):
    verdict = verdict_on(mlp, mlp_inputs(torch.float32), changed(mlp, (0, 0), lambda v: v * 0 + made))
    assert verdict.diverged and verdict.worst.rule == "made non-finite"


def test_a_lost_nan_diverges_and_a_kept_one_does_not():
    x = torch.tensor([-1.0, 1.0, 4.0])
    assert verdict_on(lambda v: v.sqrt(), [x], torch.sqrt).kind == WITHIN_NOISE
    assert verdict_on(lambda v: v.sqrt(), [x], lambda v: v.abs().sqrt()).worst.rule == "lost non-finite"


def test_a_value_at_the_edge_of_float16_may_overflow_in_one_of_both():
    """As the gradients of a scaled loss do when its scale has grown too large; 65,519 is finite, 65,521 is not."""

    def product(x, w):
        return (x @ w).float() - 3

    x, w = torch.full((2, 2), 181.0).half(), torch.tensor([[180.875, 3.0], [180.875, 4.0]]).half()
    assert 65400 < (x @ w)[0, 0] < math.inf
    overflows = changed(product, (0, 0), lambda _: math.inf)
    verdict = verdict_on(product, [x, w], overflows)
    assert verdict.kind == INCONCLUSIVE and "`matmul`" in verdict.sentence, verdict
    assert verdict_on(product, [x / 2, w], overflows).worst.rule == "made non-finite"


def test_overflow_of_eager_and_compiled_alike_is_the_program_s_fault():
    x = torch.full((64,), 300.0, dtype=torch.float16)

    def program(v):
        return (v * v) / 300

    assert verdict_on(program, [x], program).kind == EAGER_SUSPECT
    assert verdict_on(program, [x], lambda v: program(v.float()).half()).kind == WITHIN_NOISE


def test_a_mutated_input_is_judged_and_a_stray_write_is_found():
    def writes(x, y):
        x.add_(y)
        return x * 2

    inputs = [torch.ones(8), torch.rand(8)]
    assert verdict_on(writes, inputs, writes).kind == WITHIN_NOISE
    lost = verdict_on(writes, inputs, lambda x, y: (x + y) * 2)
    assert lost.diverged and lost.worst.path == "inputs[0] (mutated)"

    def stray(x, y):
        y.zero_()
        return x * 2

    assert verdict_on(lambda x, y: x * 2, inputs, stray).worst.rule == "stray write"
    assert inputs[0].sum() == 8


def test_aten_graphs_with_copies_into_inputs_and_symbolic_sizes_are_judged():
    aten = torch.ops.aten
    graph = fx.Graph()
    n, x = graph.placeholder("n"), graph.placeholder("x")
    y = graph.call_function(aten.add.Tensor, (x, 1))
    view = graph.call_function(aten.view.default, (y, [n, 2]))
    graph.call_function(aten.copy_.default, (x, y))
    graph.output((view, None, n))
    module = fx.GraphModule({}, graph)

    def compiled(args):
        size, value = args
        args.clear()
        value.add_(1)
        return [value.clone().view(size, 2), None, size]

    verdict = judge(module, [3, torch.rand(6)], compiled, boxed=True, calibration=UNCALIBRATED)
    assert verdict.kind == WITHIN_NOISE
    assert {leaf.path for leaf in verdict.leaves} == {f"outputs[{i}]" for i in range(3)} | {
        "inputs[1] (mutated)"
    }


def test_control_flow_ops_are_judged():
    def program(x):
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,))

    captured = []

    def backend(gm, example_inputs):
        captured.append(gm)
        return gm.forward

    x = torch.rand(16, 8)
    torch.compile(program, backend=backend, fullgraph=True)(x)
    assert judge(captured[0], [x], captured[0], calibration=UNCALIBRATED).kind == WITHIN_NOISE
    wrong = judge(captured[0], [x], lambda v: (v.cos(),), calibration=UNCALIBRATED)
    assert wrong.diverged


def test_random_numbers_are_made_equal_and_other_draws_are_not_blamed():
    def program(x):
        return torch.dropout(x, 0.5, True), x * 3

    x = torch.rand(4000) + 1
    assert verdict_on(program, [x], program, rng_matched=True).kind == WITHIN_NOISE

    def own(v):
        torch.rand(7)
        return program(v)

    verdict = verdict_on(program, [x], own)
    assert verdict.kind == INCONCLUSIVE and verdict.worst.rule == "random"
    assert [leaf.kind for leaf in verdict.leaves] == [INCONCLUSIVE, WITHIN_NOISE]
    assert verdict_on(program, [x], own, rng_matched=True).diverged


def test_dropout_as_a_module_keeps_its_mask_in_the_reference():
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.5))
    graph = fx.symbolic_trace(model)
    verdict = judge(graph, [torch.randn(32, 16)], model, rng_matched=True, calibration=UNCALIBRATED)
    assert verdict.kind == WITHIN_NOISE


def some_memory(x):
    memory = x.new_empty(8, 8)
    part = x.new_empty(6)
    part.narrow(0, 0, 3).copy_(x)
    counts = x.new_empty(4, dtype=torch.int64)
    return x + 1, memory, memory[:2] * 2, part, counts, memory > 0


def with_garbage(number):
    """The same where the memory that nobody has written holds something."""

    def run(x):
        memory = torch.full((8, 8), number)
        part = torch.cat([x, torch.full((3,), number)])
        return x + 1, memory, memory[:2] * 2, part, torch.full((4,), 7), memory > 0

    return run


@pytest.mark.parametrize("number", [0.0, -1e30, math.nan])
def test_memory_that_nobody_wrote_is_not_compared(number):
    assert verdict_on(some_memory, [torch.ones(3)], with_garbage(number)).kind == WITHIN_NOISE


@pytest.mark.parametrize("place", [0, 3])
def test_what_is_beside_memory_that_nobody_wrote_is_compared(place):
    def wrong(x):
        results = list(with_garbage(0.0)(x))
        results[place][1] += 1
        return tuple(results)

    verdict = verdict_on(some_memory, [torch.ones(3)], wrong)
    assert [leaf.path for leaf in verdict.leaves if leaf.kind == DIVERGED] == [f"outputs[{place}]"]


def test_memory_that_is_written_or_has_no_elements_is_compared():
    def written(x):
        memory = x.new_empty(3)
        memory.copy_(x)
        return memory * 2

    def grown(x):
        return torch.cat([x.new_empty(0), x]) * 2, torch.zeros_like(x.new_empty(3)) + x

    x = torch.ones(3)
    assert verdict_on(written, [x], lambda x: x * 3).kind == DIVERGED
    assert verdict_on(grown, [x], lambda x: (x * 3, x)).kind == DIVERGED
    assert verdict_on(grown, [x], lambda x: (x * 2, x + 1)).kind == DIVERGED


def test_nondeterminism_is_reported_and_not_blamed_on_accuracy():
    calls = []

    def flaky(x, w):
        calls.append(1)
        return mlp(x, w) + (0 if len(calls) % 2 else 1)

    verdict = verdict_on(mlp, mlp_inputs(torch.float32), flaky)
    assert verdict.nondeterministic and verdict.kind == INCONCLUSIVE and "non-determinism" in verdict.sentence


def test_harmless_nondeterminism_is_only_noted():
    calls = []

    def flaky(x, w):
        calls.append(1)
        return mlp(x, w) * (1 if len(calls) % 2 else 1 + 2**-23)

    verdict = verdict_on(mlp, mlp_inputs(torch.float32), flaky)
    assert verdict.nondeterministic and verdict.kind == WITHIN_NOISE


def test_results_can_be_judged_without_running_compiled():
    inputs = mlp_inputs(torch.float32)
    graph = fx.symbolic_trace(mlp)
    good = judge_results(graph, inputs, mlp(*inputs), [mlp(*inputs)], mutated_inputs_after=inputs)
    bad = judge_results(graph, inputs, None, mlp(*inputs) * 1.001)
    assert good.kind == WITHIN_NOISE and bad.diverged


@pytest.mark.parametrize(
    ("compiled", "kind", "words"),
    [
        (lambda x: (x, x), INCONCLUSIVE, "different structures"),
        (lambda x: x.double(), DIVERGED, "dtype float32 became float64"),
        (lambda x: x[:2], DIVERGED, "shape (4,) became (2,)"),
        (lambda x: 3, DIVERGED, "a tensor became int"),
    ],
)
def test_results_of_another_form_are_told_in_a_sentence(compiled, kind, words):
    verdict = verdict_on(lambda x: x * 1, [torch.ones(4)], compiled)
    assert verdict.kind == kind and words in verdict.sentence


def test_ill_conditioned_results_are_inconclusive():
    x = torch.rand(64, 64) + 1

    def program(v):
        return ((v * 1.1 + 1e7) - 1e7) - v * 1.1

    speckles = torch.where(torch.rand(64, 64) > 0.5, 0.6, -0.6)
    verdict = verdict_on(program, [x], lambda v: program(v.double()).float() + speckles)
    assert verdict.kind == INCONCLUSIVE and "nothing can be told" in verdict.sentence


def test_a_graph_that_cannot_run_is_inconclusive():
    graph = fx.symbolic_trace(lambda x: torch.ops.aten.mm(x, x))
    verdict = judge_results(graph, [torch.ones(2, 3)], None, torch.ones(2, 2))
    assert verdict.kind == INCONCLUSIVE and "could not be run" in verdict.sentence


def test_exhausted_memory_is_inconclusive_and_says_so(monkeypatch):
    def exhausted(*args, **kwargs):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(float64.Float64Run, "run", exhausted)
    verdict = verdict_on(mlp, mlp_inputs(torch.float32), mlp)
    assert verdict.kind == INCONCLUSIVE and "not enough memory" in verdict.sentence


@torch.library.custom_op("torchsleuth_tests::low_only", mutates_args=())
def low_only(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float64:
        raise NotImplementedError("no float64 here")
    return x * 2


def test_an_op_without_reference_is_named_and_makes_a_doubtful_result_inconclusive():
    def program(x):
        return torch.ops.torchsleuth_tests.low_only(x.sin())

    x = torch.rand(64, 64)
    fine = verdict_on(program, [x], program)
    assert fine.kind == WITHIN_NOISE and len(fine.fallbacks) == 1 and "no float64 reference" in fine.notes[0]
    noise = fine.leaves[0].limit * 2**-25
    doubtful = verdict_on(program, [x], lambda v: program(v) + noise * 2)
    assert doubtful.kind in (INCONCLUSIVE, DIVERGED)
    assert verdict_on(program, [x], lambda v: program(v) + 1).diverged


def test_a_verdict_goes_to_json_and_reads_as_a_sentence():
    verdict = verdict_on(mlp, mlp_inputs(torch.float32), changed(mlp, (0, 0), lambda v: v * math.nan))
    document = json.loads(json.dumps(verdict.to_json()))
    assert document["kind"] == DIVERGED and document["leaves"][0]["compiled"] == "nan"
    assert str(verdict).startswith("DIVERGED: outputs: element [0, 0] is nan")


def test_judging_makes_at_most_25_float64_runs():
    case = healthy_graph(3, torch.float32)
    assert judge(case.graph, case.inputs, case.graph).runs <= 25


def test_empty_scalar_and_complex_outputs_are_judged():
    def program(x):
        return x[:0], x.sum(), x.to(torch.complex64) * 1j, x.sum().item()

    x = torch.rand(8)
    graph = fx.Graph()
    value = graph.placeholder("x")
    graph.output(tuple(graph.call_function(f, (value,)) for f in (first, second, third, fourth)))
    module = fx.GraphModule({}, graph)
    assert judge(module, [x], lambda v: program(v), calibration=UNCALIBRATED).kind == WITHIN_NOISE
    wrong = judge(
        module,
        [x],
        lambda v: (v[:0], v.sum(), v.to(torch.complex64) * -1j, v.sum().item()),
        calibration=UNCALIBRATED,
    )
    assert wrong.diverged and wrong.worst.path == "outputs[2]"


def first(x):
    return x[:0]


def second(x):
    return x.sum()


def third(x):
    return x.to(torch.complex64) * 1j


def fourth(x):
    return x.sum().item()


def test_the_evidence_of_a_graph_that_draws_nothing_leaves_the_global_generators_alone(monkeypatch):
    def touched(*_):
        raise AssertionError("the global random state was touched")

    monkeypatch.setattr(torch, "set_rng_state", touched)
    quiet = fx.symbolic_trace(lambda x: torch.relu(x @ x.t()).softmax(-1))
    gather(quiet, [torch.randn(4, 4)], start=save_rng())
    drawing = fx.symbolic_trace(lambda x: torch.nn.functional.dropout(x, 0.5))
    with pytest.raises(AssertionError, match="touched"):
        gather(drawing, [torch.randn(4, 4)], start=save_rng())


def test_a_write_through_what_an_operation_handed_on_is_no_rounding_noise():
    def program(x, w):
        base = x @ w
        same = torch.nn.functional.dropout(base, 0.5, False)
        same.mul_(1.5)
        return base.softmax(-1)

    def write_lost(x, w):
        return (x @ w).softmax(-1)

    assert verdict_on(program, mlp_inputs(torch.float32), write_lost).kind == DIVERGED
    assert verdict_on(program, mlp_inputs(torch.float32), program).kind == WITHIN_NOISE


def test_strides_that_the_compiler_forgot_are_its_fault_not_eagers():
    def program(x):
        x.add_(1)
        return torch.as_strided_copy(x, (3,), (2,))

    def forgets_strides(x):
        x.add_(1)
        return torch.as_strided_copy(x.contiguous(), (3,), (2,))

    assert verdict_on(program, [torch.arange(10.0)[::2]], forgets_strides).kind == DIVERGED
    assert verdict_on(program, [torch.arange(10.0)[::2]], program).kind == WITHIN_NOISE


def test_a_model_is_no_graph_and_the_sentence_says_what_compares_models():
    model = torch.nn.Linear(2, 2)
    for ask in (lambda: judge(model, [], model), lambda: judge_results(model, [], None, [])):
        with pytest.raises(TypeError, match=r"got Linear; for a model: torchsleuth\.compare_models"):
            ask()


def test_what_is_wrong_is_said_once_with_digits_that_say_something():
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    x = torch.rand(2, 4) + 1
    told = str(judge(graph, [x], lambda x: x * 1e30))
    assert told.startswith("DIVERGED") and told.count("times the rounding noise") == 1
    assert max(len(digits) for digits in re.findall(r"\d+", told)) <= 9


@pytest.mark.parametrize("compiled", [1.0, -math.inf])
def test_what_is_infinite_in_eager_alone_is_looked_at_and_wrong(compiled):
    graph, numbers = fx.symbolic_trace(lambda x: 1.0 / x), Numbers(save_rng(), save_rng(), [])
    look = looked_at(graph, Called([torch.zeros(4)], torch.full((4,), compiled), (), numbers))
    assert list(look.apart) == ["outputs"] and look.verdict is not None and look.verdict.kind == DIVERGED


def test_what_is_infinite_in_both_is_nothing_to_look_at():
    graph, numbers = fx.symbolic_trace(lambda x: 1.0 / x), Numbers(save_rng(), save_rng(), [])
    assert looked_at(graph, Called([torch.zeros(4)], torch.full((4,), math.inf), (), numbers)).verdict is None
