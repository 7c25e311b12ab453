"""A program's compiles changed from outside, without a change to the program; and left alone where nobody asks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchsleuth
from program_runs import environment, run_watched, write_program
from torchsleuth.core.change_table import kept_eager, not_decomposed
from torchsleuth.core.changes import CHANGE_VARIABLE, Change, change_from_environment
from torchsleuth.torch_internals import compile_overrides, module_names
from torchsleuth.torch_internals.compile_overrides import (
    NoSuchTarget,
    UnknownSetting,
    check_settings,
    class_named,
    is_place,
    operator_named,
)
from torchsleuth.watched import apply_change

INJECT = Path(torchsleuth.__file__).parent / "watched" / "inject"
INDUCTOR = "torch._inductor.config"

PROGRAM = """
    import sys

    def wave(x):
        return x.sin() + 1

    if __name__ == "__main__":
        import torch
        from torch._dynamo.utils import counters

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first = torch.nn.Linear(8, 8)
                self.act = torch.nn.ReLU()

            def forward(self, x):
                y = self.act(self.first(x))
                return wave(y) * 2

        torch.manual_seed(0)  # of random weights all may lie where relu has no slope
        net = Net()
        compiled = torch.compile(net, options={"max_fusion_size": 32})
        compiled(torch.ones(2, 8)).sum().backward()
        import torch._inductor.config as config
        print("graphs", counters["stats"]["unique_graphs"])
        print("breaks", sum(counters["graph_break"].values()))
        print("fusion", config.max_fusion_size)
        print("ours", sorted(m for m in sys.modules if m.startswith("torchsleuth")))
        print("slope", net.first.bias.grad.abs().sum().item() > 0)
"""


def run(folder, change=None, fault=None, text=PROGRAM, **more):
    program = write_program(folder, text)
    env = environment(folder, fault, **(change.to_environment() if change else {}), **more)
    env["PYTHONPATH"] = os.pathsep.join([str(INJECT), env["PYTHONPATH"]])
    ran = subprocess.run(
        [sys.executable, program.name], cwd=folder, env=env, capture_output=True, text=True, timeout=250
    )
    return ran, dict(line.split(" ", 1) for line in ran.stdout.splitlines() if " " in line)


texts = st.text(max_size=20)


@given(
    st.builds(
        Change,
        config=st.dictionaries(st.just(INDUCTOR), st.dictionaries(texts, texts, min_size=1)),
        backend=st.none() | texts.filter(bool),
        mode=st.none() | texts.filter(bool),
        dtype=st.none() | texts.filter(bool),
        dynamic=st.none() | st.booleans(),
        off=st.dictionaries(texts, st.dictionaries(texts, st.lists(texts))),
        functions=st.lists(st.tuples(texts, texts, st.integers(1, 99))).map(tuple),
        modules=st.lists(texts).map(tuple),
        classes=st.lists(texts).map(tuple),
        snippet=texts,
        uncompiled=st.booleans(),
        graph_breaks=st.booleans(),
        fullgraph=st.booleans(),
        rewritten=st.lists(st.tuples(texts, st.integers(1, 9), st.integers(1, 9), texts), max_size=1).map(
            tuple
        ),
        dynamic_dims=st.lists(st.tuples(texts, texts, st.integers(0, 9)), max_size=1).map(tuple),
    )
)
def test_what_is_asked_for_arrives_in_the_process(wanted):
    arrived = change_from_environment(wanted.to_environment())
    assert (arrived or Change()) == wanted


def test_nothing_is_said_where_nothing_is_changed():
    assert Change().to_environment() == {}
    assert change_from_environment({}) is None


def test_a_program_nobody_changes_never_sees_us(tmp_path):
    ran, said = run(tmp_path, TORCH_COMPILE_DISABLE="1")
    assert ran.returncode == 0 and said["ours"] == "[]", ran.stderr


def test_functions_and_modules_are_left_eager_and_the_backend_is_another(tmp_path):
    program = str((tmp_path / "program.py").absolute())
    wanted = Change(
        backend="sleuth_aot_eager",
        functions=(("program.py", "wave", 5), (program, "wave", 5)),
        modules=("act",),
        config={INDUCTOR: {"max_fusion_size": "7"}},
    )
    # Every kernel of Inductor would fail.
    ran, said = run(tmp_path, wanted, fault="aten.sin.default:raise")
    assert ran.returncode == 0, ran.stderr
    assert said["breaks"] == "2" and said["graphs"] == "2" and said["slope"] == "True"
    assert said["fusion"] == "7"


def test_an_operator_is_kept_eager_under_a_setting_that_options_would_change(tmp_path):
    wanted = Change(
        off=kept_eager(["aten.sin.default", "aten.cos.default"]).off,
        config={INDUCTOR: {"max_fusion_size": "1"}},
    )
    # The gradient of sin is a cos: its graph is compiled later, when the backward is run.
    ran, said = run(tmp_path, wanted, fault="aten.cos.default:raise")
    assert ran.returncode == 0, ran.stderr
    assert said["breaks"] == "0" and said["fusion"] == "1" and said["slope"] == "True"


def test_of_a_table_row_a_program_gets_what_a_person_would_paste(monkeypatch):
    waiting, done = {}, []
    monkeypatch.setattr(apply_change, "_when", lambda name, then: waiting.setdefault(name, []).append(then))
    for name in ("forget_decompositions", "keep_operators_eager"):
        monkeypatch.setattr(
            compile_overrides, name, lambda ops, name=name: done.append((name, list(ops))) if ops else None
        )
    apply_change._put_in_place(not_decomposed(["aten.sin.default"]))
    for put_in in [*waiting[module_names.INNER_COMPILE], *waiting.get(module_names.LOWERING, ())]:
        put_in(sys)
    assert done == [("forget_decompositions", ["aten.sin.default"])]


def test_nothing_is_compiled_even_where_torch_refuses_to_leave_it_out(tmp_path):
    whole = PROGRAM.replace("torch.compile(net, ", "torch.compile(net, fullgraph=True, ")
    ran, said = run(tmp_path, Change(uncompiled=True), fault="aten.sin.default:raise", text=whole)
    assert ran.returncode == 0, ran.stderr
    assert said["graphs"] == "0" and said["slope"] == "True"


def test_a_graph_that_must_not_break_may_break(tmp_path):
    program = """
    import torch

    @torch.compile(backend="eager", fullgraph=True)
    def f(x):
        y = x.sin()
        print("inside", len(x))
        return y.cos()

    print("sum", f(torch.zeros(3)).sum().item())
    """
    ran, said = run(tmp_path, Change(graph_breaks=True), text=program)
    assert (ran.returncode, said) == (0, {"inside": "3", "sum": "3.0"}), ran.stderr


def test_the_backend_put_in_is_the_one_that_a_case_names(tmp_path):
    program = """
    import torch

    torch.compile(lambda x: torch.relu(x), mode="max-autotune")(torch.ones(3))
    """
    wanted = Change(backend="sleuth_relu_compile_error")
    ran = run_watched(tmp_path, program, **wanted.to_environment())
    assert ran.case["backend"] == "sleuth_relu_compile_error", ran.stderr
    assert ran.case["verified"]["reproduced"] == 1, ran.stderr


SETTINGS = """
    import torch
    from torch._inductor import compile_fx

    def tell(graph, inputs, config_patches=None, **more):
        print(sorted(config_patches))
        return graph.forward

    compile_fx.compile_fx = tell
    x = torch.ones(3)
    torch.compile(lambda x: x + 1, mode="max-autotune")(x)
    torch.compile(lambda x: x + 2, options={"max_fusion_size": 3, "max_autotune": True})(x)
    torch.compile(lambda x: x + 3, backend="eager")(x)
