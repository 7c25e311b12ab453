"""Compile time from events: every second is counted once, whatever the process did before it ended."""

import csv
import io
import xml.etree.ElementTree as xml
from dataclasses import replace

import pytest

from torchsleuth.front.observe.events import Event
from torchsleuth.front.observe.profile import profile_of
from torchsleuth.front.observe.profile_text import (
    chrome_trace,
    flame_of,
    flame_svg,
    profile_csv,
    profile_lines,
)
from torchsleuth.watched.observe.captures import unrolled


def begin(at, name, graph="0/0", thread=1, pid=7, **more):
    return Event("step_begin", at, pid, {"name": name, "graph": graph, "thread": thread, **more})


def end(at, name, thread=1, pid=7):
    return Event("step_end", at, pid, {"name": name, "thread": thread})


def frame(graph="0/0", function="step", pid=7, code=None):
    # Written when the compile is over.
    facts = {
        "id": graph,
        "function": function,
        "file": "/home/me/train.py",
        "line": 12,
        "code": code or function,
    }
    return Event("frame", 99.0, pid, facts)


ONE_COMPILE = [
    begin(0, "dynamo"),
    begin(1, "backend_compile"),
    begin(2, "GraphLowering.run"),
    end(5, "GraphLowering.run"),
    end(6, "backend_compile"),
    begin(6, "build_guards"),
    end(6.5, "build_guards"),
    end(8, "dynamo"),
]


def phases(profile):
    return {row.name: row.seconds for row in profile.by_phase}


def test_a_compile_that_was_under_way_at_the_end_is_put_to_its_function():
    under_way = replace(frame(), kind="frame_begin", at=0.0)
    again = [replace(each, at=each.at + 100) for each in (under_way, *ONE_COMPILE[:3])]
    ended = profile_of([under_way, *ONE_COMPILE, frame(), *again])
    killed = profile_of([under_way, *ONE_COMPILE[:3]])
    assert [row.name for row in killed.by_function] == ["step (train.py:12)"]
    assert [(row.name, row.count) for row in ended.by_function] == [("step (train.py:12)", 2)]


def test_phases_add_up_to_the_whole_as_each_step_counts_without_what_is_inside_it():
    profile = profile_of([*ONE_COMPILE, frame()])
    assert phases(profile) == {"capture": 2.5, "guards": 0.5, "backend": 2.0, "lowering": 3.0}
    assert sum(phases(profile).values()) == profile.seconds == 8
    assert [(row.name, row.seconds) for row in profile.by_function] == [("step (train.py:12)", 8)]


def test_a_step_torch_has_not_told_us_of_belongs_to_the_phase_around_it():
    steps = [begin(0, "GraphLowering.run"), begin(1, "a_step_of_next_year"), end(3, "a_step_of_next_year")]
    assert phases(profile_of([*steps, end(4, "GraphLowering.run")])) == {"lowering": 4}


def test_a_kernel_compiled_on_another_thread_is_shown_and_not_added():
    other = [begin(1, "compile_file", graph=None, thread=2), end(5, "compile_file", thread=2)]
    wait = [
        begin(0, "dynamo"),
        begin(1, "async_compile.wait"),
        *other,
        end(5, "async_compile.wait"),
        end(6, "dynamo"),
    ]
    profile = profile_of(wait)
    assert profile.seconds == 6 and phases(profile)["C++/Triton"] == 4
    assert [step.name for step in profile.parallel] == ["compile_file"]


def test_a_step_left_by_an_error_ends_where_the_step_around_it_does():
    profile = profile_of([begin(0, "dynamo"), begin(1, "GraphLowering.run"), end(4, "dynamo")])
    assert phases(profile) == {"capture": 1, "lowering": 3}


def test_a_killed_process_shows_what_it_was_doing():
    profile = profile_of(
        [begin(0, "dynamo"), begin(1, "compile_file"), Event("cache", 9.0, 7, {"name": "x_miss"})]
    )
    assert profile.to_json()["unfinished"] == ["dynamo", "compile_file"]
    assert phases(profile) == {"capture": 1, "C++/Triton": 8}
    assert any("not ended" in line and "compile_file" in line for line in profile_lines(profile))


def test_two_processes_with_the_same_ids_are_told_apart():
    second = [begin(0, "dynamo", pid=8), end(3, "dynamo", pid=8)]
    profile = profile_of([*ONE_COMPILE, *second, frame(), frame(function="loss", pid=8)])
    assert [row.name for row in profile.by_graph] == ["0/0 in process 7", "0/0 in process 8"]
    assert {row.name for row in profile.by_function} == {"step (train.py:12)", "loss (train.py:12)"}


def test_a_backward_is_a_row_of_its_own_and_the_rest_of_a_function_is_part_of_it():
    backward = [begin(10, "entire_backward_compile"), end(12, "entire_backward_compile")]
    rest = [begin(20, "dynamo", graph="1/0"), end(21, "dynamo")]
    frames = [frame(), frame("1/0", code="torch_dynamo_resume_in_step_at_14")]
    profile = profile_of([*ONE_COMPILE, *backward, *rest, *frames])
    rows = [(row.name, row.function, row.seconds) for row in profile.by_graph]
    assert rows == [("0/0", "step", 8), ("0/0 backward", "step", 2), ("1/0", "step (rest)", 1)]
    assert [(row.name, row.count, row.seconds) for row in profile.by_function] == [
        ("step (train.py:12)", 3, 11)
    ]


