"""Normalising, comparing and keying failures, without torch."""

import ast
import inspect
import json
import subprocess
import sys
import traceback
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchsleuth.core.protocol.failures import signature_of_text
from torchsleuth.script_runtime import hiding
from torchsleuth.script_runtime import signature as module
from torchsleuth.script_runtime.signature import (
    Signature,
    fails_the_same_way,
    fingerprint,
    normalise_message,
    signature_from_json,
    signature_of_exception,
)
from torchsleuth.torch_core.repro.script import split_module

GXX = """C++ compile error

Command:
g++ /tmp/torchinductor_ada/we/{hash}.main.cpp -D X -O3 -I/usr/include/python3.11

Output:
/tmp/torchinductor_ada/we/{hash}.main.cpp: In function 'void kernel(const float*, float*)':
/tmp/torchinductor_ada/we/{hash}.main.cpp:{line}:{line}: error: ‘{name}’ was not declared in this scope; did you mean ‘{near}’?
   {line} |             auto tmp1 = {name}(tmp0);
      |                         ^~~~~~~~~~~~~~~~~~~~
/tmp/other.cpp:9:9: error: something else
"""


def compile_error(message: str, root: str = "RuntimeError", frames: tuple[str, ...] = ()) -> Signature:
    return Signature("compile_error", "compile", (root,), normalise_message(message), frames)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("size 3 is not 4", "size 128 is not 7"),
        ("got -1 and 1.5e-3", "got 22 and 0.25"),
        ("buffer buf12 of arg3_1 and primals_4", "buffer buf0 of arg11_1 and tangents_1"),
        ("in_ptr0 out_ptr1 in_out_ptr0 tmp27 op5", "in_ptr7 out_ptr0 in_out_ptr3 tmp1 op12"),
        ("guard on s77 and u3 and ks0", "guard on s0 and u12 and ks4"),
        ("size 8*s77 + 1 of Max(1, s0//2)", "size 64 of 12"),
        ("kernel cpp_fused_relu_3 failed", "kernel cpp_fused_add_mul_relu_12 failed"),
        ("kernel triton_poi_fused_add_0", "kernel triton_red_fused__softmax_native_dropout_7"),
        ("node relu_3 before %add_12", "node relu before %add"),
        ("xindex used", "yindex used"),
        ("shapes [2, 3, 4] and (5,)", "shapes [] and (6, 7)"),
        ("torch.Size([2, 3])", "torch.Size([])"),
        ("shapes cannot be multiplied (3x4 and 5x6)", "shapes cannot be multiplied (13x400 and 1x1)"),
        ("unused ['buf0', 'buf1', 'buf2']", "unused ['buf9']"),
        ("<torch.ir.Pointwise object at 0x7f00dead>", "<torch.ir.Pointwise object at 0x55aa>"),
        ("address 0x7f00", "address 0x1"),
        ("on cuda:0 and cpu", "on cuda:3 and cpu"),
        ("process 4242 died", "process 17 died"),
        ('File "/home/ada/my code/net.py", line 12', "File '/x.py', line 99"),
        ("cannot open /tmp/tmpab12/x.so", "cannot open /var/cache/y/z.so"),
        (r"cannot open C:\Users\ada\x.so now", "cannot open /tmp/y.so now"),
        ("in net.py:12: bad", "in train.py:7: bad"),
        ("\x1b[31mred\x1b[0m   error\n", "red error"),
        ("bad op\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace", "bad op"),
        ("bad op\nYou can suppress this exception and fall back", "bad op"),
        ("bad op\n\nWhile executing %relu : [num_users=1] = call_function[...]", "bad op"),
        ("bad op\n  target: aten.sin.default\n  args[0]: TensorBox(...)", "bad op"),
        (
            GXX.format(hash="c" * 52, line=12, name="lost", near="a"),
            GXX.format(hash="d" * 9, line=7, name="lost", near="b"),
        ),
        (
            "at 12:3:\n  tmp0 = foo(x)\n   ^\nNameError('foo')",
            "at 7:11:\n  y = 1\n  tmp3 = foo(z)\n   ^\nNameError('foo')",
        ),
        (
            "ptxas /tmp/a.ptx, line 5; error   : Feature 'q' is old",
            "ptxas /tmp/b.ptx, line 77; error   : Feature 'q' is old",
        ),
    ],
)
def test_what_changes_from_run_to_run_is_normalised_away(one: str, other: str) -> None:
    assert normalise_message(one) == normalise_message(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("expected float32 here", "expected float64 here"),
        ("no lowering for conv2d", "no lowering for conv3d"),
        ("FAULT-SIG[relu_raise]", "FAULT-SIG[sin_raise]"),
        ("type i32 refused", "type i64 refused"),
        (
            GXX.format(hash="c", line=1, name="fault_erf", near="a"),
            GXX.format(hash="c", line=1, name="fault_tanh", near="a"),
        ),
        ("on cuda:0", "on cpu"),
    ],
)
def test_what_carries_meaning_is_kept(one: str, other: str) -> None:
    assert normalise_message(one) != normalise_message(other)


