"""The small script: what a person would have written, that answers as the contract says."""

import ast
import contextlib
import operator
import os
import subprocess
import sys
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.core.cases.record import CompileSettings, Embedded
from torchsleuth.script_runtime.inputs import load_inputs
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.torch_core.repro.small import small_scripts
from torchsleuth.torch_core.repro.small_graph import SmallGraph, SmallInput
from torchsleuth.torch_core.repro.small_inputs import TooLarge, input_expression
from torchsleuth.torch_core.tensors import describe_inputs, describe_tensor

aten = torch.ops.aten
ERROR = Signature("compile_error", "compile", ("faults.Fault",), "no lowering for # things", ("a.py:die",))
WRONG = Signature("accuracy", "run", outputs=("outputs[0]",))
CRASH = Signature("crash", "run", signal="SIGSEGV")
HANG = Signature("hang", "compile")


def small(function, *values, signature=ERROR, level="dynamo", backend="inductor", keep=False, **more):
    graph = torch.fx.symbolic_trace(function)
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    specs = describe_inputs(list(values)).inputs
    inputs = tuple(SmallInput(n, s, v if keep else None) for n, s, v in zip(names, specs, values))
    embedded = more.pop("embedded", Embedded())
    settings = CompileSettings.from_json({"level": level, "backend": backend, **more})
    return SmallGraph(graph, inputs, settings, signature, embedded, case="0123abcd")


def first(graph):
    return next(small_scripts(graph)).text


def with_plain_inputs(graph):
    return [script for script in small_scripts(graph) if not script.random]


def function_of(text):
    """The function or graph `f` of a script, ready to be called."""
    scope = {}
    exec(text.partition('print("torchsleuth: compiling"')[0], scope)
    return scope["f"]


def test_the_one_part_of_a_tuple_that_is_read_is_taken_where_the_tuple_is_made():
    text = first(small(lambda x: (aten.sin.default(aten.var_mean.correction(x, [1])[1]),), torch.ones(2, 3)))
    assert "getitem = torch.var_mean(x, [1])[1]\n" in text
    both = first(small(lambda x: ((x + x)[0], torch.split(x, 1)), torch.ones(2, 3)))
    assert torch.equal(function_of(both)(torch.ones(2, 3))[0], torch.full((3,), 2.0))


def test_a_failure_before_a_backward_that_eager_has_none_of_is_shown_without_it():
    trained = torch.ones(2, requires_grad=True)
    text = first(small(lambda x: (x.sin(),), trained, state={"grad": True}))
    assert "torch.compile(f)(x).sum().backward()" in text
    alone = first(small(lambda x: (x.sin(),), trained, state={"grad": True}, forward_only=True))
    assert "torch.compile(f)(x)\n" in alone


def test_one_call_becomes_a_function_of_one_line_in_public_names():
    text = first(small(lambda arg0_1: (aten.relu.default(arg0_1),), torch.ones(2, 3)))
    assert "def f(x):\n    return torch.relu(x)\n" in text
    assert "x = torch.ones(2, 3)\n" in text
    assert "torch.compile(f)(x)" in text
    assert len(text.splitlines()) <= 25
    assert "import torchsleuth" not in text


def test_a_script_says_what_it_expects_in_a_literal():
    tree = ast.parse(first(small(lambda x: (aten.relu.default(x),), torch.ones(2))))
    found = next(n for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "EXPECTED")
    assert ast.literal_eval(found.value)["message"] == "no lowering for # things"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_function_computes_what_the_graph_computes(data):
    graph = torch.fx.Graph()
    nodes = [graph.placeholder("a"), graph.placeholder("b")]
    for _ in range(data.draw(st.integers(1, 6))):
        one, two = data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(nodes))
        call, args, kwargs = data.draw(
            st.sampled_from(
                [
                    (aten.add.Tensor, (one, two), {}),
                    (aten.sub.Tensor, (one, two), {"alpha": 2}),
                    (aten.mul.Tensor, (one, 0.5), {}),
                    (aten.sin.default, (one,), {}),
                    (aten.view.default, (one, [3, 3]), {}),
                    (aten.permute.default, (one, [1, 0]), {}),
                    (aten._softmax.default, (one, 1, False), {}),
                    (aten.cumsum.default, (one, 0), {}),
                    (aten.clone.default, (one,), {"memory_format": torch.contiguous_format}),
                    (aten.where.self, (aten_gt(graph, one), one, two), {}),
                    (aten.addmm.default, (one, two, one), {}),
                ]
            )
        )
        nodes.append(graph.call_function(call, args, kwargs))
    graph.output(tuple(nodes[-data.draw(st.integers(1, 2)) :]))
    graph.eliminate_dead_code()
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    values = [torch.arange(9.0).view(3, 3) / 7, torch.ones(3, 3)]
    inputs = tuple(SmallInput(n, describe_tensor(v)) for n, v in zip("ab", values))
    for script in small_scripts(SmallGraph(gm, inputs, CompileSettings(), ERROR)):
        got = function_of(script.text)(*values)
        for ours, theirs in zip(got if isinstance(got, tuple) else (got,), gm(*values)):
            torch.testing.assert_close(ours, theirs)