def test_ids_that_torch_uses_again_after_a_reset_are_other_graphs():
    def frame_at(at, function):
        return Event("frame", at, 7, {**frame().fields, "function": function, "code": function})

    def backward(at):
        return [begin(at, "entire_backward_compile"), end(at + 1, "entire_backward_compile")]

    again = [begin(20, "dynamo"), end(23, "dynamo"), frame_at(23, "loss"), *backward(30)]
    profile = profile_of([*ONE_COMPILE, frame_at(8, "step"), *backward(10), *again])
    assert {(row.name, row.function, row.seconds) for row in profile.by_graph} == {
        ("0/0", "step", 8),
        ("0/0 backward", "step", 1),
        ("0/0 after reset 1", "loss", 3),
        ("0/0 backward after reset 1", "loss", 1),
    }


@pytest.mark.parametrize("broken", [{}, {"name": None, "thread": "x", "graph": []}, {"name": "a" * 9999}])
def test_events_that_make_no_sense_make_no_error(broken):
    kinds = ("step_begin", "step_end", "cache", "frame")
    profile = profile_of([Event(kind, 1.0, 1, broken) for kind in kinds])
    flame_svg(flame_of(profile), "x")
    assert list(profile_lines(profile)) and profile_csv(profile) and chrome_trace(profile)


def test_a_function_name_cannot_break_out_of_the_drawing():
    profile = profile_of([*ONE_COMPILE, frame(function="<script>alert(1)</script>&")])
    drawing = flame_svg(flame_of(profile), "<b>")
    xml.fromstring(drawing)
    assert "<script" not in drawing and "<b>" not in drawing


def test_the_trace_for_perfetto_holds_every_step_in_microseconds():
    trace = chrome_trace(profile_of([*ONE_COMPILE, frame()]))
    steps = {event["name"]: event for event in trace["traceEvents"] if event["ph"] == "X"}
    assert steps["GraphLowering.run"]["ts"] == 2e6 and steps["GraphLowering.run"]["dur"] == 3e6
    assert steps["GraphLowering.run"]["args"] == {"graph": "0/0", "function": "step"}


def test_the_table_for_a_spreadsheet_has_a_row_for_each_graph():
    rows = list(csv.DictReader(io.StringIO(profile_csv(profile_of([*ONE_COMPILE, frame()])))))
    assert [(row["graph"], row["seconds"], row["lowering"]) for row in rows] == [
        ("0/0", "8.000000", "3.000000")
    ]


def looped(calls=("/m/model.py", 4, "block"), rounds=30, ops=60, of=70):
    facts = {"file": "/m/train.py", "line": 9, "code": "x = block(x)", "function": "forward", "frame": 0}
    return Event("loop", 1.0, 7, {**facts, "rounds": rounds, "ops": ops, "of": of, "calls": calls})


def loop_of(*events, **known):
    profile = profile_of([*ONE_COMPILE, *events])
    return "\n".join(profile_lines(replace(profile, loop=replace(profile.loop, **known))))


def test_a_loop_that_was_unrolled_is_the_cause_and_what_was_not_tried_is_an_idea():
    said = loop_of(looped())
    assert "the loop around train.py:9 was unrolled 30 times: 86 % of the 70 operations of its graph" in said
    assert (
        "idea    @torch.compiler.nested_compile_region   above the `def block` that holds model.py:4" in said
    )
    assert "(not tried)" in said


def test_a_cure_of_a_loop_is_to_be_pasted_only_where_it_made_compiling_shorter():
    assert "paste   @torch.compiler" in loop_of(looped(), whole=190.0, once=12.0)
    assert "compile time 190.0 → 12.0 s" in loop_of(looped(), whole=190.0, once=12.0)
    assert "paste" not in loop_of(looped(), whole=10.0, once=9.9)
    assert "(not tried: the time was up)" in loop_of(looped(), why_not="the time was up")


def test_a_loop_without_a_function_to_mark_and_one_that_is_a_small_part_of_its_graph():
    assert "move the body of the loop into a function" in loop_of(looped(calls=None))
    assert "cause" not in "\n".join(profile_lines(profile_of([*ONE_COMPILE, looped(ops=10)])))


def test_the_line_of_a_loop_inside_of_a_called_function_is_that_of_the_loop():
    outer = ("m.py", 20, "forward", "y = deep(x)")
    body = [((outer, ("m.py", 5, "deep", "x = x.sin()")), "sin")] * 8
    found = unrolled([*body, ((outer, ("m.py", 6, "deep", "return x + 1")), "add")])
    assert (found["line"], found["rounds"], found["calls"]) == (5, 8, None)
    assert unrolled(body[:3]) is None