def test_a_compilers_output_is_reduced_to_its_first_error() -> None:
    text = GXX.format(hash="c" * 52, line=12, name="fault_undeclared_erf", near="x")
    assert normalise_message(text) == "'fault_undeclared_erf' was not declared in this scope"


def test_a_linkers_output_is_reduced_to_the_missing_symbol() -> None:
    text = "g++ x\n/usr/bin/ld: /tmp/cc1.o: undefined reference to `lost'\ncollect2: error: ld returned 1 exit status"
    assert normalise_message(text) == "undefined reference to 'lost'"


def test_a_long_message_is_cut() -> None:
    assert len(normalise_message("word " * 10_000)) <= 300


@pytest.mark.timeout(60)  # a pattern that tries every way through such a text is not done in minutes
@pytest.mark.parametrize(
    "text",
    [
        "\n" * 10**5,
        " " * 10**5,
        "\n " * 10**5,
        "error\n" * 10**4 + "g++",
        "(" * 10**4,
        "[1, " * 10**4,
        "/a" * 10**4,
        "Traceback (most recent call last):\n" + "    x\n" * 10**4 + "?",
        "a, a, " * 10**4,
        "'/" * 10**4,
        "-" * 10**5,
        "g++ " + "error " * 10**4,
        "at 1:1:" + "\n" * 10**5,
        "x_1_" * 10**4,
        "C:\\" * 10**4,
        "0x" * 10**4,
        "a.b/" * 10**4,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    normalise_message(text)


WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=9)
PIECES = [
    "{n}",
    "buf{n}",
    "arg{n}_1",
    "tmp{n}",
    "in_ptr{n}",
    "s{n}",
    "u{n}",
    "ks{n}",
    "[{n}, {n}]",
    "0x{n}f",
    "/tmp/{w}/{w}.py",
    "cuda:{n}",
]


@st.composite
def templates(draw: st.DrawFn) -> list[str]:
    return draw(st.lists(st.one_of(WORDS, st.sampled_from(PIECES)), min_size=1, max_size=8))


def filled(template: list[str], numbers: st.DataObject) -> str:
    fill = lambda: {"n": numbers.draw(st.integers(0, 10**6)), "w": numbers.draw(WORDS)}  # noqa: E731
    return " ".join(piece.format(**fill()) for piece in template)


@given(templates(), st.data())
def test_renaming_numbers_buffers_paths_and_symbols_changes_nothing(
    template: list[str], data: st.DataObject
) -> None:
    assert normalise_message(filled(template, data)) == normalise_message(filled(template, data))


@given(st.text(max_size=300))
@settings(max_examples=300)
def test_any_text_becomes_one_short_clean_line(text: str) -> None:
    once = normalise_message(text)
    assert len(once) <= 300
    assert "\x1b[" not in once
    assert once == " ".join(once.split())


@given(st.lists(WORDS, min_size=3, max_size=8), st.data())
def test_another_word_makes_another_failure(words: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(words) - 1))
    other = data.draw(WORDS)
    assume(other != words[at])
    changed = [*words[:at], other, *words[at + 1 :]]
    assert not fails_the_same_way(compile_error(" ".join(words)), compile_error(" ".join(changed)))