def aten_gt(graph, node):
    return graph.call_function(aten.gt.Scalar, (node, 0.5))


@pytest.mark.parametrize(
    ("value", "keep", "text"),
    [
        (torch.ones(2, 3), False, "torch.randn(2, 3)"),
        (torch.zeros(2), True, "torch.zeros(2)"),
        (torch.full((2,), 7.5), True, "torch.full((2,), 7.5)"),
        (torch.tensor(357.5), True, "torch.tensor(357.5)"),
        (torch.ones(4, dtype=torch.int64), False, "torch.zeros(4, dtype=torch.int64)"),
        (torch.tensor([1, 2]), True, "torch.tensor([1, 2])"),
        (torch.ones(4, dtype=torch.uint8), True, "torch.ones(4, dtype=torch.uint8)"),
        (torch.full((9, 9), 7), True, "torch.full((9, 9), 7, dtype=torch.int64)"),
        (torch.ones(4, dtype=torch.complex64), True, "torch.ones(4, dtype=torch.complex64)"),
        (-torch.zeros(4), True, "torch.full((4,), -0.0)"),
        (torch.tensor([0.0, -0.0]), True, "torch.tensor([0.0, -0.0])"),
        (torch.zeros(0), True, "torch.zeros(0)"),
        (torch.ones(2, 3).t(), False, "torch.randn(6).as_strided((3, 2), (1, 3))"),
        (torch.ones((), dtype=torch.bfloat16), False, "torch.randn((), dtype=torch.bfloat16)"),
        (torch.ones(2, requires_grad=True), False, "torch.randn(2, requires_grad=True)"),
    ],
)
def test_inputs_are_written_as_a_person_would(value, keep, text):
    written, _ = input_expression(describe_tensor(value), value if keep else None, True)
    assert written == text
    made = eval(written)
    assert (made.shape, made.stride(), made.dtype) == (value.shape, value.stride(), value.dtype)
    assert not keep or (made.tolist(), str(made.tolist())) == (value.tolist(), str(value.tolist()))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-torch.full((2,), nan), "torch.full((2,), nan)"),
        (torch.tensor([0.0, 1.0]) / 0, "torch.tensor([nan, inf])"),  # on most machines a NaN with a sign
    ],
)
def test_not_a_number_is_written_as_such_whatever_its_bits(value, text):
    assert input_expression(describe_tensor(value), value, True)[0] == text
    script = next(small_scripts(small(lambda x: (aten.abs.default(x),), value, keep=True)))
    assert f"x = {text}" in script.text and "from math import" in script.text


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(100),
        torch.randn(30, 40),
        torch.randn(30, 40).t(),
        torch.randn(2, 50, 3)[:, 5:, 1:],
        torch.randn(80, dtype=torch.bfloat16),
        torch.arange(5000).view(50, 100),
        torch.randn(70) > 0,
        torch.randn(70, requires_grad=True),
    ],
)
def test_values_that_matter_and_are_many_come_as_packed_bytes_or_a_file_beside_the_script(value, tmp_path):
    with pytest.raises(TooLarge):
        input_expression(describe_tensor(value), value, True)
    script = next(small_scripts(small(lambda x: (aten.abs.default(x),), value, keep=True)))
    for name, data in script.files.items():
        (tmp_path / name).write_bytes(data)
    head = script.text.partition('print("torchsleuth: compiling"')[0]
    scope = {"__file__": str(tmp_path / "repro.py")}
    exec(head, scope)
    made = scope["x"]
    assert torch.equal(made, value)
    assert (made.dtype, made.stride(), made.requires_grad) == (
        value.dtype,
        value.stride(),
        value.requires_grad,
    )
    assert bool(script.files) == (script.input_bytes > 2048)


