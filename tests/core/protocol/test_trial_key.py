"""A remembered answer is found again for the same question, and for no other."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.core.cases.record import AmbientState, CompileSettings
from torchsleuth.core.changes import Change
from torchsleuth.core.protocol.codec import from_json, to_json
from torchsleuth.core.protocol.trials import AnalysisWishes, Question, Trial
from torchsleuth.script_runtime.signature import Signature

words = st.text("abc.:_ é\n", max_size=4)
plain = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), words)
mappings = st.dictionaries(words, plain, max_size=2)
texts = st.dictionaries(words, words, max_size=2)
nested = st.dictionaries(words, texts, max_size=2)
tuples = st.lists(words, max_size=2).map(tuple)
maybe = st.none() | words

states = st.builds(AmbientState, st.booleans(), st.booleans(), words, words, st.booleans(), texts)
FIELDS = {
    "graph": words,
    "expected": st.builds(Signature, words, words, tuples, words, tuples, maybe, tuples),
    "settings": st.builds(
        CompileSettings,
        *(words, words, words),
        texts,
        mappings,
        nested,
        st.none() | states,
        st.none() | st.lists(st.integers(0, 3), max_size=2).map(tuple),
    ),
    "placeholders": tuples,
    "inputs": mappings,
    "constants": mappings,
    "tolerances": st.dictionaries(words, st.floats(0, 1), max_size=2),
    "kind": maybe,
    "change": st.builds(
        Change,
        off=st.dictionaries(words, mappings, max_size=2),
        backend=maybe,
        interpret=st.booleans(),
        uncompiled=st.booleans(),
        stop_after=maybe,
        snippet=words,
    ),
    "trace": maybe,
    "fill": st.integers(0, 255),
    "time_runs": st.booleans(),
    "embedded": words,
    "imports": tuples,
    "stop_early": st.booleans(),
    "measure_noise": st.booleans(),
    "must_pass_in_eager": st.booleans(),
    "question": st.sampled_from(Question),
    "analysis": st.builds(AnalysisWishes, maybe, maybe, tuples),
}
trials = st.builds(Trial, **FIELDS, store=maybe)


def test_every_field_of_a_trial_is_looked_at_here():
    assert {each.name for each in fields(Trial)} == {*FIELDS, "store"}


@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=50)
@given(trials, st.data())
def test_another_value_of_a_field_makes_another_question(name, trial, data):
    other = data.draw(FIELDS[name].filter(lambda value: value != getattr(trial, name)))
    assert replace(trial, **{name: other}).key != trial.key


@settings(max_examples=50)
@given(trials, maybe)
def test_where_the_values_lie_makes_no_other_question(trial, store):
    assert replace(trial, store=store).key == trial.key


@settings(max_examples=50)
@given(trials)
def test_a_trial_that_came_as_a_message_asks_the_same(trial):
    again = from_json(Trial, json.loads(json.dumps(to_json(trial))))
    assert again == trial and again.key == trial.key
