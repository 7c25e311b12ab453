"""`explain(fn)(*args)`, `ExplainWithBackend` and `CompileProfiler`, as a program uses them."""

import gc

import pytest
import torch

import torchsleuth
from torchsleuth.front.observe.recompiles import cure_of, readable
from torchsleuth.torch_internals import hooks


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def broken(x):
    y = x.sin() + 1
    print(end="")
    return y.cos()


def helper(x):
    y = x.cos()
    print(end="")
    return y.tan()


def calls_helper(x):
    return helper(x.sin()) + 1


def loops(x):
    for _ in range(2):
        x = x.sin()
        print(end="")
    return x


def test_a_break_is_told_with_its_line_reason_fix_and_gain():
    found = torchsleuth.explain(broken)(torch.ones(3))
    assert (found.graph_count, found.graph_break_count, found.op_count) == (2, 1, 3)
    assert [len(ops) for ops in found.ops_per_graph] == [2, 1] and len(found.graphs) == 2
    (at,) = found.break_reasons
    assert at.place.code == 'print(end="")' and at.place.function == "broken"
    assert (at.ops_before, at.ops_after, at.runs) == (2, 1, 1)
    assert "print" in at.reason.why and "reorderable_logging_functions" in at.reason.paste[0]
    assert at.number and at.number.startswith("GB")
    assert at.user_stack[-1].lineno == at.place.line
    assert any("L['x']" in guard for guard in found.out_guards)
    text = str(found)
    assert "1 graph break; 2 graphs with 3 operations" in text and "compile time:" in text


def test_the_old_form_of_explain_answers_and_says_what_to_write():
    with pytest.warns(FutureWarning, match=r"write explain\(f\)\(x\)"):
        found = torchsleuth.explain(broken, torch.ones(3))
    assert (found.graph_count, found.op_count) == (2, 3)


def test_a_backend_that_explains_says_how_much_and_why_without_an_output():
    explained = torchsleuth.ExplainWithBackend("eager")
    torch.compile(broken, backend=explained)(torch.ones(3))
    assert explained.op_count == 3
    assert [at.place.code for at in explained.break_reasons] == ['print(end="")']


def asks_in_an_if(x):
    if x.mean().item() > 10:
        return x.sin()
    return x.cos()


def asks_and_computes(x):
    n = x.sum().item()
    return x * n


def followed(capture_scalar_outputs, function):
    """The breaks that are left once the setting is followed."""
    with torch._dynamo.config.patch(capture_scalar_outputs=capture_scalar_outputs):
        return torchsleuth.explain(function)(torch.ones(3)).break_reasons


def test_a_number_that_decides_a_branch_is_not_cured_by_capturing_it():
    (at,) = followed(False, asks_in_an_if)
    assert "torch.where" in at.reason.fix and at.reason.paste == ()
    assert followed(True, asks_in_an_if)  # which is why
    (other,) = followed(False, asks_and_computes)
    assert other.reason.paste == ("torch._dynamo.config.capture_scalar_outputs = True",)
    assert not followed(True, asks_and_computes)


def test_compile_times_say_of_how_many_compiles_the_steps_are():
    for times in (2, 3):
        torch.compile(lambda x, n=times: x + n, backend="eager")(torch.ones(3))
    torch.compiler.reset()
    torch.compile(lambda x: x + 4, backend="eager")(torch.ones(3))
    assert ", of the last 1 of " in torchsleuth.compile_times()


def test_one_line_that_cuts_two_functions_is_one_break():
    (at,) = torchsleuth.explain(calls_helper)(torch.ones(3)).break_reasons
    assert set(at.functions) == {"helper", "calls_helper"} and at.place.function == "helper"
    assert [place.function for place in at.stack][-2:] == ["calls_helper", "helper"]


def test_a_function_that_cannot_be_resumed_is_said_to_run_without_the_compiler():
    (at,) = torchsleuth.explain(loops)(torch.ones(3)).break_reasons
    assert at.skipped == ("loops",) and "loop" in at.reason.because and "all of it runs in Python" in at.gain


def test_the_dearest_break_comes_first():
    def two(x):
        y = x.sin()
        print(end="")
        z = y.cos()
        print(end="")
        return z.tan().sin().cos() + 1

    first, second = torchsleuth.explain(two)(torch.ones(3)).break_reasons
    assert (first.ops_after, second.ops_after) == (4, 1) and first.place.line > second.place.line