def test_a_graph_for_the_inner_compiler_is_traced_or_built_node_by_node():
    graph = small(lambda x: (aten.relu.default(x),), torch.ones(2), level="aot")
    traced, built = with_plain_inputs(graph)
    assert (traced.form, built.form) == ("graph", "nodes")
    assert "compile_fx_inner(graph, fakes)" in traced.text
    assert "return (relu_default,)" in traced.text
    assert "relu_default = graph.call_function(torch.ops.aten.relu.default, (x,))\n" in built.text
    assert "compile_fx_inner(f, fakes)" in built.text


def test_of_a_search_that_was_cut_short_a_whole_compile_is_tried_first():
    graph = small(lambda x: (aten.relu.default(x),), torch.ones(2), level="aot")
    forms = {script.form: script.text for script in small_scripts(graph, untried=True)}
    assert list(forms) == ["function", "operators", "graph", "nodes"]
    assert "torch.compile(f)(x)" in forms["function"]


def test_a_backward_graph_is_handed_to_the_inner_compiler_as_one():
    told = {"is_backward": True, "cudagraphs": False, "static_input_idxs": [0]}
    graph = small(lambda x: (aten.exp.default(x),), torch.ones(2), level="aot", compile_kwargs=told)
    traced, built = with_plain_inputs(graph)
    assert "compile_fx_inner(graph, fakes, is_backward=True)" in traced.text
    assert "compile_fx_inner(f, fakes, is_backward=True, static_input_idxs=[0])" in built.text


def run(text, folder):
    path = folder / "repro.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout.strip().splitlines()[-1] if done.stdout else "", done.stderr


BACKEND = """
def backend(graph, inputs):
    if any(node.target is torch.relu for node in graph.graph.nodes):
        raise ValueError("no relu here")
    return graph.forward
"""


def test_a_script_with_the_users_backend_reproduces_and_tells_other_failures(tmp_path):
    wanted = Signature("compile_error", "compile", ("ValueError",), "no relu here", ("x.py:backend",))
    graph = small(
        lambda x: (torch.relu(x),),
        torch.ones(2),
        signature=wanted,
        backend="backend",
        embedded=Embedded(BACKEND),
    )
    code, last, errors = run(first(graph), tmp_path)
    assert (code, last) == (1, "REPRODUCED: ValueError: no relu here")
    assert "torchsleuth: compiling" in errors
    code, last, _ = run(first(graph).replace('("no relu here")', '("no relu today")'), tmp_path)
    assert code == 2
    assert last.startswith("DIFFERENT FAILURE: ")


@pytest.mark.slow
@pytest.mark.parametrize("signature", [ERROR, WRONG, CRASH])
def test_a_healthy_compiler_does_not_reproduce(signature, tmp_path):
    graph = small(lambda x: (aten.relu.default(x),), torch.ones(2), signature=signature)
    code, last, errors = run(first(graph), tmp_path)
    assert (code, last) == (0, "NOT REPRODUCED")
    assert ("torchsleuth: running" in errors) == (signature is CRASH)


def adds_to_first(x, y):
    aten.copy_.default(x, aten.add.Tensor(x, y))
    return (aten.sin.default(y),)


def writes_to_a_view(x, y):
    x.view(4)[:2].add_(1)
    torch.relu_(y)
    return ()


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (adds_to_first, "[f(x, y), x], [torch.compile(f)(x_too, y), x_too]"),
        (writes_to_a_view, "[*f(x, y), x, y], [*torch.compile(f)(x_too, y_too), x_too, y_too]"),
    ],
)
def test_inputs_that_a_run_changes_are_compared_and_each_run_has_its_own(function, called):
    text = first(small(function, torch.ones(2, 2), torch.ones(2, 2), signature=WRONG))
    assert f"wanted, got = {called}" in text
    assert function is not adds_to_first or "\n    x.copy_(add_tensor)\n" in text
    body = text.partition('print("torchsleuth: compiling"')
    for compiled, differs in (("f", False), ("lambda *given: (f(*given), given[0].add_(1))[0]", True)):
        script = (
            body[0] + body[2].replace("torch.compile(f)", f"({compiled})").partition(", file=sys.stderr)")[2]
        )
        with pytest.raises(SystemExit) if differs else contextlib.nullcontext():
            exec(script, {})


