"""A minimal graph with all that its script needs to know: what a search ends with, and scripts are written from."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from torchsleuth.core.cases.record import AmbientState, CompileSettings, Embedded
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.torch_core.compare.reference.opkinds import draws
from torchsleuth.torch_core.tensors import ScalarSpec, TensorSpec


@dataclass(frozen=True)
class SmallInput:
    """One input: its name, its form, and its value where that matters."""

    name: str
    spec: TensorSpec | ScalarSpec
    value: torch.Tensor | None = None


@dataclass(frozen=True)
class SmallGraph:
    """A minimal graph, its inputs and settings, and the failure it shows."""

    graph: torch.fx.GraphModule
    inputs: tuple[SmallInput, ...]
    settings: CompileSettings
    signature: Signature
    embedded: Embedded = field(default_factory=Embedded)
    dynamic: bool = False
    # Of a wrong result: how far rounding alone may move it.
    tolerance: float | None = None
    # Of an error: the traceback of this very graph, which the script's test for it must fit.
    text: str = ""
    case: str | None = None
    # Of a hang: the seconds after which it is one.
    hung_after: float | None = None

    @property
    def names(self) -> dict[str, str]:
        """Plain names for the inputs: x, y, z, and numbers beyond."""
        letters = ["x", "y", "z"] if len(self.inputs) <= 3 else [f"x{n}" for n in range(len(self.inputs))]
        return {given.name: letter for given, letter in zip(self.inputs, letters)}

    @property
    def shared_memory(self) -> dict[int, list[SmallInput]]:
        """The inputs that lie on one memory, by its number; of identical ones the first stands for all."""
        found: dict[int, list[SmallInput]] = {}
        for given in self.inputs:
            spec = given.spec
            if isinstance(spec, TensorSpec) and spec.alias_of is not None and spec.same_as is None:
                found.setdefault(spec.alias_of, []).append(given)
        return {number: sharing for number, sharing in found.items() if len(sharing) > 1}

    @property
    def sharing(self) -> set[str]:
        """The inputs that share their memory with another, or are another."""
        specs = {given.name: given.spec for given in self.inputs if isinstance(given.spec, TensorSpec)}
        originals = {self.inputs[s.same_as].name for s in specs.values() if s.same_as is not None}
        return originals | {n for n, s in specs.items() if s.alias_of is not None or s.same_as is not None}

    @property
    def without_memory(self) -> set[str]:
        """The names of inputs that no memory lies under, so that only a clone is a copy."""
        odd = ("mkldnn", "zero")
        return {self.names[g.name] for g in self.inputs if getattr(g.spec, "layout", None) in odd}

    @property
    def state(self) -> AmbientState:
        return self.settings.state or AmbientState()

    @property
    def differentiable(self) -> bool:
        return any(getattr(given.spec, "requires_grad", False) for given in self.inputs)

    @property
    def returns_one(self) -> bool:
        outputs = self.graph.graph.output_node().args[0]
        return isinstance(outputs, (list, tuple)) and len(outputs) == 1

    @property
    def tensors_only(self) -> bool:
        """Whether nothing but tensors goes in and comes out."""
        outputs = self.graph.graph.output_node().args[0]
        listed = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        into = all(isinstance(given.spec, TensorSpec) for given in self.inputs)
        return into and all(isinstance(out, torch.fx.Node) for out in listed)

    @property
    def trains(self) -> bool:
        """Whether a backward is part of what is run: an input that need not have a gradient has none any more."""
        asked_for = self.settings.level == "dynamo" and not self.settings.forward_only
        return self.differentiable and asked_for and self.state.grad

    @property
    def draws_random_numbers(self) -> bool:
        return any(draws(node) for node in self.graph.graph.nodes)

    @property
    def dynamic_sizes(self) -> list[tuple[str, int]]:
        """The sizes that change, as (input, dimension), where others must not; none where all of them may."""
        marks = []
        fixed = 0
        for given in self.inputs:
            if isinstance(given.spec, TensorSpec):
                texts = given.spec.shape_expr or tuple(map(str, given.spec.shape))
                fixed += sum(text.isdigit() and int(text) > 1 for text in texts)
                marks += [(self.names[given.name], d) for d, text in enumerate(texts) if not text.isdigit()]
        return marks if fixed else []

    @property
    def dynamic_numbers(self) -> dict[int, str]:
        """The numbers among the inputs that change, as expressions of symbols, by place."""
        specs = [given.spec for given in self.inputs]
        return {n: s.expr for n, s in enumerate(specs) if isinstance(s, ScalarSpec) and s.expr is not None}

    def size_of_symbol(self, symbol: str) -> tuple[int, int] | None:
        """An input and a dimension of it that a symbol is the size of."""
        for place, given in enumerate(self.inputs):
            texts = given.spec.shape_expr if isinstance(given.spec, TensorSpec) else None
            if texts and symbol in texts:
                return place, texts.index(symbol)
        return None
