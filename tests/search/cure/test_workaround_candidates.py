"""Which workarounds are worth trying, and the lines they come with; nothing is compiled here."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.core.cases.model import Triage
from torchsleuth.core.change_table import BACKEND, CAUTIOUS
from torchsleuth.core.changes import Change
from torchsleuth.search.cure.candidates import About, Suspects, candidates_for
from torchsleuth.torch_core.graphs.source_line import SourceLine

INDUCTOR = "torch._inductor.config"


def line(module="", function="forward", number=10, call="", file="/home/me/model.py", code="y = f(x)"):
    return SourceLine(file, number, function, code, module, call)


def about(calls=("mm", "relu", "add"), **changes):
    return About(**{"kind": "compile_error", "backend": "inductor", "calls": tuple(calls), **changes})


def named(found, start):
    return [each for each in found if each.name.startswith(start)]


def test_another_backend_is_always_among_them():
    assert candidates_for(about()) == [Change(backend="aot_eager")]


def test_a_custom_backend_is_replaced_by_inductor_first():
    found = candidates_for(about(backend="mine"))
    assert [c.backend for c in found] == ["inductor", "aot_eager"]


def test_the_operator_at_fault_is_kept_eager_with_lines_that_name_it():
    found = candidates_for(about(suspects=Suspects(ops=("aten.relu.default",))))
    (fallback,) = named(found, "aten.relu.default kept eager")
    assert fallback.how.splitlines() == [
        "from torch._inductor.graph import make_fallback",
        "make_fallback(torch.ops.aten.relu.default, warn=False, override_decomp=True)",
        "torch.compiler.config.cache_key_tag += 'aten.relu.default kept eager; '",
    ]
    assert fallback == Change(off={"lowerings": {"names": ["aten.relu.default"]}})


def test_of_two_operators_each_is_tried_alone_and_then_both():
    found = candidates_for(about(suspects=Suspects(ops=("aten.exp.default", "aten.sum.dim_IntList"))))
    assert [c.off["lowerings"]["names"] for c in found if c.off] == [
        ["aten.exp.default"],
        ["aten.sum.dim_IntList"],
        ["aten.exp.default", "aten.sum.dim_IntList"],
    ]


def test_functions_of_a_captured_graph_are_no_operators_to_fall_back_to():
    found = candidates_for(about(suspects=Suspects(ops=("torch.relu", "operator.getitem"))))
    assert all(not c.off for c in found)


def test_a_bad_decomposition_is_taken_out_of_the_table():
    triage = Triage(
        component="decompositions", subsystem="decomposition", ops=("aten.exp.default",), pinned=True
    )
    (only, *_) = candidates_for(about(triage=triage, suspects=Suspects(ops=("aten.exp.default",))))
    assert only.off["decomposition"] == {"names": ["aten.exp.default"]} and only.for_programs
    assert "decompositions.pop(torch.ops.aten.exp.default, None)" in only.how


def test_settings_that_triage_saw_to_help_go_together():
    flags = (f"{INDUCTOR}.max_fusion_size = 1", f"{INDUCTOR}.cpp.simdlen = 1")
    (both, *_) = candidates_for(about(triage=Triage(component="inductor", flags=flags, pinned=True)))
    assert both.how == "\n".join(flags)
    assert both.config == {INDUCTOR: {"max_fusion_size": "1", "cpp.simdlen": "1"}}
    assert both.disables == "fusion of kernels and vectorised C++ code"


def test_settings_of_the_users_own_that_the_failure_needs_go_back_to_their_defaults_one_by_one():
    found = candidates_for(
        about(
            triage=Triage(component="inductor", flags=(f"{INDUCTOR}.freezing", "options.max_autotune")),
            settings={INDUCTOR: {"freezing": "True", "max_autotune": "True"}},
            defaults={INDUCTOR: {"freezing": "False", "max_autotune": "False"}},
        )
    )
    assert [c.how for c in named(found, "setting")] == [
        f"{INDUCTOR}.freezing = False",
        f"{INDUCTOR}.max_autotune = False",
    ]
    (plain,) = named(found, "default settings")
    assert plain.config == {INDUCTOR: {"freezing": "False", "max_autotune": "False"}}


def test_a_named_pass_is_disabled_beside_those_that_are_disabled_already():
    triage = Triage(component="inductor", part="b2b_gemm", subsystem="post_grad_passes", pinned=True)
    found = candidates_for(about(triage=triage, settings={INDUCTOR: {"disabled_passes": "'other'"}}))
    assert found[0].how == f"{INDUCTOR}.disabled_passes = 'other,b2b_gemm'"


@pytest.mark.parametrize(
    ("kind", "low", "tried"),
    [("accuracy", True, True), ("accuracy", False, False), ("compile_error", True, False)],
)
def test_precision_casts_are_emulated_where_numbers_of_few_bits_are_wrong(kind, low, tried):
    found = candidates_for(about(kind=kind, low_precision=low))
    assert (CAUTIOUS[0].how in [c.how for c in found]) is tried


def test_the_module_at_fault_is_left_eager_by_its_path():
    lines = {"mm": line("fc1"), "relu": line("layers.3.act"), "add": line("fc2")}
    found = candidates_for(about(suspects=Suspects((), ("relu",), ("relu",)), lines=lines))
    (module,) = named(found, "module")
    expected = "model.layers[3].act.forward = torch.compiler.disable(model.layers[3].act.forward)"
    assert module.how.startswith(expected)
    assert module.eager_nodes == {"relu"} and module.modules == ("layers.3.act",)


def test_where_every_module_of_a_class_may_fail_the_class_is_left_eager_in_one_line():
    lines = {
        "relu": line("1", call="nn.ReLU"),
        "mm": line("2", call="nn.Linear"),
        "relu_1": line("3", call="nn.ReLU"),
    }
    suspects = Suspects(("aten.relu.default",), ("relu",), ("relu", "relu_1"))
    found = candidates_for(about(("relu", "mm", "relu_1"), suspects=suspects, lines=lines))
    assert [c.eager_nodes for c in named(found, "module")] == [{"relu"}, {"relu", "relu_1"}]
    (every,) = named(found, "every nn.ReLU")
    assert every.how == "torch.nn.ReLU.forward = torch.compiler.disable(torch.nn.ReLU.forward)"
    assert every.eager_nodes == {"relu", "relu_1"}


def test_the_function_at_fault_is_left_eager_with_all_its_nodes():
    lines = {"mm": line(), "relu": line(function="act", number=3), "add": line(function="act", number=4)}
    found = candidates_for(about(suspects=Suspects((), ("relu",), ("relu",)), lines=lines))
    (function,) = named(found, "function act eager")
    assert function.how == "@torch.compiler.disable  # above `def act` in model.py"
    assert function.eager_nodes == {"relu", "add"}
    assert function.functions == (("/home/me/model.py", "act", 3),)


def test_a_function_that_is_the_whole_graph_is_not_left_eager():
    lines = {name: line(function="act") for name in ("mm", "relu", "add")}
    found = candidates_for(about(suspects=Suspects((), ("relu",), ("relu",)), lines=lines))
    assert not named(found, "function")


def test_nobody_is_told_to_edit_an_installed_package():
    library = "/usr/lib/python3/site-packages/transformers/llama.py"
    lines = {"mm": line(), "relu": line(function="act", file=library)}
    found = candidates_for(about(suspects=Suspects((), ("relu",), ("relu",)), lines=lines))
    assert not named(found, "function") and not named(found, "graph break")


def test_the_rest_of_a_function_after_a_graph_break_is_that_function():
    lines = {"mm": line(), "relu": line(function="torch_dynamo_resume_in_act_at_12")}
    found = candidates_for(about(suspects=Suspects((), ("relu",), ("relu",)), lines=lines))
    assert named(found, "function act eager")


@pytest.mark.parametrize(("backward", "second_half"), [(False, "relu"), (True, "add")])
def test_a_graph_break_parts_the_graph_before_the_line_as_the_program_runs_it(backward, second_half):
    lines = {"mm": line(number=1), "relu": line(number=2), "add": line(number=3)}
    suspects = Suspects((), ("relu",), ("relu",))
    found = candidates_for(about(suspects=suspects, lines=lines, backward=backward))
    (parted,) = named(found, "graph break before model.py:2")
    assert parted.cut_before == second_half
    assert parted.how.startswith("torch._dynamo.graph_break()")


def test_calls_that_fail_together_are_parted_before_each_line_but_the_first_of_all():
    lines = {"mm": line(number=1), "relu": line(number=2), "add": line(number=3)}
    suspects = Suspects((), ("mm", "add"), ("mm", "add"))
    found = named(candidates_for(about(suspects=suspects, lines=lines)), "graph break")
    assert [each.cut_before for each in found] == ["add"]


def test_a_write_that_is_lost_before_any_operator_runs_is_kept_from_the_compiler_in_its_own_line():
    wave = line(number=2, code="    part.mul_(2.0)")  # runs twice
    lines = {"mm": line(number=1), "relu": wave, "add": wave}
    suspects, triage = Suspects((), ("relu",), ("relu",)), Triage(component="aot_autograd", pinned=True)
    known = about(suspects=suspects, lines=lines, triage=triage, targets={"relu": "mul_", "add": "mul_"})
    (rewrite,) = named(candidates_for(known), "mul_ eager at model.py:2")
    assert rewrite.how == "torch.compiler.disable(part.mul_)(2.0)  # model.py:2"
    assert rewrite.eager_nodes == {"relu", "add"}


def test_a_single_operator_that_fails_by_itself_gets_no_graph_break():
    lines = {"mm": line(number=1), "relu": line(number=2)}
    triage = Triage(component="inductor", subsystem="lowerings", pinned=True)
    found = candidates_for(about(suspects=Suspects((), ("relu",), ("relu",)), lines=lines, triage=triage))
    assert not named(found, "graph break")


def test_fixed_sizes_are_tried_only_where_there_are_others():
    assert not named(candidates_for(about()), "dynamic")
    (fixed,) = named(candidates_for(about(symbols=True)), "dynamic=False")
    assert fixed == Change(dynamic=False)


names = st.sampled_from(["mm", "relu", "add", "exp", "sum"])
places = st.builds(
    line,
    module=st.sampled_from(["", "fc", "fc.act", "2", "layers.1"]),
    function=st.sampled_from(["forward", "act", "<lambda>", "torch_dynamo_resume_in_act_at_3"]),
    number=st.integers(1, 5),
    call=st.sampled_from(["", "nn.ReLU", "relu", "nn.Nothing"]),
)


@given(
    calls=st.lists(names, min_size=1, unique=True),
    lines=st.dictionaries(names, places),
    suspects=st.lists(names, unique=True),
    backward=st.booleans(),
    component=st.sampled_from([None, "inductor", "aot_autograd", "backend"]),
)
def test_whatever_is_known_each_candidate_is_one_change_that_leaves_something_compiled(
    calls, lines, suspects, backward, component
):
    known = tuple(name for name in suspects if name in calls)
    lines = {name: where for name, where in lines.items() if name in calls}
    found = candidates_for(
        about(
            calls,
            lines=lines,
            suspects=Suspects((), known, known),
            backward=backward,
            triage=Triage(component=component),
        )
    )
    assert found[-1].reach == BACKEND
    assert len({(c.name, c.how) for c in found}) == len(found)
    for each in found:
        assert not each.eager_nodes or set(calls) - each.eager_nodes
        assert each.cut_before is None or each.cut_before in calls[1:]


def test_one_pattern_is_taken_out_before_all_of_them_are():
    triage = Triage(component="inductor", part="fuse_attention: _sfdp_pattern_5", subsystem="patterns")
    found = candidates_for(about(triage=triage))
    (one,), (every,) = named(found, "pattern fuse_attention"), named(found, "setting pattern_matcher")
    assert one.reach < every.reach and one.snippet == one.how


def test_the_lines_that_take_a_pattern_out_do_so_and_leave_its_neighbour(monkeypatch):
    from types import SimpleNamespace

    from torch._inductor.pattern_matcher import PatternMatcherPass

    kept = []
    monkeypatch.setattr(PatternMatcherPass, "apply", lambda self, gm: kept.extend(self.patterns["sum"]))
    triage = Triage(component="inductor", part="pad_mm: _pattern_1", subsystem="patterns")
    (one,) = named(candidates_for(about(triage=triage)), "pattern ")
    monkeypatch.setattr(torch.compiler.config, "cache_key_tag", "")
    exec(one.how, {"torch": torch})
    first, tenth = (
        SimpleNamespace(pattern_name="_pattern_1_inference"),
        SimpleNamespace(pattern_name="_pattern_10"),
    )

    def other():
        pass

    patterns = {"sum": [first, tenth, SimpleNamespace(handler=other)]}
    PatternMatcherPass.apply(SimpleNamespace(patterns=patterns), None)
    assert kept == patterns["sum"] and first not in kept and len(kept) == 2


def test_an_operator_decomposed_in_python_is_left_whole_and_then_kept_eager():
    triage = Triage(component="aot_autograd", subsystem="python_decompositions", ops=("aten.lstm",))
    found = [c.name for c in candidates_for(about(triage=triage))]
    assert found[:2] == ["aten.lstm not decomposed", "aten.lstm not decomposed, and kept eager"]
    elsewhere = candidates_for(about(triage=triage, backend="mine"))
    assert not any("make_fallback" in c.how for c in elsewhere)


def test_inference_mode_at_fault_may_be_written_as_no_grad():
    ops = ("torch.autograd.grad_mode._enter_inference_mode", "torch.Tensor.transpose")
    (rewritten,) = named(candidates_for(about(suspects=Suspects(ops=ops))), "torch.no_grad()")
    assert rewritten.no_inference_mode and rewritten.how.startswith("with torch.no_grad():")


def test_of_several_patterns_each_is_tried_alone():
    triage = Triage(component="inductor", part="joint_graph: a, fuse: b", subsystem="patterns")
    found = [c.name for c in candidates_for(about(triage=triage)) if c.name.startswith("pattern ")]
    assert found == [
        "pattern joint_graph: a off",
        "pattern fuse: b off",
        "pattern joint_graph: a, fuse: b off",
    ]
