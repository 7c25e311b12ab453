"""A check that stays small: noise is folded run by run, and large results are judged a piece at a time."""

import pytest
import torch
from torch import fx

from torchsleuth.torch_core.compare.reference.float64 import Float64Run, widen_graph, widen_late
from torchsleuth.torch_core.compare.reference.rng import save_rng
from torchsleuth.torch_core.compare.verdict import evidence
from torchsleuth.torch_core.compare.verdict.calibrate import UNCALIBRATED
from torchsleuth.torch_core.compare.verdict.evidence import reference_run
from torchsleuth.torch_core.compare.verdict.judge import judge, judge_results
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, WITHIN_NOISE


def layers(x, w, total):
    first = torch.relu(x @ w)
    second = torch.softmax(first @ w, -1)
    torch.ops.aten.copy_.default(total, total + second.sum())
    return first, second, (second > 0.01), second.sum(-1)


def inputs():
    torch.manual_seed(0)
    return [torch.randn(64, 64), torch.randn(64, 64) / 8, torch.zeros(())]


@pytest.fixture
def little_room(monkeypatch):
    monkeypatch.setattr(evidence, "memory_left", lambda device: 4 * 64 * 64 * evidence.BYTES_PER_ELEMENT)


def traced():
    return fx.symbolic_trace(layers)


def test_large_results_are_judged_in_pieces(little_room):
    assert len(reference_run(traced(), inputs(), start=save_rng()).pieces()) == 4


def test_pieces_say_what_the_whole_says(little_room, monkeypatch):
    given = inputs()
    graph = traced()
    parts = judge_results(graph, given, None, graph(*inputs()), calibration=UNCALIBRATED)
    monkeypatch.setattr(evidence, "memory_left", lambda device: 1 << 40)
    whole = judge_results(graph, given, None, graph(*inputs()), calibration=UNCALIBRATED)
    assert [leaf.path for leaf in parts.leaves] == [leaf.path for leaf in whole.leaves]
    assert {leaf.kind for leaf in parts.leaves} == {leaf.kind for leaf in whole.leaves} == {WITHIN_NOISE}
    assert parts.runs > whole.runs


@pytest.mark.parametrize("place", range(4))
def test_a_fault_in_any_piece_is_found(little_room, place):
    graph = traced()

    def wrong(*args):
        outputs = [v.clone() for v in graph(*args)]
        flat = outputs[place].view(-1)
        flat[5] = ~flat[5] if flat.dtype == torch.bool else flat[5] + 1
        return tuple(outputs)

    verdict = judge(graph, inputs(), wrong, calibration=UNCALIBRATED)
    assert verdict.kind == DIVERGED
    assert [leaf.path for leaf in verdict.leaves if leaf.kind == DIVERGED] == [f"outputs[{place}]"]


def test_a_wrong_write_into_an_input_is_found(little_room):
    graph = traced()

    def wrong(x, w, total):
        outputs = graph(x, w, total)
        total += 1
        return outputs

    verdict = judge(graph, inputs(), wrong, calibration=UNCALIBRATED)
    assert [leaf.path for leaf in verdict.leaves if leaf.kind == DIVERGED] == ["inputs[2] (mutated)"]


def test_inputs_are_widened_one_at_a_time():
    """The float64 copies of twenty parameters never live together."""
    names = [f"w{i}" for i in range(20)]
    graph = fx.Graph()
    given = [graph.placeholder(n) for n in names]
    total = graph.call_function(torch.ops.aten.sum.default, (given[0],))
    for each in given[1:]:
        part = graph.call_function(torch.ops.aten.sum.default, (each,))
        total = graph.call_function(torch.ops.aten.add.Tensor, (total, part))
    graph.output((total,))
    module = fx.GraphModule({}, graph)
    wide = widen_graph(module)
    widen_late(wide, range(20))
    run = Float64Run(wide, module)
    widest = 0

    def look():
        nonlocal widest
        held = [v for v in run.env.values() if isinstance(v, torch.Tensor) and v.numel() == 1000]
        widest = max(widest, sum(v.dtype == torch.float64 for v in held))

    run.after_each = look
    [result] = run.run(*(torch.ones(1000) for _ in names))
    assert result.dtype == torch.float64 and result.item() == 20_000 and widest == 1