SIGNATURES = st.builds(
    Signature,
    st.sampled_from(["compile_error", "runtime_error", "accuracy", "crash", "hang", "capture_error"]),
    st.sampled_from(["capture", "compile", "run"]),
    st.lists(
        st.sampled_from(["KeyError", "a.FooError", "b.FooError", "torch._inductor.exc.InductorError"]),
        max_size=3,
    ).map(tuple),
    st.sampled_from(["", "'<name>'", "something quite distinctive", "something else entirely"]),
    st.lists(
        st.sampled_from(["torch/_inductor/ir.py:f", "a.py:g", "b.py:g", "<generated>:call"]), max_size=2
    ).map(tuple),
    st.sampled_from([None, "SIGSEGV", "exit 7"]),
    st.sampled_from([(), ("outputs[0]",)]),
)


@given(SIGNATURES, SIGNATURES)
@settings(max_examples=300)
def test_sameness_is_reflexive_symmetric_and_what_the_fingerprint_says(a: Signature, b: Signature) -> None:
    assert fails_the_same_way(a, a)
    assert fails_the_same_way(a, b) == fails_the_same_way(b, a)
    assert fails_the_same_way(a, b) == (fingerprint(a) == fingerprint(b))


@given(SIGNATURES)
def test_a_signature_survives_json(sig: Signature) -> None:
    doc = json.loads(json.dumps(sig.to_json()))
    assert signature_from_json({**doc, "later": 1}) == sig
    assert 0 < len(doc["summary"]) <= 160
    assert "\n" not in doc["summary"]


@pytest.mark.parametrize(
    "change", [{"kind": 3}, {"frames": "x"}, {"frames": [1]}, {"signal": 11}, {"message": None}]
)
def test_a_signature_with_wrong_types_is_refused(change: dict) -> None:
    with pytest.raises(TypeError):
        signature_from_json({"kind": "hang", "phase": "run", **change})


@pytest.mark.parametrize(("length", "end"), [(0, "the upload was refused"), (40, "the upload was refused")])
def test_a_case_may_hide_more_of_a_message_than_its_script_does(length: int, end: str) -> None:
    shown = Signature(
        "runtime_error",
        "run",
        ("RuntimeError",),
        f"no entry for dop_v1_0a1b2c3d in the store; {end}{' and more' * length}"[:300],
    )
    hidden = replace(shown, message=shown.message.replace("dop_v1_0a1b2c3d", "<hidden>"))
    assert fails_the_same_way(shown, hidden) and fails_the_same_way(hidden, shown)
    assert not fails_the_same_way(
        hidden, replace(shown, message=shown.message.replace("the upload", "a download"))
    )
    assert not fails_the_same_way(replace(shown, message="<hidden>"), shown)


def test_other_type_signal_or_phase_is_another_failure() -> None:
    message = "a message that says a lot"
    assert not fails_the_same_way(compile_error(message, "ValueError"), compile_error(message, "TypeError"))
    crash = Signature("crash", "run", signal="SIGSEGV")
    assert not fails_the_same_way(crash, Signature("crash", "run", signal="SIGABRT"))
    assert not fails_the_same_way(crash, Signature("crash", "compile", signal="SIGSEGV"))
    assert not fails_the_same_way(Signature("hang", "run"), Signature("hang", "compile"))


def test_outputs_do_not_matter() -> None:
    one, other = Signature("accuracy", "run", outputs=("a",)), Signature("accuracy", "run", outputs=("b",))
    assert fails_the_same_way(one, other)


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("AssertionError", ""),
        ("KeyError", "'relu'"),
        ("IndexError", "list index out of range"),
        ("AttributeError", "'NoneType' object has no attribute 'get_size'"),
        ("RuntimeError", "boom 33"),
    ],
)
def test_where_the_message_says_little_the_place_decides(root: str, message: str) -> None:
    here = compile_error(message, root, ("torch/_inductor/ir.py:make", "torch/_inductor/graph.py:run"))
    same_place = compile_error(message, root, ("torch/_inductor/ir.py:make",))
    elsewhere = compile_error(
        message, root, ("torch/_inductor/scheduler.py:fuse", "torch/_inductor/graph.py:run")
    )
    assert fails_the_same_way(here, same_place)
    assert not fails_the_same_way(here, elsewhere)