def test_an_error_of_the_function_goes_its_way():
    def fails(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        torchsleuth.explain(fails)(torch.ones(3))


def test_what_is_compiled_already_is_explained_as_well():
    assert torchsleuth.explain(torch.compile(broken, backend="eager"))(torch.ones(3)).graph_break_count == 1
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), backend="eager")
    assert torchsleuth.explain(model)(torch.ones(3)).graph_break_count == 0


def test_any_backend_can_be_explained_and_two_do_not_hear_of_each_other():
    first, second = torchsleuth.ExplainWithBackend("aot_eager"), torchsleuth.ExplainWithBackend("eager")
    x = torch.ones(3)
    torch.testing.assert_close(torch.compile(broken, backend=first)(x), broken(x))
    compiled = torch.compile(calls_helper, backend=second)
    for _ in range(5):
        torch.testing.assert_close(compiled(x), calls_helper(x))
    assert [b.place.function for b in first.output().break_reasons] == ["broken"]
    (at,) = second.output().break_reasons
    assert at.place.function == "helper" and at.runs == 5
    del first
    gc.collect()
    assert second.output().graph_break_count == 1


def only_itself_disabled(x):
    return torch.compiler.disable(helper_of_disabled, recursive=False)(x.sin()) + 1


def helper_of_disabled(x):
    return calls_cos(x.tan())


def calls_cos(x):
    return x.cos()


def test_a_function_disabled_by_itself_is_not_compiled_under_watch():
    """torch tells such a function by the stack, on which our frames stand."""
    captured = []

    def backend(gm, inputs):
        captured.append([str(node.target) for node in gm.graph.nodes if node.op.startswith("call_")])
        return gm.forward

    bare = torch.compile(only_itself_disabled, backend=backend)
    expected = bare(torch.ones(3))
    alone, captured[:] = list(captured), []
    assert not any("tan" in ops for ops in alone)
    torch.compiler.reset()
    undo = hooks.hook_frame_captures(lambda frame: frame.as_without_us())
    try:
        explained = torchsleuth.ExplainWithBackend(backend)
        result = torch.compile(only_itself_disabled, backend=explained)(torch.ones(3))
    finally:
        undo()
    assert captured == alone and torch.equal(result, expected)


def test_a_compile_profiler_tells_every_guard_that_failed_and_a_cure():
    with torchsleuth.CompileProfiler() as profiler:

        def scaled(x, by):
            return x * by

        compiled = torch.compile(scaled, backend=profiler)
        compiled(torch.ones(2, 3), 2.5)
        compiled(torch.ones(4, 3), 3.5)
        ((function),) = profiler.recompiles.functions
    assert function.function.endswith("scaled") and function.compiles == 2
    told = {(cause.cause, cause.about): cause for cause in function.causes}
    shape = told["shape", "dimension 0 of x"]
    assert shape.values == ("2", "4") and "mark_dynamic(x, 0)" in shape.cure.how
    number = told["python number", "by"]
    assert number.values == ("2.5", "3.5") and "torch.tensor(by)" in number.cure.how
    assert "dimension 0 of x is 4, not 2" in profiler.report()