"""


def test_a_mode_takes_the_place_of_what_modes_set_and_leaves_the_options(tmp_path):
    ran, _ = run(tmp_path, Change(mode="reduce-overhead"), text=SETTINGS)
    expected = ["['triton.cudagraphs']", "['max_fusion_size', 'triton.cudagraphs']"]
    assert ran.stdout.splitlines() == expected, ran.stderr


@pytest.mark.parametrize(("dtype", "product"), [("bfloat16", "torch.bfloat16"), ("float64", "torch.float64")])
def test_a_program_computes_in_another_dtype_where_it_names_none(tmp_path, dtype, product):
    program = """
    import torch

    weight = torch.nn.Linear(4, 4)
    print("product", torch.compile(lambda x: weight(x), backend="eager")(torch.ones(2, 4)).dtype)
    print("named", torch.ones(2, dtype=torch.int32).dtype)
    """
    ran, said = run(tmp_path, Change(dtype=dtype), text=program)
    assert said == {"product": product, "named": "torch.int32"}, ran.stderr


@pytest.mark.slow
def test_lines_a_person_would_paste_run_before_the_first_compile(tmp_path):
    lines = "from torch._inductor.graph import make_fallback\n"
    lines += "make_fallback(torch.ops.aten.cos.default, warn=False, override_decomp=True)"
    ran, said = run(tmp_path, Change(snippet=lines), fault="aten.cos.default:raise")
    assert ran.returncode == 0, ran.stderr
    assert said["graphs"] == "1" and said["slope"] == "True"


def test_what_cannot_be_put_in_place_ends_the_program(tmp_path):
    ran, _ = run(tmp_path, Change(config={INDUCTOR: {"no_such_setting": "1"}}))
    assert ran.returncode != 0 and "no_such_setting" in ran.stderr


def test_a_function_is_known_by_file_name_and_line():
    def inner():
        first = 1
        return first

    code = inner.__code__
    start = code.co_firstlineno
    assert is_place(code, (code.co_filename, "inner", start + 2))
    assert not is_place(code, (code.co_filename, "inner", start + 9))
    assert not is_place(code, (code.co_filename, "outer", start + 1))
    assert not is_place(code, ("/elsewhere.py", "inner", start + 1))


def test_what_this_torch_does_not_have_is_an_error():
    assert str(operator_named("aten.sin.default")) == "aten.sin.default"
    with pytest.raises(NoSuchTarget):
        operator_named("aten.sin.no_such_overload")
    with pytest.raises(NoSuchTarget):
        class_named("nn.functional")
    with pytest.raises(UnknownSetting):
        check_settings({INDUCTOR: {"no_such_setting": 1}})


def test_the_variable_is_plain_json():
    text = Change(backend="eager").to_environment()[CHANGE_VARIABLE]
    assert json.loads(text) == {"backend": "eager"}
