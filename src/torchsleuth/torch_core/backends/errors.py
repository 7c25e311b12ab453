"""What the debugging backends find, one class per finding, and which options they take.

Each message is one sentence a person can act on. Options arrive in three ways - `torch.compile(options={...})`,
`torch.compile(mode=...)` and `functools.partial` - and those that a backend does not know are warned about and ignored.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from torchsleuth.core.cases.errors import SleuthError


@dataclass(frozen=True)
class Difference:
    """One way in which a real operator call did not do what was said of it.

    `field` is shape, stride, dtype, device, layout, storage offset, conjugation, aliasing, mutation, outputs (their
    number) or exception.
    """

    field: str
    what: str
    said: str
    did: str
    remedy: str


class OpMismatch(SleuthError):
    """An operator does something else than a compiler is told: see `.op`, `.difference` and `.place`."""

    teller = "its description"

    def __init__(self, op: str, difference: Difference, place: str = "") -> None:
        self.op, self.difference, self.place = op, difference, place
        where = f" ({place})" if place else ""
        super().__init__(
            f"{op}{where}: {difference.what}: {self.teller} said {difference.said}, "
            f"the real call gave {difference.did}; {difference.remedy}."
        )


class FakeMismatch(OpMismatch):
    """The fake side of an operator (fake kernel and schema, all a compiler sees) and the real call differ."""

    teller = "fake"


class SchemaMismatch(OpMismatch):
    """The real call changed or aliased something that the operator's schema does not declare."""

    teller = "its schema"


class EagerFails(SleuthError):
    """The captured graph fails without any compiler; `.code` is its generated code, `.line` the line that failed."""

    def __init__(self, error: BaseException, code: str, line: str, place: str) -> None:
        self.code, self.line, self.place = code, line, place
        at = f" at `{line}`" if line else ""
        of = f", which comes from {place}" if place else ""
        super().__init__(
            f"The graph that Dynamo generated fails when it is run eagerly too{at}{of}: {type(error).__name__}: "
            f"{str(error).rstrip('.')}; no backend is at fault, so look at the program or the capture. "
            f"Generated code:\n{code.strip()}"
        )


class ScriptFails(SleuthError):
    """TorchScript does not take the graph."""

    def __init__(self, error: BaseException) -> None:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        super().__init__(
            f"TorchScript cannot compile this graph ({first}), which says nothing about other backends: it knows no "
            'higher-order operators, autocast regions or symbolic sizes; try backend="sleuth_aot_eager".'
        )


class MissingMode(SleuthError):
    """A backend that runs under a mode was given none."""

    def __init__(self, backend: str, given: object) -> None:
        super().__init__(
            f"{backend} runs graphs under a mode and was given {given!r}; "
            f'pass one: torch.compile(f, backend="{backend}", options={{"mode": YourDispatchMode()}}).'
        )


class BadChoice(SleuthError):
    """An option of a backend has a value it does not know."""

    def __init__(self, backend: str, option: str, given: object, choices: tuple[str, ...]) -> None:
        super().__init__(
            f"{backend} does not know {option}={given!r}; choose one of {', '.join(map(repr, choices))}."
        )


class NoNestedCompile(SleuthError):
    """This torch cannot compile inside a trace."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"torch {version} cannot run torch.compile inside a make_fx trace, so an outer trace shows no subgraphs; "
            "use a later release, or trace without torch.compile."
        )


class ReluCompileError(Exception):
    """Raised on purpose by `sleuth_relu_compile_error`."""


class ReluRuntimeError(Exception):
    """Raised on purpose by a relu under `sleuth_relu_runtime_error`."""


class NonLeafCompileError(Exception):
    """Raised on purpose by `sleuth_non_leaf_compile_error`."""


Graph: TypeAlias = torch.fx.GraphModule
Inputs = Sequence[Any]
Run = Callable[..., Any]


class UnknownOption(UserWarning):
    """A backend was given something it does not know."""


def debugging_backend(compiler: Callable[..., Run]) -> Callable[..., Run]:
    """Makes a backend of a function of graph and inputs; its keyword-only parameters are the options that it knows."""
    parameters = inspect.signature(compiler).parameters.values()
    known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]

    @functools.wraps(compiler)
    def compile_graph(gm: Graph, example_inputs: Inputs, **given: Any) -> Run:
        return compiler(gm, example_inputs, **_options_of(compiler.__name__, given, known))

    return compile_graph


def _options_of(backend: str, given: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    flat = {name: value for name, value in given.items() if name != "options"}
    flat.update(given.get("options") or {})
    # A string is one of torch.compile's own modes, which only Inductor knows.
    taken = {n: v for n, v in flat.items() if n in known and not (n == "mode" and isinstance(v, str))}
    ignored = {name: value for name, value in flat.items() if name not in taken}
    if ignored:
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(ignored.items()))
        knows = f"it knows {', '.join(known)}" if known else "it has no options"
        warnings.warn(f"{backend} ignores {listed}: {knows}.", UnknownOption, stacklevel=3)
    return taken
