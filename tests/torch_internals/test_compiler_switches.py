"""Switches of the compiler are ours inside the context, say what was applied, and are back afterwards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from torchsleuth.torch_internals.compile_stages import stopping_after
from torchsleuth.torch_internals.compile_trace import Step, traced, unfinished
from torchsleuth.torch_internals.compiler_switches import is_off, switched
from torchsleuth.torch_internals.configuration import restore_settings, saved_settings, see_every_compile


@given(st.integers(0, 9), st.integers(0, 9))
def test_windows_mean_what_they_say(place, number):
    assert is_off(None, place, ("relu",)) is False
    assert is_off({}, place, ("relu",)) is True
    assert is_off({"but": ["relu"]}, place, ("relu",)) is False
    assert is_off({"keep": number}, place, ("relu",)) is (place >= number)
    assert is_off({"skip": [number]}, place, ("relu",)) is (place == number)
    assert is_off({"names": ["aten.relu.default"]}, place, ("relu_1", "aten.relu.default")) is True
    assert is_off({"names": ["relu"]}, place, ("relu_1", "aten.relu.default")) is False


class Enough(BaseException):
    pass


@pytest.fixture(autouse=True)
def _settings():
    saved = saved_settings()
    see_every_compile()
    yield
    restore_settings(saved)


def lower(function) -> None:
    """Compiles up to the end of lowering: no C++ compiler is needed."""
    from torch._inductor.compile_fx import compile_fx_inner

    x = torch.randn(8)
    graph = make_fx(function, tracing_mode="fake")(x)
    with stopping_after("lowering", Enough), pytest.raises(Enough):
        compile_fx_inner(graph, [x])


def test_what_was_applied_is_recorded_and_a_lowering_can_be_left_out():
    from torch._inductor.compiler_bisector import CompilerBisector

    before = CompilerBisector.__dict__["disable_subsystem"]
    with switched({"lowerings": {"names": ["aten.sin.default"]}}) as applied:
        lower(lambda x: (x.sin().cos() + 1,))
    assert applied.missing == []
    assert applied.names["lowerings"] == [
        "aten.sin.default at sin",
        "aten.cos.default at cos",
        "aten.add.Tensor at add",
    ]
    assert "remove_noop_ops" in applied.names["post_grad_passes"]
    assert CompilerBisector.__dict__["disable_subsystem"] is before


def test_a_compile_that_raises_leaves_its_place_in_the_trace(tmp_path, monkeypatch):
    from torch._inductor.lowering import lowerings

    def broken(*_):
        raise NotImplementedError("no sine today")

    monkeypatch.setitem(lowerings, torch.ops.aten.sin.default, broken)
    path = tmp_path / "trace.txt"
    from torch._inductor.compile_fx import compile_fx_inner

    x = torch.randn(8)
    graph = make_fx(lambda x: (x.cos().sin() + 1,), tracing_mode="fake")(x)
    with traced(str(path)), pytest.raises(Exception, match="no sine today"):
        compile_fx_inner(graph, [x])
    *outer, last = unfinished(path)
    assert last == Step("lower", "aten.sin.default", ("sin",))
    assert "lowering" in [step.kind for step in outer]


def test_where_one_of_several_results_cannot_be_taken_it_is_the_operator_that_made_them(
    tmp_path, monkeypatch
):
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.lowering import lowerings

    monkeypatch.setitem(lowerings, torch.ops.aten.topk.default, lambda x, *_: x)
    x = torch.randn(8)
    graph = make_fx(lambda x: (torch.topk(x, 2)[0],), tracing_mode="fake")(x)
    with traced(str(tmp_path / "trace.txt")), pytest.raises(Exception, match="getitem"):
        compile_fx_inner(graph, [x])
    assert unfinished(tmp_path / "trace.txt")[-1] == Step("lower", "aten.topk.default", ("topk",))


def test_a_torn_trace_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text(
        ">\t0\tlowering\t\t\n>\t1\tlower\taten.sin.default\tsin\n<\t1\n>\t1\tlower\taten.cos.default\tcos\n>\t"
    )
    assert unfinished(path) == (Step("lowering"), Step("lower", "aten.cos.default", ("cos",)))
    assert unfinished(tmp_path / "none.txt") == ()


def test_a_step_that_failed_and_was_handled_is_not_where_it_stopped(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text(
        ">\t0\tlowering\t\t\n>\t1\tlower\taten.sin.default\tsin\n>\t1\tlower\taten.cos.default\tcos\n<\t1\n<\t0\n"
    )
    assert unfinished(path) == ()