def test_inputs_that_no_run_changes_are_given_to_both():
    text = first(small(lambda x: (aten.add.Tensor(x, 1),), torch.ones(2), signature=WRONG))
    assert "wanted, got = f(x), torch.compile(f)(x)" in text


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (("s0", "64"), "torch._dynamo.mark_dynamic(x, 0)\n"),
        (("64", "s0 + 1"), "torch._dynamo.mark_dynamic(x, 1)\n"),
        (("s0", "1"), "torch.compile(f, dynamic=True)(x)"),
        (("s0", "s1"), "torch.compile(f, dynamic=True)(x)"),
    ],
)
def test_sizes_that_change_are_marked_where_others_must_not(sizes, said):
    graph = small(lambda x: (aten.relu.default(x),), torch.ones(2, 2))
    (given,) = graph.inputs
    given = replace(given, spec=replace(given.spec, shape_expr=sizes))
    text = first(replace(graph, inputs=(given,), dynamic=True))
    assert said in text
    assert ("mark_dynamic" in text) != ("dynamic=True" in text)


OWN_OPERATOR = """
@torch.library.custom_op("smallown::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2
"""


def test_a_custom_operator_is_pasted_only_where_the_graph_calls_it():
    exec(OWN_OPERATOR, {"torch": torch})
    pasted = Embedded(OWN_OPERATOR, ("import torch",))
    one = small(lambda x: (torch.ops.smallown.half.default(x),), torch.ones(2), embedded=pasted)
    other = small(lambda x: (aten.cos.default(x),), torch.ones(2), embedded=pasted)
    assert "custom_op" in first(one)
    assert "custom_op" not in first(other)


@pytest.mark.parametrize("level", ["dynamo", "aot"])
def test_numbers_without_a_literal_are_imported_in_every_form(level):
    value = torch.tensor([float("nan"), float("inf")])
    graph = small(
        lambda x: (aten.clamp.default(x, None, float("inf")),), value, signature=WRONG, level=level, keep=True
    )
    scripts = list(small_scripts(graph))
    assert scripts[-1].form == "nodes"
    for script in scripts:
        (got,) = torch.utils._pytree.tree_leaves(function_of(script.text)(value))
        assert torch.equal(got.isnan(), value.isnan())


def holding():
    """A graph that holds a tensor and a graph of its own, and one call that nobody reads."""
    inner = torch.fx.symbolic_trace(lambda a: (torch.cos(a),))
    graph = torch.fx.Graph()
    x, shift, branch = graph.placeholder("a"), graph.get_attr("shift"), graph.get_attr("branch")
    graph.call_function(aten._efficientzerotensor.default, ([2],))
    chosen = graph.call_function(torch.ops.higher_order.cond, (True, branch, branch, (x,)))
    first = graph.call_function(operator.getitem, (chosen, 0))
    graph.output((graph.call_function(aten.add.Tensor, (first, shift)),))
    return torch.fx.GraphModule({"shift": torch.tensor([1.0, -inf]), "branch": inner}, graph)


@pytest.mark.parametrize("level", ["dynamo", "aot"])
def test_a_graph_with_tensors_and_graphs_inside_is_built_with_them(level):
    graph = holding()
    given = SmallInput("a", describe_tensor(torch.ones(2)))
    (script,) = with_plain_inputs(SmallGraph(graph, (given,), CompileSettings(level=level), ERROR))
    made = function_of(script.text)
    assert [n.target for n in made.graph.nodes] == [
        n.target if n.op != "placeholder" else "x" for n in graph.graph.nodes
    ]
    x = torch.tensor([0.25, 0.5])
    assert torch.equal(made(x)[0], graph(x)[0])
    assert len(script.text.splitlines()) <= 55


