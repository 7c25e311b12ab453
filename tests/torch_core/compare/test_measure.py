"""The runs of an analysis on code that is made up: what is compared, what is let go, what differs."""

import dataclasses
import operator
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.torch_core.compare.divergence.distance import checksum, distance
from torchsleuth.torch_core.compare.divergence.measure import (
    Subject,
    accumulated,
    differing,
    local,
    substituted,
)
from torchsleuth.torch_core.compare.divergence.parts import Compilers, Whole
from torchsleuth.torch_core.compare.divergence.steps import (
    EagerMemory,
    EagerSteps,
    Float64Steps,
    writes_what_is_read,
)
from torchsleuth.torch_internals.generated_code import CompiledCode, Written

INF, NAN = float("inf"), float("nan")


def silent(done, of):
    pass


def chain(length):
    """x + 1 + 1 + ...: each value is read by the next alone."""
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for place in range(length):
        value = graph.create_node("call_function", torch.add, (value, 1), name=f"add_{place}")
    graph.output((value,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def made_up(graph, off, x):
    """Code that makes each value of a chain, wrong by `off[name]`, with a look after each."""
    names = [n.name for n in graph.graph.nodes if n.op == "call_function"]
    written = tuple(Written(name, name, f"kernel_{place}", place) for place, name in enumerate(names))
    code = CompiledCode({n.name: n for n in graph.graph.nodes}, written)

    def call(values):
        (value,) = values
        for each in written:
            value = value + 1 + off(each.node)
            if code.look is not None:
                code.look([each], [value])
        return (value,)

    return Subject(graph, [x], call, code, {name: name for name in names})


def test_what_became_visible_and_what_a_kernel_does_by_itself():
    subject = made_up(chain(6), lambda name: 0.5 if name in ("add_2", "add_4") else 0.0, torch.arange(8.0))
    free, own = accumulated(subject, silent), local(subject, silent)
    assert [value.distance.far for value in free.values.values()] == [False, False, True, True, True, True]
    assert [name for name, value in own.values.items() if value.distance.far] == ["add_2", "add_4"]
    assert free.outputs["outputs[0]"].off == pytest.approx(1.0)
    assert substituted(subject, silent, ["add_2"]).outputs["outputs[0]"].off == pytest.approx(0.5)
    assert not substituted(subject, silent, ["add_2", "add_4"]).outputs["outputs[0]"].far


def test_values_that_differ_from_run_to_run_are_named_with_how_far():
    runs = iter([0.0, 0.25, 0.0])
    chosen = {}

    def off(name):
        if name == "add_0":
            chosen["now"] = next(runs)
        return (
            torch.tensor([0.0, 1.0, 1.0, NAN]) * chosen["now"] if name == "add_3" and chosen["now"] else 0.0
        )

    subject = made_up(chain(4), off, torch.zeros(4))
    first = accumulated(subject, silent)
    where = {"node": "add_3", "buffer": "add_3", "kernel": "kernel_3"}
    # NaN is another element, and no number of a distance.
    assert differing(subject, silent, first) == [{**where, "field": "elements", "elements": 3, "off": 0.25}]


@pytest.mark.parametrize(
    "other, field",
    [
        (lambda t: t.double(), "dtype"),
        (lambda t: t[:1], "shape"),
        (lambda t: t.repeat_interleave(2, 1)[:, ::2], "strides"),
    ],
)
def test_values_whose_form_differs_from_run_to_run_are_named_with_the_field(other, field):
    runs = 0

    def off(name):
        nonlocal runs
        runs += name == "add_0"
        return 0.0

    subject = made_up(chain(2), off, torch.zeros(2, 3))
    look = subject.call

    def call(values):
        inner = subject.code.look
        subject.code.look = lambda w, t: inner(
            w, [other(t[0]) if runs == 2 and w[0].node == "add_1" else t[0]]
        )
        return look(values)

    subject = dataclasses.replace(subject, call=call)
    first = accumulated(subject, silent)
    assert [(each["node"], each["field"]) for each in differing(subject, silent, first)] == [("add_1", field)]


def test_only_values_that_still_have_a_reader_are_held():
    graph = chain(50)
    names = [n.name for n in graph.graph.nodes if n.op == "call_function"]
    steps = EagerSteps(graph, [torch.zeros(4)], names)
    for name in names:
        assert float(steps.value(name)[0]) == names.index(name) + 1
        steps.done(name)
        assert len(steps.env) <= 2


@pytest.mark.parametrize("most, computed", [(1 << 20, 0), (5 * 16, 44), (0, 49)])
def test_a_second_run_goes_on_from_what_the_first_has_left(monkeypatch, most, computed):
    monkeypatch.setattr("torchsleuth.torch_core.compare.divergence.steps.MOST_REMEMBERED", most)
    graph = chain(50)
    names = [n.name for n in graph.graph.nodes if n.op == "call_function"]
    memory = EagerMemory()
    first = EagerSteps(graph, [torch.zeros(4)], names, memory=memory)
    for name in names[:-1]:
        first.value(name)
        first.done(name)
    assert memory.taken <= most
    ran = []
    second = EagerSteps(graph, [torch.zeros(4)], names, memory=memory)
    evaluate = second.run.run_node
    monkeypatch.setattr(second.run, "run_node", lambda node: ran.append(node.name) or evaluate(node))
    for name in names[:-1]:
        assert float(second.value(name)[0]) == names.index(name) + 1
        second.done(name)
        assert len(second.env) <= 2
    assert len(ran) == computed


@given(st.integers(0, 2**32 - 1), st.sets(st.integers(0, 11)))
def test_any_values_left_by_another_run_lead_to_the_same_ones(seed, left):
    graph, names = web(random.Random(seed), 12)
    x = torch.randn(4, generator=torch.Generator().manual_seed(seed % 1000))
    plain = EagerSteps(graph, [x], names)
    memory = EagerMemory({names[place]: plain.value(names[place]) for place in left})
    asked = random.Random(seed + 1).sample(names, len(names))
    steps = EagerSteps(graph, [x], names, memory=memory)
    for name in asked:
        assert torch.equal(steps.value(name), plain.value(name))
        steps.done(name)
    assert not steps.env.keys() - {next(iter(graph.graph.nodes))}


def web(choice, length):
    """Sums of values before them, whichever."""
    graph = torch.fx.Graph()
    values = [graph.placeholder("x")]
    for place in range(length):
        two = (choice.choice(values), choice.choice(values))
        values.append(graph.create_node("call_function", torch.add, two, name=f"add_{place}"))
    graph.output((values[-1],))
    return torch.fx.GraphModule(torch.nn.Module(), graph), [n.name for n in values[1:]]


def test_what_waits_too_long_is_let_go_and_said(monkeypatch):
    monkeypatch.setattr("torchsleuth.torch_core.compare.divergence.steps.MOST_WAITING", 1024)
    steps = EagerSteps(chain(4), [torch.zeros(1024)], ["add_0", "add_3"])
    assert float(steps.value("add_3")[0]) == 4.0
    assert steps.value("add_0") is None and steps.dropped == {"add_0"}


def test_a_graph_that_writes_what_it_has_read_is_run_in_its_order():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.create_node("call_function", torch.ops.aten.clone.default, (x,), name="y")
    z = graph.create_node("call_function", torch.ops.aten.sin.default, (y,), name="z")
    written = graph.create_node("call_function", torch.ops.aten.add_.Tensor, (y, 1), name="written")
    last = graph.create_node("call_function", operator.mul, (y, z), name="last")
    graph.output((last, written))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    assert writes_what_is_read(module)
    steps = EagerSteps(module, [torch.ones(2)], ["y", "last"])
    assert float(steps.value("last")[0]) == pytest.approx(2 * torch.ones(1).sin().item())
    assert float(steps.value("y")[0]) == 1.0


@pytest.mark.parametrize(
    "compiled, eager, made, lost",
    [
        ([1.0, NAN], [1.0, 2.0], 1, 0),
        ([1.0, 2.0], [1.0, NAN], 0, 1),
        ([INF, INF], [NAN, INF], 0, 1),
        ([-INF, NAN], [INF, NAN], 0, 1),
        ([NAN, INF], [NAN, INF], 0, 0),
    ],
)
def test_infinities_and_nan_are_counted_apart(compiled, eager, made, lost):
    c, e = torch.tensor(compiled), torch.tensor(eager)
    found = distance(c, e, e.double())
    assert (found.made, found.lost) == (made, lost)
    assert found.far == bool(made or lost)


def test_compiled_bfloat16_that_is_closer_to_the_truth_than_eager_is_not_far():
    truth = torch.randn(4096, dtype=torch.float64).cumsum(0)
    eager, compiled = (truth * 1.01).bfloat16(), truth.bfloat16()
    assert not distance(compiled, eager, truth).far
    assert distance((truth * 1.5).bfloat16(), compiled, truth).far


def test_whole_numbers_may_differ_only_where_rounding_decides():
    eager = torch.arange(100)
    assert not distance(eager, eager, eager).far
    assert distance(eager + 1, eager, eager).far


def test_a_checksum_tells_any_bit_and_any_order():
    a = torch.arange(7, dtype=torch.float32)
    b = a.clone()
    b[3] = torch.nextafter(b[3], torch.tensor(9.0))
    assert len({checksum(each) for each in (a, b, a.flip(0))}) == 3
    assert checksum(a) == checksum(a.clone())


def test_calls_that_are_wrong_only_with_what_comes_before_them_are_confirmed():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.placeholder("unused")
    made = graph.create_node("call_function", torch.ops.aten.sin.default, (x,), name="sin")
    last = graph.create_node("call_function", torch.ops.aten.exp.default, (made,), name="exp")
    later = graph.create_node("call_function", torch.ops.aten.cos.default, (last,), name="cos")
    graph.create_node("call_function", torch.ops.aten.copy_.default, (x, made), name="written")
    graph.output((later,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)

    inputs = [torch.ones(4), torch.ones(2)]

    def right(part, values):
        return lambda given: part(*given)

    def wrong(part, values):
        return lambda given: tuple(out + 1 for out in part(*given))

    part = Whole(module, inputs, Compilers(right)).beginning("exp")
    assert part.calls == ("sin", "exp", "written") and len(part.inputs) == 2

    told = Whole(module, inputs, Compilers(right, whole=wrong)).look_inside("exp", ["exp"])
    assert (told.diverges, told.node, told.how) == (True, "exp", "beginning")
    assert not Whole(module, inputs, Compilers(right, whole=right)).look_inside("exp", ["exp"]).diverges


def test_what_rounding_may_do_to_a_sum_is_told_by_its_terms():
    compiled, eager = torch.full((4,), 3e-8), torch.zeros(4)
    assert distance(compiled, eager, eager.double()).far
    assert not distance(compiled, eager, eager.double(), terms=1.0).far
    assert distance(compiled + 1e-3, eager, eager.double(), terms=1.0).far


def test_values_on_another_device_are_not_kept_for_the_next_run():
    memory = EagerMemory()
    steps = EagerSteps(chain(4), [torch.zeros(4, device="meta")], ["add_0", "add_3"], memory=memory)
    for name in ("add_0", "add_3"):
        assert steps.value(name).device.type == "meta"
        steps.done(name)
    assert not memory.values and memory.dtypes["add_3"] == torch.float32


def test_inputs_are_left_as_they_were_by_a_graph_that_writes_them():
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    changed = graph.create_node("call_function", torch.ops.aten.add_.Tensor, (x, y), name="changed")
    read = graph.create_node("call_function", torch.ops.aten.mul.Tensor, (changed, x), name="read")
    graph.output((read,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    inputs = [torch.ones(2), torch.full((2,), 3.0)]
    for steps in (
        EagerSteps(module, inputs, ["changed", "read"]),
        Float64Steps(module, inputs, ["changed", "read"], {}),
    ):
        assert steps.value("changed").tolist() == [4.0, 4.0]
        assert steps.value("read").tolist() == [16.0, 16.0]
    assert inputs[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("lowering_is_wrong", [True, False])
def test_values_too_large_to_be_returned_together_are_looked_at_one_by_one(monkeypatch, lowering_is_wrong):
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    names = ["sin", "exp", "cos", "tanh"]
    for name in names:
        value = graph.create_node("call_function", getattr(torch.ops.aten, name).default, (value,), name=name)
    graph.output((value,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    most = []

    def wrong(part, values):
        most.append(len(part.graph.output_node().args[0]))

        class Wrong(torch.fx.Interpreter):
            def run_node(self, n):
                return (
                    super().run_node(n) + (1 if n.name == "exp" else 0)
                    if n.op != "output"
                    else super().run_node(n)
                )

        return lambda given: Wrong(part).run(*given)

    def right(part, values):
        return lambda given: part(*given)

    monkeypatch.setattr("torchsleuth.torch_core.compare.divergence.parts.MOST_EXPOSED", 40)
    ways = Compilers(wrong, lowered=wrong if lowering_is_wrong else right)
    told = Whole(module, [torch.linspace(0, 1, 8)], ways).look_inside("tanh", names)
    assert (told.node, told.how) == ("exp", "lowered" if lowering_is_wrong else "beginnings")
    assert set(most) == {1}