def test_a_users_backend_is_the_same_in_a_script_of_another_name() -> None:
    assert fails_the_same_way(
        compile_error("boom", frames=("train.py:my_backend",)),
        compile_error("boom", frames=("original.py:my_backend",)),
    )


def test_summaries_read_well() -> None:
    assert Signature("crash", "compile", signal="SIGSEGV").summary == "SIGSEGV while compiling"
    assert Signature("hang", "run").summary == "hang while running a compiled graph"
    assert Signature("accuracy", "run", outputs=("outputs[0]",)).summary == "wrong result: outputs[0]"
    chain = (
        "torch._inductor.exc.InductorError",
        "torch._inductor.exc.LoweringException",
        "faults.InjectedFault",
    )
    raised = Signature("compile_error", "compile", chain, "FAULT-SIG[relu_raise]")
    assert raised.summary == "LoweringException: InjectedFault: FAULT-SIG[relu_raise]"


class LoweringException(RuntimeError):
    """Stands for torch's wrapper, which quotes what it wraps and then raises it `from None`."""


class BackendCompilerFailed(RuntimeError):
    """Stands for torch's wrapper, which holds what it wraps in an attribute."""

    def __init__(self, inner: Exception) -> None:
        self.inner_exception = inner
        super().__init__(f"backend='mine' raised:\n{type(inner).__name__}: {inner}")


def raised(make: object) -> BaseException:
    try:
        make()  # type: ignore[operator]
    except BaseException as failure:
        return failure
    raise AssertionError("nothing was raised")


def bare() -> None:
    raise ValueError("the layout of buf3 is not dense")


def lowered() -> None:
    try:
        bare()
    except ValueError as e:
        raise LoweringException(f"ValueError: {e}\n  target: aten.sin.default\n  args[0]: x") from None


def backend() -> None:
    raise BackendCompilerFailed(raised(lowered))  # type: ignore[arg-type]


def forgotten() -> None:
    raise LoweringException("ValueError: the layout of buf17 is not dense\n  target: aten.cos.default")


def remote() -> None:
    text = 'Traceback (most recent call last):\n  File "/x/site-packages/torch/_inductor/a.py", line 3, in f\n    g()\nValueError: the layout of buf9 is not dense\n'
    raise type("SubprocException", (Exception,), {})(
        f"An exception occurred in a subprocess:\n\nName=x\n{text}"
    )


@pytest.mark.parametrize("wrapped", [lowered, backend, forgotten, remote])
def test_a_wrapper_of_torch_only_carries(wrapped: object) -> None:
    plain = signature_of_exception(raised(bare), "compile_error", "compile")
    carried = signature_of_exception(raised(wrapped), "compile_error", "compile")
    assert carried.exceptions[-1] == "ValueError"
    assert fails_the_same_way(plain, carried)
    assert fingerprint(plain) == fingerprint(carried)


@pytest.mark.parametrize("wrapped", [bare, lowered, backend, forgotten, remote])
def test_a_printed_failure_has_the_signature_of_the_one_that_was_raised(wrapped: object) -> None:
    error = raised(wrapped)
    printed = "a warning\n" + "".join(traceback.format_exception(error))
    seen = signature_of_text(printed, "compile_error", "compile")
    caught = signature_of_exception(error, "compile_error", "compile")
    assert seen is not None and fails_the_same_way(seen, caught)
    assert seen.exceptions[-1] == caught.exceptions[-1]
    if wrapped in (bare, remote):  # the others' frames are not printed
        assert seen.frames == caught.frames
    assert signature_of_text("NOT REPRODUCED", "compile_error", "compile") is None


def test_a_wrapped_failure_has_the_place_of_the_bare_one() -> None:
    plain = signature_of_exception(raised(bare), "compile_error", "compile")
    carried = signature_of_exception(raised(backend), "compile_error", "compile")
    assert (plain.frames[:1], plain.outputs) == (carried.frames[:1], carried.outputs)


