"""The contract between whoever searches and whoever runs: one Trial in, one Outcome out.

A Trial is plain data, so that it can go to another process or machine: a graph as source, its inputs by
description (values lie in a tensor store both sides can read), the settings, and the failure looked for. An
Outcome says how it failed, if it did; a crash, a hang or a kill is an Outcome like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from torchsleuth.core.cases.record import CompileSettings
from torchsleuth.core.changes import NOTHING, Change, change_from_json
from torchsleuth.core.criteria import SAME
from torchsleuth.script_runtime.signature import Signature, signature_from_json

# The phase of a failure without the compiler.
EAGER = "eager"


class Question(Enum):
    """What a trial asks. All but the first are what a search needs and must not find out in its own process."""

    FAILS = "does it fail, and how"
    RECORD = "what every node yields in eager"
    RECORD_FAKE = "what every node would yield, by shape alone"
    SHAPES = "do shapes and dtypes go together"
    NOISE = "how far rounding alone moves the results"
    DEFINITIONS = "the user's operators that the graph calls"
    EAGER_SECONDS = "how long a run without the compiler takes"
    FOREIGN_SCRIPT = "what a script of PyTorch's minifier holds"
    PROGRAM = "does a whole program fail, and how"
    DIVERGENCE = "where its compiled run leaves eager's way"


@dataclass(frozen=True)
class Trial:
    """One question: does this graph, on these inputs, under these settings, fail, and how?

    `graph` is the printed graph; `embedded` is source of the user's own definitions; `inputs` and `constants` are
    descriptions, as `tensors.specs` writes them, of tensors whose kept values lie in the folder `store`.
    """

    graph: str
    expected: Signature
    settings: CompileSettings = field(default_factory=CompileSettings)
    placeholders: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    # Checks as for this kind of failure ("accuracy": against eager); None for the kind that is expected.
    kind: str | None = None
    # What is different in the compiler.
    change: Change = NOTHING
    time_runs: bool = False
    embedded: str = ""
    imports: tuple[str, ...] = ()
    store: str | None = None
    # Once the phase in which the original failed has passed, the rest is not run.
    stop_early: bool = True
    # Results are compared by what rounding noise explains, measured first; `tolerances` go before that.
    measure_noise: bool = False
    # What fails without the compiler as well is not the failure looked for: it is one of phase EAGER.
    must_pass_in_eager: bool = False
    question: Question = Question.FAILS
    # Of an analysis: `told`, the file that is told its parts as they come; `without`, the phases to leave out;
    # `values`, the folder for what it compares.
    analysis: Mapping[str, Any] = field(default_factory=dict)
    # A file for the steps of the compile.
    trace: str | None = None
    # The byte that fresh memory holds, so that what nobody wrote is not the same twice.
    fill: int = 0

    @property
    def key(self) -> str:
        """Equal for trials that ask the same question; the name under which an answer is remembered.

        >>> Trial("", Signature("crash", "run")).key == Trial("", Signature("crash", "run")).key
        True
        """
        asked = {**trial_to_json(self), "store": None}  # where the values lie is no part of the question
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. `signature` is None where nothing failed; `error` says why nothing can be told."""

    signature: Signature | None
    seconds: float
    error: str | None = None
    text: str = ""
    cached: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def had(self) -> float:
        """Seconds apart from those in which the trial stood in line for a core, where that was measured."""
        return float(self.more.get("had", self.seconds))

    def fails_like(self, expected: Signature) -> bool:
        """Whether this is the failure looked for.

        >>> Outcome(None, 0.1).fails_like(Signature("crash", "run"))
        False
        """
        return self.signature is not None and SAME.same(expected, self.signature)


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """A trial as a message: `trial_from_json(trial_to_json(trial)) == trial`."""
    return {
        **{each.name: getattr(trial, each.name) for each in fields(trial)},
        "expected": trial.expected.to_json(),
        "settings": trial.settings.to_json(),
        "change": trial.change.to_json(),
        "question": trial.question.name,
    }


def trial_from_json(doc: Mapping[str, Any]) -> Trial:
    """The trial that `trial_to_json` wrote."""
    made = {
        "expected": signature_from_json(doc["expected"]),
        "settings": CompileSettings.from_json(doc["settings"]),
        "change": change_from_json(doc["change"]),
        "placeholders": tuple(doc["placeholders"]),
        "imports": tuple(doc["imports"]),
        "question": Question[doc["question"]],
    }
    return Trial(**{**doc, **made})


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a message: `outcome_from_json(outcome_to_json(Outcome(None, 0.1))).seconds == 0.1`."""
    signature = outcome.signature.to_json() if outcome.signature else None
    told = {"error": outcome.error, "text": outcome.text, "more": dict(outcome.more)}
    return {"signature": signature, "seconds": round(outcome.seconds, 4), **told}


def outcome_from_json(doc: Mapping[str, Any], *, cached: bool = False) -> Outcome:
    """The outcome that `outcome_to_json` wrote."""
    signature = signature_from_json(doc["signature"]) if doc["signature"] else None
    return Outcome(signature, doc["seconds"], doc["error"], doc["text"], cached, doc["more"])