def answers_without_the_compiler(text, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    with torch._dynamo.config.patch(disable=True), contextlib.suppress(SystemExit):
        exec(text, {"__name__": "__main__"})
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("signature", [ERROR, WRONG, CRASH])
@pytest.mark.parametrize("level", ["dynamo", "aot"])
def test_every_form_passes_without_the_compiler(signature, level, monkeypatch, capsys):
    graph = small(lambda x, y: (aten.mm.default(x, y),), torch.ones(2, 2), torch.ones(2, 2), level=level)
    for script in small_scripts(replace(graph, signature=signature)):
        assert answers_without_the_compiler(script.text, monkeypatch, capsys) == "NOT REPRODUCED"


def test_a_function_that_fails_without_the_compiler_says_so(monkeypatch, capsys):
    graph = small(lambda x: (aten.view.default(x, [7]),), torch.ones(6))
    said = answers_without_the_compiler(first(graph), monkeypatch, capsys)
    assert said.startswith("DIFFERENT FAILURE: RuntimeError: shape")


def test_the_modes_of_the_failing_call_stand_around_it():
    state = {"grad": False, "inference_mode": False, "autocast": {"cpu": "torch.bfloat16"}}
    text = first(small(lambda x: (aten.sin.default(x),), torch.ones(2, requires_grad=True), state=state))
    assert (
        "with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):\n        torch.compile(f)(x)"
        in text
    )


def test_random_numbers_are_drawn_alike_by_both_runs():
    text = first(small(lambda x: (aten.bernoulli.p(x, 0.5),), torch.ones(64), signature=WRONG))
    assert "torch._inductor.config.fallback_random = True" in text
    body = text.partition('print("torchsleuth: compiling"')
    scope = {}
    exec(body[0] + body[2].partition(", file=sys.stderr)")[2].replace("torch.compile(f)", "f"), scope)
    assert torch.equal(scope["wanted"], scope["got"]) and 0 < scope["got"].sum() < 64


def test_a_crash_in_the_users_backend_is_told_from_one_while_compiling():
    graph = small(
        lambda x: (torch.relu(x),),
        torch.ones(2),
        signature=CRASH,
        backend="backend",
        embedded=Embedded(BACKEND),
    )
    text = first(graph)
    assert "compiled = backend(graph, inputs)" in text and "backend=telling" in text


class Doubled(torch.autograd.Function):
    """The identity, with twice its gradient: what a compiler may get wrong without a trace in the result."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@pytest.mark.parametrize(("compiled", "status"), [("f", 0), ("lambda *a: Doubled.apply(f(*a))", 1)])
def test_a_wrong_gradient_is_a_wrong_result(compiled, status):
    value = torch.tensor([0.5, 0.25], requires_grad=True)
    text = first(small(lambda x: (aten.sin.default(x),), value, signature=WRONG, keep=True))
    scope = {"Doubled": Doubled}
    with pytest.raises(SystemExit) if status else contextlib.nullcontext():
        exec(text.replace("torch.compile(f)", compiled), scope)
    assert len(scope["got"]) == 2


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_compile_that_needs_gradients_is_led_to_its_backward(outputs):
    value = torch.ones(2, requires_grad=True)
    text = first(small(lambda x: (aten.sin.default(x), aten.gt.Scalar(x, 0))[:outputs], value))
    exec(text.replace("torch.compile(f)", "f"), scope := {})
    assert scope["x"].grad is not None


def writes_into_first(x, y):
    aten.copy_.default(x, aten.add.Tensor(y, 1))
    return (aten.sin.default(y),)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("compiled", "status"), [("f", 0), ("lambda x, y: f(x.clone(), y)", 1)])
def test_inputs_that_share_memory_share_it_in_both_runs(keep, compiled, status):
    memory = torch.arange(6.0)
    text = first(small(writes_into_first, memory[1:4], memory[2:5], signature=WRONG, keep=keep))
    scope = {}
    with pytest.raises(SystemExit) if status else contextlib.nullcontext():
        exec(text.replace("torch.compile(f)", f"({compiled})"), scope)
    assert scope["x"].untyped_storage().data_ptr() == scope["y"].untyped_storage().data_ptr()
    assert (scope["x"].storage_offset(), scope["y"].storage_offset()) == (1, 2)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("compiled", "status"), [("f", 0), ("lambda x, y: f(x.clone(), y)", 1)])
def test_inputs_of_two_dtypes_share_one_memory(keep, compiled, status):
    """As a function has them that writes to a tensor and reads it through a view of another dtype."""
    memory = torch.zeros(6, dtype=torch.int64)

    def writes(x, y):
        aten.fill_.Scalar(x, 7)
        return (aten.clone.default(y),)

    given = small(writes, memory[:3], memory.view(torch.int32)[2:8], signature=WRONG, keep=keep)
    text, scope = first(given), {}
    with pytest.raises(SystemExit) if status else contextlib.nullcontext():
        exec(text.replace("torch.compile(f)", f"({compiled})"), scope)
    assert scope["x"].untyped_storage().data_ptr() == scope["y"].untyped_storage().data_ptr()
    assert (scope["x"].dtype, scope["y"].dtype) == (torch.int64, torch.int32)
    assert "torch.compile(f)" in text and scope["y"].storage_offset() == 2


def test_a_gradient_that_is_lost_is_a_wrong_result(monkeypatch, capsys):
    """Nothing is compared with what is not there: the results alone agree."""
    value = torch.ones(5, requires_grad=True)
    text = first(small(lambda x: (aten.sin.default(x), aten.cos.default(x.detach())), value, signature=WRONG))
    lost = text.replace("torch.compile(f)", "(lambda x: [out.detach() for out in f(x)])")
    with pytest.raises(SystemExit) as ended:
        exec(lost, {})
    assert ended.value.code == 1 and "REPRODUCED: wrong result" in capsys.readouterr().out


@pytest.mark.parametrize(("compiled", "status"), [("f", 0), ("lambda *a: Doubled.apply(f(*a))", 1)])
def test_an_input_that_the_program_computed_may_be_changed_and_has_a_gradient(compiled, status, capsys):
    """As that of a second graph has, after a graph break."""
    computed = torch.ones(5, requires_grad=True).clone()
    text = first(small(lambda x: (aten.sin.default(x.mul_(2)),), computed, signature=WRONG))
    with pytest.raises(SystemExit) if status else contextlib.nullcontext():
        exec(text.replace("torch.compile(f)", f"({compiled})"), {"Doubled": Doubled})
    assert ("NOT REPRODUCED" in capsys.readouterr().out) is (status == 0)


def test_no_gradient_and_one_of_zeros_are_the_same(capsys):
    value = torch.ones(5, requires_grad=True)
    text = first(
        small(lambda x, y: (aten.sin.default(x),), value, value.detach().requires_grad_(), signature=WRONG)
    )
    zeros = text.replace("torch.compile(f)", "(lambda x, y: f(x + 0 * y, y))")
    exec(zeros, {})
    assert capsys.readouterr().out.endswith("NOT REPRODUCED\n")


def adds_and_reads(x):
    x.add_(1)
    return (torch.as_strided_copy(x, (3,), (2,)),)


@pytest.mark.parametrize("level", ["dynamo", "aot"])
@pytest.mark.parametrize("value", [torch.arange(10.0)[::2], torch.arange(6.0).view(2, 3).t()])
def test_a_changed_input_has_its_strides_in_both_runs(value, level, monkeypatch, capsys):
    graph = small(adds_and_reads, value, signature=WRONG, level=level, keep=True)
    for script in small_scripts(graph, untried=True):
        assert answers_without_the_compiler(script.text, monkeypatch, capsys) == "NOT REPRODUCED"


def test_an_input_that_is_given_twice_and_changed_is_one_in_both_runs():
    x = torch.ones(2)
    text = first(small(lambda a, b: (torch.relu(a.add_(1) + b),), x, x, signature=WRONG))
    exec(text.replace("torch.compile(f)", "f"), scope := {})
    assert scope["x_too"] is scope["y_too"] is not scope["x"]


@pytest.mark.parametrize(
    "value",
    [torch.arange(6.0).view(2, 3).t().requires_grad_(), torch.arange(8.0)[::2].requires_grad_()],
)
def test_a_step_of_training_begins_with_the_same_strides_twice(value):
    graph = small(lambda x: (torch.as_strided_copy(x * 1, (3,), (1,)),), value, signature=WRONG, keep=True)
    seen = []
    exec(
        first(graph).replace("torch.compile(f)", "lambda x: (seen.append(x.stride()), f(x))[1]"),
        {"seen": seen},
    )
    assert seen == [value.stride()]


@pytest.mark.parametrize("compiled", ["f(*a).double()", "f(*a)[:1]"])
@pytest.mark.parametrize("function", [lambda x: (torch.abs(x),), lambda x: (torch.abs(x), torch.abs(x))])
def test_another_dtype_or_shape_is_a_wrong_result(compiled, function, capsys):
    graph = small(function, torch.ones(2, dtype=torch.half), signature=WRONG)
    if not graph.returns_one:
        compiled = f"tuple(one{compiled.removeprefix('f(*a)')} for one in f(*a))"
    with pytest.raises(SystemExit):
        exec(first(graph).replace("torch.compile(f)", f"(lambda *a: {compiled})"), {})
    assert capsys.readouterr().out.startswith("REPRODUCED: ")


def test_results_that_are_no_tensors_are_not_compared_as_such(monkeypatch, capsys):
    graph = small(lambda x: (torch.abs(x), None), torch.ones(2), signature=WRONG)
    for script in small_scripts(graph):
        assert answers_without_the_compiler(script.text, monkeypatch, capsys) == "NOT REPRODUCED"


def test_what_eager_refuses_for_ones_is_also_written_with_random_inputs(monkeypatch, capsys):
    graph = small(lambda x: (torch.linalg.inv(x),), torch.ones(3, 3))
    said = {
        (script.form, script.random): answers_without_the_compiler(script.text, monkeypatch, capsys)
        for script in small_scripts(graph)
    }
    assert said["function", False].startswith("DIFFERENT FAILURE")
    assert said["function", True] == said["nodes", True] == "NOT REPRODUCED"


def test_a_wrong_result_is_also_written_with_the_numbers_of_the_search():
    """Which of some numbers is the greatest depends on all: with others a wrong argmax may be right."""
    value = torch.rand(2, 3).t()
    graph = small(lambda x: (torch.argmax(x),), value, signature=WRONG)
    plain, drawn = [s.text for s in small_scripts(graph) if s.form == "function"]
    assert "torch.randn(" in plain and "torch.randn(" not in drawn
    scope = {}
    exec(drawn.partition('print("torchsleuth: compiling"')[0], scope)
    in_trials = load_inputs(describe_inputs([value]).to_json())[0]
    assert torch.equal(scope["x"], in_trials) and scope["x"].stride() == in_trials.stride()


@pytest.mark.parametrize("kept", [True, False])
def test_the_script_of_a_wrong_result_on_a_device_is_written_where_none_is_to_be_seen(kept):
    """The search host is shown no device, so it cannot make a tensor there."""
    graph = small(lambda x, n: (torch.relu(x) + n,), torch.rand(3), torch.rand(2, 2), signature=WRONG)
    first, second = (replace(given, spec=replace(given.spec, device="cuda:7")) for given in graph.inputs)
    first = replace(first, value=torch.rand(3))
    second = replace(second, value=torch.rand(2, 2)) if kept else graph.inputs[1]
    texts = [script.text for script in small_scripts(replace(graph, inputs=(first, second)))]
    assert texts and all("cuda:7')" in text for text in texts)


def test_many_numbers_are_not_written_for_a_wrong_result():
    graph = small(lambda x: (torch.argmax(x),), torch.rand(200), signature=WRONG)
    assert all("torch.tensor(" not in script.text for script in small_scripts(graph))


def test_a_body_of_pythons_own_operators_stands_alone(monkeypatch, capsys):
    def function(x, y):
        kept = operator.iadd(x, y)
        return (operator.matmul(kept, y),)

    graph = small(function, torch.ones(2, 2), torch.ones(2, 2), signature=WRONG)
    for script in small_scripts(graph):
        assert answers_without_the_compiler(script.text, monkeypatch, capsys) == "NOT REPRODUCED"


def test_what_was_compiled_for_other_inputs_is_compiled_for_them_first():
    memory = torch.arange(6.0)
    given = small(writes_into_first, memory[1:4], memory[2:5], signature=WRONG, parted=True)
    assert [script.form for script in with_plain_inputs(given)] == ["function", "operators"]
    calls = []
    scope = {"spy": lambda f: lambda *a: calls.append([t.untyped_storage().data_ptr() for t in a]) or f(*a)}
    exec(first(given).replace("torch.compile(f)", "spy(f)"), scope)
    (one, other), (shared, too) = calls
    assert one != other and shared == too


def test_an_input_that_is_given_twice_is_one():
    x = torch.ones(2)
    assert "\ny = x\n" in first(small(lambda a, b: (aten.add.Tensor(a, b),), x, x))


@pytest.mark.slow
@pytest.mark.parametrize(("level", "form"), [("dynamo", "nodes"), ("aot", "graph"), ("aot", "nodes")])
def test_a_graph_by_itself_is_compiled_and_run_with_sizes_that_change(level, form, capsys):
    def function(s0, x):
        return (aten.view.default(aten.sin.default(x), [s0 * 3]), aten.cos.default(x))

    graph = small(function, 4, torch.ones(4, 3), signature=WRONG, level=level)
    number, tensor = graph.inputs
    number = replace(number, spec=replace(number.spec, kind="symint", expr="s0"))
    tensor = replace(tensor, spec=replace(tensor.spec, shape_expr=("s0", "3")))
    script = next(
        each
        for each in small_scripts(replace(graph, inputs=(number, tensor), dynamic=True))
        if each.form == form
    )
    exec(script.text, {"__name__": "__main__"})
    assert capsys.readouterr().out == "NOT REPRODUCED\n"
    assert form == "graph" or "fakes[0] = fakes[1].shape[0]" in script.text


@pytest.mark.parametrize(
    ("compiled", "said"),
    [("any(n for n in iter(int, 1))", "REPRODUCED: hang while compiling"), ("f", "NOT REPRODUCED")],
)
def test_a_script_of_a_hang_ends_by_itself_after_the_clock_of_the_search(compiled, said, tmp_path):
    graph = replace(small(lambda x: (x.sin(),), torch.ones(2), signature=HANG), hung_after=1)
    script = tmp_path / "repro.py"
    script.write_text(first(graph).replace("torch.compile(f)", compiled))
    ended = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=100)
    assert ended.stdout.splitlines()[-1] == said and ended.returncode == (said != "NOT REPRODUCED")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [("2 ** calls / 1000", "REPRODUCED: hang while compiling"), ("calls / 5", "NOT REPRODUCED")],
)
def test_a_script_of_seconds_that_explode_compares_all_calls_with_half_of_them(seconds, said, tmp_path):
    def chain(x):
        for _ in range(11):
            x = x + x
        return (x,)

    graph = replace(small(chain, torch.ones(2), signature=HANG), hung_after=30, grows=True)
    compiler = f"""\
def slow(graph):  # stands in for torch.compile
    calls = sum(node.op == "call_function" for node in graph.graph.nodes)
    until = time.process_time() + {seconds}
    while time.process_time() < until:
        pass
    return graph


def seconds("""
    script = tmp_path / "repro.py"
    text = first(graph).replace("torch.compile(graph)", "slow(graph)").replace("def seconds(", compiler)
    script.write_text(text)
    ended = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=100)
    assert ended.stdout.splitlines()[-1] == said, ended.stdout
    assert "compiling half of its calls takes" in ended.stdout


def test_a_script_of_seconds_that_explode_passes_without_the_compiler(tmp_path):
    graph = replace(small(lambda x: (x.sin().cos().sin().cos(),), torch.ones(2), signature=HANG), grows=True)
    script = tmp_path / "repro.py"
    script.write_text(first(graph))
    environment = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}
    ended = subprocess.run(
        [sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True, timeout=100
    )
    assert ended.stdout.splitlines()[-1] == "NOT REPRODUCED" and ended.returncode == 0


@pytest.mark.parametrize("sanitized", [True, False])
def test_a_script_of_an_access_out_of_range_builds_its_code_with_sanitizers(sanitized):
    """It starts itself again with their library; whoever runs it types nothing more."""
    graph = small(lambda x: (torch.sin(x),), torch.ones(3), signature=CRASH, sanitized=sanitized)
    for script in small_scripts(graph):
        assert ("-fsanitize=address,undefined" in script.text) is sanitized
        assert ("os.execve(sys.executable" in script.text) is sanitized