CAUSES = {
    "dtype": lambda f: (f(torch.ones(3)), f(torch.ones(3).double())),
    "stride": lambda f: (
        f(torch.ones(3, 3)),
        f(torch.ones(3, 3).t()),
        f(torch.empty_strided((3, 3), (1, 3))),
    ),
    "rank": lambda f: (f(torch.ones(3)), f(torch.ones(3, 3))),
    "requires_grad": lambda f: (f(torch.ones(3)), f(torch.ones(3, requires_grad=True))),
    "shape": lambda f: (f(torch.ones(3)), f(torch.ones(4))),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_changed_about_a_tensor_is_named(cause):
    profiler = torchsleuth.CompileProfiler()
    CAUSES[cause](torch.compile(lambda x: x.sin(), backend=profiler))
    (function,) = profiler.recompiles.functions
    assert {each.cause for each in function.causes} == {cause}


class Modes(torch.nn.Module):
    mode = "train"

    def forward(self, x):
        return x.sin() if self.mode == "train" else x.cos()


def of_a_mode(compiled):
    for mode in ("train", "eval"):
        compiled.mode = mode
        compiled(torch.ones(3))


def rest_of(x, names):
    y = x.sin()
    torch._dynamo.graph_break()
    return y * len(names)


def called_with(x, f):
    z = f(x)
    return f(z + (torch._dynamo.graph_break() or 1))


def multiplied(by):
    return lambda x: x * by


# What is compiled, how it is called, and what no idea may say: it would not work, or is not so.
NO_SUCH_CURE = {
    "a text is no buffer": (Modes, of_a_mode, "buffer"),
    "a length without a loop": (
        lambda: rest_of,
        lambda f: [f(torch.ones(3), "a" * n) for n in (1, 2, 3)],
        "loop",
    ),
    "a name of Dynamo's": (
        lambda: called_with,
        lambda f: [f(torch.ones(3), multiplied(n)) for n in (2, 3)],
        "torch.tensor(",
    ),
}


@pytest.mark.parametrize("which", NO_SUCH_CURE)
def test_no_cure_is_told_that_cannot_be_followed(which):
    make, call, never = NO_SUCH_CURE[which]
    profiler = torchsleuth.CompileProfiler()
    call(torch.compile(make(), backend=profiler))
    causes = [cause for function in profiler.recompiles.functions for cause in function.causes]
    assert causes and not any(never in cause.cure.how for cause in causes), causes
    assert "___stack" not in profiler.report() and "the same in all calls" not in profiler.report()


def test_an_object_that_dynamo_kept_across_a_break_is_nothing_to_keep_alive():
    cure = cure_of("freed object", readable("L['___stack0']"), None, ["there", "gone"], ["x"])
    assert "graph break" in cure.how and "alive" not in cure.how
    mine = cure_of("freed object", readable("L['table']"), None, ["there", "gone"], ["x"])
    assert mine.how == "keep table alive as long as the compiled function"


def test_a_size_of_one_is_not_promised_to_be_dynamic():
    assert "separately" in cure_of("shape", "x", 0, ["1", "8"], ["x"]).how
    some = cure_of("shape", "x", 0, ["1", "8", "9"], ["x"])
    assert some.how.startswith("torch._dynamo.maybe_mark_dynamic(x, 0)")


LIMIT = 2


def test_globals_attributes_objects_and_modes_are_told_apart(monkeypatch):
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.by = 2

        def forward(self, x, f):
            return f(x) * self.by + LIMIT

    profiler, model, x = torchsleuth.CompileProfiler(), Scale(), torch.ones(3)
    compiled = torch.compile(model, backend=profiler)

    def one(x):
        return x + 1

    def two(x):
        return x + 2

    compiled(x, one)
    model.by = 3
    compiled(x, one)
    monkeypatch.setitem(globals(), "LIMIT", 5)
    compiled(x, one)
    compiled(x, two)
    with torch.no_grad():
        compiled(x, two)
    (function,) = profiler.recompiles.functions
    causes = [{guard.cause for guard in each.causes} for each in function.recompilations]
    assert causes == [{"module attribute"}, {"global"}, {"object identity"}, {"grad mode"}]


def test_a_limit_that_was_reached_is_told():
    profiler = torchsleuth.CompileProfiler()
    compiled = torch.compile(lambda x, how: x + len(how), backend=profiler)
    with torch._dynamo.config.patch(recompile_limit=3):
        for n in range(6):
            compiled(torch.ones(3), "a" * n)
    (function,) = profiler.recompiles.functions
    assert (function.limit, function.limit_value) == ("recompile_limit", 3)
    assert len(function.recompilations) == 2 and "recompile_limit = 3 reached" in profiler.report()


def test_a_size_that_the_code_asks_for_is_told_as_a_bound():
    profiler = torchsleuth.CompileProfiler()
    compiled = torch.compile(lambda x: x * 2 if x.shape[0] > 8 else x + 1, backend=profiler, dynamic=True)
    compiled(torch.ones(4)), compiled(torch.ones(10))
    (function,) = profiler.recompiles.functions
    (cause,) = function.causes
    assert cause.cause == "shape bound" and "bucketing" in cause.cure.how


def test_a_profiler_with_which_nothing_was_compiled_says_so():
    assert "nothing was compiled" in torchsleuth.CompileProfiler().report()


def test_a_number_that_a_break_leaves_on_the_stack_is_told_in_words():
    profiler = torchsleuth.CompileProfiler()

    @torch.compile(backend=profiler)
    def f(x):
        torch._dynamo.graph_break()
        print("mean", round(x.mean().item(), 3))
        return x.sin()

    f(torch.ones(3)), f(torch.ones(3) * 2)
    report = profiler.report()
    assert "___stack" not in report
    assert "a value from before the graph break: 1.0 → 2.0" in report
    assert "remove the graph break in that line" in report
