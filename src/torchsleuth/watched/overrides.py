"""Changes to the compiles of a program that is not touched itself, handed over in one environment variable.

Whoever tries a workaround on the user's whole program, or runs it with less of the compiler, starts it with this
variable; processes that the program starts inherit it. `apply_overrides.py` puts them in place there; here is only
what both sides agree on, so no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

OVERRIDES_VARIABLE = "TORCHSLEUTH_OVERRIDES"


@dataclass(frozen=True)
class Overrides:
    """What is different: settings as Python text by module, the backend, and what stays eager.

    `fallback` are operators Inductor leaves to their eager kernels, `decompositions` those it gets whole; `functions`
    are (file, function, line), `modules` paths below what is compiled, `classes` those of torch.nn (`nn.ReLU`).
    `traced` are functions, known like `functions`, whose inside Dynamo does not look at: they go into the graph whole.
    `snippet` is Python that runs before the first compile; `uncompiled` leaves every torch.compile out; with
    `graph_breaks` each may break its graph, as if `fullgraph=True` was not there; with `fullgraph` none may.
    `rewritten` are (file, first line, last line, text): the functions of that file run as if the text stood there.
    `dynamic_dims` are (function, argument, dimension) to be marked as if by `mark_dynamic` before the call. `backend`
    and `mode` take the place of those that torch.compile is given. `dtype` is what the program computes in unless it
    says otherwise itself: under autocast for `bfloat16` and `float16`, as default dtype for `float32` and `float64`.

    >>> Overrides(backend="aot_eager").to_environment()
    {'TORCHSLEUTH_OVERRIDES': '{"backend": "aot_eager"}'}
    """

    config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    backend: str | None = None
    mode: str | None = None
    dtype: str | None = None
    dynamic: bool | None = None
    fallback: tuple[str, ...] = ()
    decompositions: tuple[str, ...] = ()
    functions: tuple[tuple[str, str, int], ...] = ()
    traced: tuple[tuple[str, str, int], ...] = ()
    modules: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    snippet: str = ""
    uncompiled: bool = False
    graph_breaks: bool = False
    fullgraph: bool = False
    rewritten: tuple[tuple[str, int, int, str], ...] = ()
    dynamic_dims: tuple[tuple[str, str, int], ...] = ()

    def to_environment(self) -> dict[str, str]:
        """The variable for the program's environment; none where nothing is changed."""
        given = self.to_json()
        return {OVERRIDES_VARIABLE: json.dumps(given)} if given else {}

    def over(self, base: Overrides | None) -> Overrides:
        """These and those of `base` that say nothing else.

        >>> Overrides(backend="eager").over(Overrides(backend="inductor", dtype="bfloat16")).to_json()
        {'backend': 'eager', 'dtype': 'bfloat16'}
        """
        if base is None:
            return self
        config = {
            module: {**base.config.get(module, {}), **self.config.get(module, {})}
            for module in {**base.config, **self.config}
        }
        return overrides_from_json({**base.to_json(), **self.to_json(), "config": config})

    def to_json(self) -> dict[str, Any]:
        """What is changed, and nothing else; `overrides_from_json` reads it back."""
        blank = asdict(Overrides())
        return {key: value for key, value in asdict(self).items() if value != blank[key]}


def overrides_from_environment(environment: Mapping[str, str] = os.environ) -> Overrides | None:
    """What this process was started with, or None."""
    text = environment.get(OVERRIDES_VARIABLE)
    return overrides_from_json(json.loads(text)) if text else None


def overrides_from_json(document: Mapping[str, Any]) -> Overrides:
    """What `to_json` wrote: `overrides_from_json({"fallback": ["aten.erf.default"]})`."""
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in document.items()}
    for key in ("functions", "traced", "dynamic_dims"):
        given[key] = tuple((first, second, number) for first, second, number in given.get(key, ()))
    given["rewritten"] = tuple((f, first, last, text) for f, first, last, text in given.get("rewritten", ()))
    return Overrides(**given)


def with_lines(text: str, first: int, last: int, after: str) -> str:
    """The text of a file with other lines in place of some, filled up so that those below keep their numbers.

    >>> with_lines("a\\nb\\nc\\nd", 2, 3, "e")
    'a\\ne\\n\\nd'
    """
    lines = text.splitlines()
    new = after.splitlines()
    new += [""] * (last - first + 1 - len(new))
    return "\n".join([*lines[: first - 1], *new, *lines[last:]])