def test_frames_of_another_process_are_read_from_its_text() -> None:
    assert signature_of_exception(raised(remote), "compile_error", "compile").frames == (
        "torch/_inductor/a.py:f",
    )


def test_a_context_that_is_not_quoted_is_not_the_cause() -> None:
    def make() -> None:
        try:
            {}["relu"]
        except KeyError:
            raise ValueError("no kernel was found") from None

    def implicit() -> None:
        try:
            {}["relu"]
        except KeyError:
            bare()

    assert signature_of_exception(raised(make), "compile_error", "compile").exceptions == ("ValueError",)
    assert signature_of_exception(raised(implicit), "compile_error", "compile").exceptions == ("ValueError",)


def test_a_declared_cause_is_followed_but_not_a_failed_command() -> None:
    def caused() -> None:
        raise RuntimeError("codegen stopped") from raised(bare)

    def command() -> None:
        raise RuntimeError("codegen stopped early") from subprocess.CalledProcessError(
            1, ["g++", "/tmp/x.cpp"]
        )

    assert signature_of_exception(raised(caused), "compile_error", "compile").exceptions[-1] == "ValueError"
    assert signature_of_exception(raised(command), "compile_error", "compile").exceptions == ("RuntimeError",)


def test_a_circle_of_causes_ends() -> None:
    one, two = ValueError("one thing"), ValueError("two things")
    one.__cause__, two.__cause__ = two, one
    assert signature_of_exception(one, "runtime_error", "run").exceptions == ("ValueError", "ValueError")


def test_an_exception_that_cannot_be_printed_still_has_a_signature() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert signature_of_exception(Mute(), "runtime_error", "run").message == ""


def test_a_recursion_is_the_same_wherever_it_overflowed() -> None:
    def one() -> None:
        raise RecursionError("maximum recursion depth exceeded in comparison")

    def other() -> None:
        raise RecursionError("maximum recursion depth exceeded while calling a Python object")

    a, b = (signature_of_exception(raised(f), "compile_error", "compile") for f in (one, other))
    assert fails_the_same_way(a, b)


def test_frames_leave_out_the_program_the_standard_library_and_torchsleuth() -> None:
    stack = [
        ("/home/ada/train.py", "main"),
        ("/v/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", "_fn"),
        ("/src/torchsleuth/torch_internals/hooks.py", "watched"),
        (inspect.getsourcefile(json) or "", "loads"),
        ("/tmp/torchinductor_ada/b4/" + "c" * 52 + ".py", "call"),
        ("<eval_with_key>.3", "forward"),
        ("/home/ada/train.py", "my_backend"),
    ]
    assert module._sig_frames(stack) == (
        "train.py:my_backend",
        "<generated>:forward",
        "<generated>:call",
        "torch/_dynamo/eval_frame.py:_fn",
    )


def test_the_file_can_be_pasted_into_a_script() -> None:
    assert len(inspect.getsource(module).splitlines()) < 255
    imports, body = split_module(inspect.getsource(module))
    source = "\n".join([inspect.getsource(hiding), *imports, body])
    imported = {
        name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module])
    }
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names - {"__future__"}
    script = (
        f"import os\n{source}\nprint(signature_of_exception(ValueError('bad size 3'), 'hang', 'run').message)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "bad size #\n"


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "wrong result: outputs"),
        (1, "wrong result: outputs[0]"),
        (4, "wrong result: outputs[0], outputs[1], outputs[2], outputs[3]"),
        (40, "wrong result: outputs[0], outputs[1], outputs[2], and 37 more"),
    ],
)
def test_many_wrong_results_are_counted_and_not_listed(count, said):
    signature = Signature("accuracy", "run", outputs=tuple(f"outputs[{i}]" for i in range(count)))
    assert signature.summary == said


class ObservedTwice(Exception):
    """An error of a program's own, whose name begins like those of Dynamo's stand-ins."""


def test_a_programs_own_error_of_such_a_name_keeps_its_place() -> None:
    def fails() -> None:
        raise ObservedTwice("seen twice")

    with pytest.raises(ObservedTwice) as raised:
        fails()
    assert signature_of_exception(raised.value, "compile_error", "compile").frames[0].endswith(":fails")
