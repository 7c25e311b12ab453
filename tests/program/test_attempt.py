"""An attempt crosses from the search's process to the one that runs the program, and stays the same."""

import json

import pytest

from torchsleuth.core.cases.model import Workaround
from torchsleuth.core.changes import Change
from torchsleuth.front.program.attempt import Attempt, attempt_from_json


@pytest.mark.parametrize(
    "attempt",
    [
        Attempt(Workaround("torch 2.12.0", "pip install torch==2.12.0", False, "not tried")),
        Attempt(Workaround("a", "b", True, cost=1.5), Change()),
        Attempt(
            Workaround("setting", "x = 1", True, program=True),
            Change(
                config={"torch._inductor.config": {"freezing": "False"}},
                dynamic=False,
                off={"lowerings": {"names": ["aten.erf.default"]}},
                functions=(("/a.py", "f", 3), ("/b.py", "g", 7)),
            ),
        ),
    ],
)
def test_an_attempt_goes_to_json_and_back(attempt):
    assert attempt_from_json(json.loads(json.dumps(attempt.to_json()))) == attempt
