"""A small script knows its own failure from another, as strictly as the failure's text allows."""

import re

import pytest

from torchsleuth.script_runtime.signature import Signature, fails_the_same_way, signature_of_exception
from torchsleuth.torch_core.repro.script import holds, marks_of


def raised(error):
    import traceback

    try:
        raise error
    except Exception as caught:
        return signature_of_exception(caught, "compile_error", "compile"), traceback.format_exc()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ValueError("no lowering for relu here"), ValueError("no lowering for tanh here")),
        (ValueError("size 3 of buf7 must match 5"), ValueError("size 3 of buf7 must divide 5")),
        (
            RuntimeError("expected `float` but\n  found `double`"),
            RuntimeError("expected `float` but found `half`"),
        ),
        (KeyError("planted in faults"), ValueError("planted in faults")),
        (RuntimeError("split: dim 3 is too wide (1, 2, 3)"), RuntimeError("dim 3: split is too wide")),
    ],
)
def test_a_failure_of_another_kind_is_not_taken_for_this_one(one, other):
    (signature, text), (second, elsewhere) = raised(one), raised(other)
    marks = marks_of(signature, text).expression
    assert holds(marks, text)
    assert not fails_the_same_way(signature, second)
    assert not holds(marks, elsewhere)


@pytest.mark.parametrize(
    ("one", "again"),
    [
        (ValueError("size 3 of buf7 must match 5"), ValueError("size 44 of buf9 must match 17")),
        (
            RuntimeError("C++ compile error\nx.cpp:3: error: no 'foo' here"),
            RuntimeError("C++ compile error\ny.cpp:9: error: no 'foo' here"),
        ),
        (
            RuntimeError("/tmp/a/b.so: undefined symbol: planted"),
            RuntimeError("/var/x/c.so: undefined symbol: planted"),
        ),
    ],
)
def test_the_same_failure_with_other_numbers_is_still_this_one(one, again):
    (signature, text), (second, elsewhere) = raised(one), raised(again)
    assert fails_the_same_way(signature, second)
    assert holds(marks_of(signature, text).expression, elsewhere)


def test_a_message_without_numbers_is_looked_for_as_it_stands():
    signature = Signature("compile_error", "compile", ("faults.Fault",), "planted in aten.relu.default")
    text = "Traceback:\n  File x\nfaults.Fault: planted in aten.relu.default\n"
    assert marks_of(signature, text).expression == "'Fault: planted in aten.relu.default' in text"


def test_an_error_that_says_little_is_told_by_where_it_came_from():
    signature = Signature(
        "compile_error", "compile", ("KeyError",), "'x'", ("torch/_inductor/ir.py:realize",)
    )
    text = "  File \"torch/_inductor/ir.py\", line 3, in realize\nKeyError: 'x'\n"
    marks = marks_of(signature, text).expression
    assert holds(marks, text) and not holds(marks, text.replace("realize", "freeze"))


def test_without_a_text_to_check_against_the_test_is_still_python():
    for message in ("", "no # of (things) [#] and 'more' \\ + *", "x" * 400):
        marks = marks_of(Signature("compile_error", "compile", ("E",), message))
        assert holds(marks.expression, "E: " + re.sub("#", "3", message)) in (True, False)
