"""The fewest settings that matter, pairs included."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.core.cases.record import CompileSettings
from torchsleuth.core.change_table import setting
from torchsleuth.core.changes import INDUCTOR
from torchsleuth.search.blame.runner import only_settings, settings_of, switchable, with_config
from torchsleuth.search.minify.contract import State
from torchsleuth.search.minify.subsets import smallest


@given(st.sets(st.integers(0, 24), min_size=1, max_size=4))
def test_whatever_is_needed_together_is_found_and_nothing_else(needed):
    asked: list[Sequence[int]] = []

    def enough(sets: Sequence[Sequence[int]]) -> list[bool]:
        asked.extend(sets)
        return [needed <= set(each) for each in sets]

    assert set(smallest(range(25), enough)) == needed
    assert len(asked) <= 10 + 25  # halving, then at most once each


@given(st.sets(st.integers(0, 15), min_size=1))
def test_one_of_several_that_are_each_enough_is_found_fast(good):
    asked: list[Sequence[int]] = []

    def enough(sets: Sequence[Sequence[int]]) -> list[bool]:
        asked.extend(sets)
        return [bool(good & set(each)) for each in sets]

    found = smallest(range(16), enough)
    assert len(found) == 1 and found[0] in good
    assert len(asked) <= 8


def state(**settings) -> State:
    return State(torch.fx.symbolic_trace(torch.nn.Identity()), (), {}, CompileSettings(**settings))


def test_settings_of_both_kinds_are_counted_once_and_can_be_left_out():
    given_state = state(config={INDUCTOR: {"a": "1", "b": "2"}}, options={"b": "2", "c": "3"})
    assert settings_of(given_state) == [(INDUCTOR, "a"), (INDUCTOR, "b"), ("options", "c")]
    left = only_settings(given_state, [(INDUCTOR, "b")])
    assert left.settings.config == {INDUCTOR: {"b": "2"}} and left.settings.options == {"b": "2"}


def test_a_setting_given_as_an_option_is_changed_there_as_well():
    changed = with_config(
        state(config={}, options={"epilogue_fusion": "True"}), {INDUCTOR: {"epilogue_fusion": "False"}}
    )
    assert changed.settings.options == {"epilogue_fusion": "False"}
    assert changed.settings.config == {INDUCTOR: {"epilogue_fusion": "False"}}


def test_flags_that_stand_at_their_cautious_value_or_are_unknown_to_this_torch_are_not_tried():
    flags = [
        setting("epilogue_fusion", "False", "fusion"),
        setting("use_fast_math", "False", "fast mathematics"),
        setting("no_such_setting_anywhere", "False", "nothing"),
    ]
    assert [each.keys for each in switchable(state(config={}), flags)] == [["epilogue_fusion"]]
    assert switchable(state(config={INDUCTOR: {"epilogue_fusion": "False"}}), flags) == []
