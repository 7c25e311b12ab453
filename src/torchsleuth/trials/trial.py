"""The contract between whoever searches and whoever runs: one Trial in, one Outcome out.

A Trial is plain data, so that it can go to another process or machine: a graph as source, its inputs by
description (values lie in a tensor store both sides can read), the settings, and the failure looked for. An
Outcome says how it failed, if it did; a crash, a hang or a kill is an Outcome like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchsleuth.script_runtime.signature import Signature, fails_the_same_way, signature_from_json


@dataclass(frozen=True)
class Trial:
    """One question: does this graph, on these inputs, under these settings, fail, and how?

    `facts` are those of a written script (level, backend, inputs, config, state, ...); `graph` is the printed graph;
    `embedded` is source of the user's own definitions; `store` is the folder that holds kept values.
    """

    graph: str
    facts: Mapping[str, Any]
    expected: Signature
    embedded: str = ""
    imports: tuple[str, ...] = ()
    store: str | None = None
    # Once the phase in which the original failed has passed, the rest is not run.
    stop_early: bool = True

    @property
    def key(self) -> str:
        """Equal for trials that ask the same question; the name under which an answer is remembered.

        >>> Trial("", {}, Signature("crash", "run")).key == Trial("", {}, Signature("crash", "run")).key
        True
        """
        parts = [self.graph, self.embedded, list(self.imports), dict(self.facts), self.expected.to_json()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. `signature` is None where nothing failed; `error` says why nothing can be told."""

    signature: Signature | None
    seconds: float
    error: str | None = None
    text: str = ""
    cached: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    def fails_like(self, expected: Signature) -> bool:
        """Whether this is the failure looked for.

        >>> Outcome(None, 0.1).fails_like(Signature("crash", "run"))
        False
        """
        return self.signature is not None and fails_the_same_way(expected, self.signature)


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """A trial as a message: `trial_from_json(trial_to_json(trial)) == trial`."""
    return {
        "graph": trial.graph,
        "facts": dict(trial.facts),
        "expected": trial.expected.to_json(),
        "embedded": trial.embedded,
        "imports": list(trial.imports),
        "store": trial.store,
        "stop_early": trial.stop_early,
    }


def trial_from_json(doc: Mapping[str, Any]) -> Trial:
    """The trial that `trial_to_json` wrote."""
    return Trial(
        doc["graph"],
        doc["facts"],
        signature_from_json(doc["expected"]),
        doc["embedded"],
        tuple(doc["imports"]),
        doc["store"],
        doc["stop_early"],
    )


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a message: `outcome_from_json(outcome_to_json(Outcome(None, 0.1))).seconds == 0.1`."""
    return {
        "signature": outcome.signature.to_json() if outcome.signature else None,
        "seconds": round(outcome.seconds, 4),
        "error": outcome.error,
        "text": outcome.text,
        "more": dict(outcome.more),
    }


def outcome_from_json(doc: Mapping[str, Any], *, cached: bool = False) -> Outcome:
    """The outcome that `outcome_to_json` wrote."""
    signature = signature_from_json(doc["signature"]) if doc["signature"] else None
    return Outcome(signature, doc["seconds"], doc["error"], doc["text"], cached, doc["more"])
