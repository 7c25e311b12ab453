"""One thing of the compiler or its caches that is different from how something failed, as data and in words.

Every step that tries something tries a row of the table (`change_table.py`). A change goes to a trial as part of it,
and to a program, which is not touched itself, in an environment variable, which the processes that it starts inherit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torchsleuth.core.protocol.codec import Document, from_json, plain

INDUCTOR, DYNAMO = "torch._inductor.config", "torch._dynamo.config"
# Backends of ours stand for those of torch with the rest of the name.
OWN_BACKEND = "sleuth_"
CHANGE_VARIABLE = "TORCHSLEUTH_OVERRIDES"

Config = Mapping[str, Mapping[str, str]]
Place = tuple[str, str, int]  # file, function, and one of its lines


def _word(default: Any = "") -> Any:
    """A field that says something about a change and does not make it another one."""
    return field(default=default, compare=False)


@dataclass(frozen=True)
class Change:
    """What is different, as data; and in words, which are no part of the question.

    >>> Change(backend="aot_eager") == Change("as aot_eager has it", backend="aot_eager")
    True
    """

    # The sentence in a list of what was tried; what is at fault where this row makes the difference.
    what: str = _word()
    component: str = _word()
    part: str | None = _word(None)
    # As a workaround: what it is called, what a person pastes, what that switches off, and how much that is.
    name: str = _word()
    how: str = _word()
    disables: str = _word()
    reach: int = _word(0)

    # Settings as Python text by module; windows by subsystem (see `torch_internals.compiler_switches`), of which a
    # program takes operators by name; Python that runs first, as it would be pasted.
    config: Config = field(default_factory=dict, hash=False)
    off: Mapping[str, Document] = field(default_factory=dict, hash=False)
    snippet: str = ""
    # What takes the place of what torch.compile is given; with `uncompiled` nothing is compiled.
    backend: str | None = None
    mode: str | None = None
    dynamic: bool | None = None
    uncompiled: bool = False

    # Of a graph, how much of its compile is run: no generated code, only the passes, what Dynamo captures, no backward,
    # nothing after the stage "joint", "lowering" or "codegen".
    interpret: bool = False
    passes_alone: bool = False
    capture_only: bool = False
    forward_only: bool = False
    stop_after: str | None = None
    # Of a graph, what can only be cut: nodes that stay eager, the node before which it is cut in two, torch's default
    # settings, gradients switched off where the program enters inference mode.
    eager_nodes: frozenset[str] = frozenset()
    cut_before: str | None = None
    default_settings: bool = False
    no_inference_mode: bool = False

    # Of a program: functions, paths of modules and classes of torch.nn (`nn.ReLU`) that stay eager; functions that go
    # into the graph whole, their inside unseen; whether graphs may break, in spite of fullgraph=True, or may not;
    # (file, first line, last line, text) that runs in place of these lines; (function, argument, dimension) to be
    # marked dynamic; the dtype it computes in unless it says another itself, under autocast for `bfloat16` and
    # `float16`; and whether it may answer from what it compiled before.
    functions: tuple[Place, ...] = ()
    modules: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    traced: tuple[Place, ...] = ()
    graph_breaks: bool = False
    fullgraph: bool = False
    rewritten: tuple[tuple[str, int, int, str], ...] = ()
    # `edited` is like `rewritten`, of the script itself and from its start, so for lines outside of functions, too.
    edited: tuple[tuple[str, int, int, str], ...] = ()
    dynamic_dims: tuple[tuple[str, str, int], ...] = ()
    dtype: str | None = None
    own_cache: bool = False

    @property
    def keys(self) -> list[str]:
        """The settings that it changes.

        >>> Change(config={"torch._inductor.config": {"fallback_random": "True"}}).keys
        ['fallback_random']
        """
        return [key for values in self.config.values() for key in values]

    @property
    def in_graphs(self) -> Change:
        """What is left of it for a trial of a graph that was cut as it says."""
        config = {} if self.default_settings else self.config
        return Change(
            self.what or self.name,
            config=config,
            off=self.off,
            snippet=self.snippet,
            backend=self.backend,
            forward_only=self.forward_only,
        )

    @property
    def for_programs(self) -> bool:
        """Whether a whole program can be run with it, as well as a graph."""
        return bool(self.to_json()) and not (self.cut_before or self.no_inference_mode)

    @property
    def as_printed(self) -> Change:
        """For a run of a program: the lines that are shown, where they are lines for its top, beside the cache it has.

        >>> Change(how="torch.manual_seed(0)", config={"torch._inductor.config": {}}).as_printed.snippet
        'torch.manual_seed(0)'
        """
        ours = self.backend is not None and self.backend.startswith(OWN_BACKEND)
        if self.backend is not None and ours and self.how.startswith("torch.compile("):
            return replace(self, backend=self.backend.removeprefix(OWN_BACKEND))
        other = set(self.to_json()) - {"config", "off", "snippet", *(["backend"] if ours else [])}
        if not self.how or other:
            return self
        return Change(
            self.what and f"{self.what}, as it is pasted", name=self.name, snippet=self.how, own_cache=True
        )

    def over(self, base: Change | None) -> Change:
        """This and what of `base` it says nothing else about.

        >>> Change(backend="eager").over(Change(backend="inductor", dtype="bfloat16")).to_json()
        {'backend': 'eager', 'dtype': 'bfloat16'}
        """
        if base is None:
            return self
        config = merged(base.config, self.config)
        return Change.from_json({**base.to_json(), **self.to_json(), "config": config})

    def to_environment(self) -> dict[str, str]:
        """The variable for a program's environment; none where nothing is changed.

        >>> Change(backend="aot_eager").to_environment()
        {'TORCHSLEUTH_OVERRIDES': '{"backend": "aot_eager"}'}
        """
        of_graphs = ("cut_before", "default_settings", "no_inference_mode", "own_cache")
        given = {key: value for key, value in self.to_json().items() if key not in of_graphs}
        return {CHANGE_VARIABLE: json.dumps(given)} if given else {}

    def to_json(self) -> dict[str, object]:
        """What is changed, without words, and without nodes, which stay where their graph is."""
        unsaid = {each.name for each in fields(self) if not each.compare} | {"eager_nodes"}
        given = {key: value for key, value in plain(self).items() if key not in unsaid}
        return {key: value for key, value in given.items() if value != _BLANK[key]}

    @staticmethod
    def from_json(document: Document) -> Change:
        """What `to_json` wrote: `Change.from_json({"modules": ["act"]})`."""
        return from_json(Change, document)


NOTHING = Change()
_BLANK = plain(NOTHING)


def change_from_environment(environment: Mapping[str, str] = os.environ) -> Change | None:
    """What this process was started with, or None."""
    text = environment.get(CHANGE_VARIABLE)
    return Change.from_json(json.loads(text)) if text else None


def merged(*configs: Config) -> dict[str, dict[str, str]]:
    """Settings by module, the later ones over the earlier.

    >>> merged({"a": {"x": "1"}}, {"a": {"y": "2"}, "b": {"x": "3"}})
    {'a': {'x': '1', 'y': '2'}, 'b': {'x': '3'}}
    """
    found: dict[str, dict[str, str]] = {}
    for config in configs:
        for module, values in config.items():
            found.setdefault(module, {}).update(values)
    return found


def with_lines(text: str, first: int, last: int, after: str) -> str:
    """The text of a file as `rewritten` has it, filled up so that the lines below keep their numbers.

    >>> with_lines("a\\nb\\nc\\nd", 2, 3, "e")
    'a\\ne\\n\\nd'
    """
    lines = text.splitlines()
    new = after.splitlines()
    new += [""] * (last - first + 1 - len(new))
    return "\n".join([*lines[: first - 1], *new, *lines[last:]])
