"""The analysis of one compiled graph: its runs, the culprit among its kernels, the node inside it, and the proof.

Every part of the answer is handed on as soon as it is known, as plain data: whoever stops it early has what there was.
A graph whose compiled code shows no values is compiled once more with every value returned (`analyze_exposed`). That
changes what is fused with what, and the answer says so. There the culprit is the first value that is wrong though
those it is made of are right, and of several the first without which the results are right.
A gradient may be wrong though all values of the forward are right (`wrong_gradient`): AOTAutograd writes the backward
of a captured graph and splits it from the forward; where that goes wrong, both graphs agree with what they say, so
no generated code shows it. Then calls of the captured graph are compiled with their backward by themselves, on eager's
values, and their gradients judged; by halves, the later half first, because a backward begins at the end.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchsleuth.torch_core.compare.divergence.distance import FAR, Distance, distance
from torchsleuth.torch_core.compare.divergence.measure import (
    Keep,
    Measured,
    Subject,
    Value,
    accumulated,
    differing,
    local,
    not_comparable,
    substituted,
)
from torchsleuth.torch_core.compare.divergence.parts import (
    MOST_BEGINNINGS,
    Compilers,
    Inside,
    Whole,
    beginnings,
    tensors_among,
)
from torchsleuth.torch_core.compare.divergence.steps import EagerSteps, Float64Steps, writes_what_is_read
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs
from torchsleuth.torch_core.compare.reference.eager import EagerRun
from torchsleuth.torch_core.compare.verdict.look import judge_gradients
from torchsleuth.torch_core.compare.verdict.verdict import DIVERGED, LeafVerdict
from torchsleuth.torch_internals.hooks import target_name

ACCUMULATED = "accumulated"
LOCAL = "local"
DETERMINISM = "determinism"
INSIDE = "inside"
SUBSTITUTION = "substitution"

MOST_CANDIDATES = 4
"""Kernels that are looked into, each by itself, until one is wrong."""

BEYOND_DOUBT = 1000.0
"""So many times what rounding explains is wrong, even where the kernel's calls alone are right."""

Tell = Callable[[Mapping[str, Any]], None]


def analyze(
    subject: Subject,
    ways: Compilers,
    tell: Tell,
    without: Collection[str] = (),
    keep: Keep | None = None,
) -> dict[str, Any]:
    """The parts of the answer by name, which `tell` was given one by one; `rows` and `culprit` are to be read first.

    Phases in `without` are left out, `keep` is given each value.
    Used as `analyze(subject, compilers, print)["culprit"]["node"]`.
    """
    return _Analysis(subject, ways, tell, without, keep).run()


class _Analysis:
    def __init__(
        self, subject: Subject, ways: Compilers, tell: Tell, without: Collection[str], keep: Keep | None
    ) -> None:
        self.subject, self.tell, self.without, self.keep = subject, tell, without, keep
        self.whole = Whole(subject.graph, subject.inputs, ways, subject.drawn, subject.memory)
        self.nodes = self.whole.nodes
        self.parts: dict[str, Any] = {"seconds": {}}
        self.accumulated: Measured | None = None
        """What the run as it was has shown; None where that is left out."""
        self.local: Mapping[str, Value] = {}
        """How far each kernel goes off by itself, by the node of each value it makes."""
        self.recovered: dict[frozenset[str], bool | None] = {}
        """Whether the results were right with eager's values in the place of these."""

    def run(self) -> dict[str, Any]:
        self._answer("seen", self._coverage())
        free = self._phase(ACCUMULATED, lambda tick: accumulated(self.subject, tick, self.keep))
        self.accumulated = free
        if free is not None:
            self._answer_values(ACCUMULATED, free)
            self._answer("outputs", {path: _numbers(off) for path, off in free.outputs.items()})
        own = self._phase(LOCAL, lambda tick: local(self.subject, tick))
        if own is not None:
            self._answer_values(LOCAL, own)
        if free is not None:
            apart = self._phase(DETERMINISM, lambda tick: differing(self.subject, tick, free))
            if apart is not None:
                self._answer("nondeterministic", apart)
        if own is not None:
            self.local = own.values
            self._answer("culprit", self._culprit())
        return self.parts

    def _phase(self, name: str, run: Callable[[Callable[[int, int], None]], Any]) -> Any:
        if name in self.without:
            return None
        started = time.monotonic()
        self.tell({"phase": name, "done": 0, "of": 0})
        found = run(lambda done, of: self.tell({"phase": name, "done": done, "of": of}))
        self.parts["seconds"][name] = round(time.monotonic() - started, 3)
        return found

    def _answer(self, name: str, value: Any) -> None:
        self.parts[name] = value
        self.tell({"part": name, "value": value})

    def _coverage(self) -> dict[str, Any]:
        """How much a compiled run shows: other values are inside kernels, or the compiler's passes replaced them."""
        calls = [name for name, node in self.nodes.items() if node.op.startswith("call_")]
        return {"calls": len(calls), "seen": len(self.subject.seen), "why_not": self.subject.code.blind}

    def _answer_values(self, name: str, measured: Measured) -> None:
        rows = [_row(self.nodes, v.node, v.kernel, v.distance) for v in measured.values.values()]
        self._answer(name, rows)
        if measured.fallbacks:
            self._answer("fallbacks", dict(measured.fallbacks))
        if measured.skipped:
            self._answer("skipped", dict(measured.skipped))

    def _candidates(self) -> list[str]:
        """Nodes worth a look: the first of the graph that are far off; where none is, the furthest."""
        far = [name for name in self.nodes if name in self.local and self.local[name].distance.far]
        rest = sorted(self.local.values(), key=lambda value: -value.distance.times)
        doubtful = [v.node for v in rest if v.node not in far and v.distance.times > FAR / 4]
        return [*far, *doubtful][:MOST_CANDIDATES]

    def _culprit(self) -> dict[str, Any] | None:
        not_alone: dict[str, Any] | None = None
        beyond_doubt: tuple[str, Inside | None] | None = None
        for name in self._candidates():
            off = self.local[name].distance
            if not_alone is not None and not self._may_be_alone(name):
                continue
            inside = self._inside(name)
            if inside is not None and inside.diverges:
                found = self._described(name, inside)
                if found["recovers"] is not False and not found["also"]:
                    return found
                # It may be just as wrong as another and matter to no result.
                not_alone = not_alone or found
            elif not_alone is None:
                wrong = self.accumulated is None or self.accumulated.wrong
                sure = inside is None or off.made > 0 or off.lost > 0 or off.times > BEYOND_DOUBT
                if beyond_doubt is None and wrong and off.far and sure:
                    beyond_doubt = name, inside
                    if inside is None:
                        break
        if not_alone is not None or beyond_doubt is None:
            return not_alone
        return self._described(*beyond_doubt)

    def _inside(self, name: str) -> Inside | None:
        """What the kernel's calls are by themselves; None where that is left out."""
        calls = self._calls(name)
        return self._phase(INSIDE, lambda tick: self.whole.look_inside(name, calls))

    def _may_be_alone(self, name: str) -> bool:
        """Whether the results are right with eager's value here, and what it is made of was right in the run as it was.

        Eager's value takes away the errors that were handed in as well.
        """
        calls = self._calls(name)
        read = {source.name for call in calls for source in self.nodes[call].all_input_nodes} - {*calls}
        values = {} if self.accumulated is None else self.accumulated.values
        if any(values[each].distance.far for each in read if each in values):
            return False
        return bool(self._recovers(self._made_with(calls, self.local[name])))

    def _calls(self, name: str) -> tuple[str, ...]:
        """The calls that a kernel makes a value of."""
        return self.whole.calls_between(name, self.local.keys())

    def _made_with(self, calls: Collection[str], value: Value) -> frozenset[str]:
        """The values that one kernel makes with any of these calls; others that it makes beside say nothing of them."""
        beside = [v.node for v in self.local.values() if v.call == value.call]
        return frozenset(name for name in beside if {*calls} & {*self._calls(name)}) | {value.node}

    def _described(self, name: str, inside: Inside | None) -> dict[str, Any]:
        value = self.local[name]
        node = inside.node if inside is not None and inside.node is not None else name
        replaced = self._made_with([node], value)
        also = [v.node for v in self.local.values() if v.node not in replaced and v.distance.far]
        recovers, also = self._recovery(replaced, also)
        if node != name and inside is not None and recovers:
            # Eager's value was put in the place of what its kernel makes with it.
            recovers = inside.recovers
        calls = self._calls(name)
        return culprit(self.nodes, name, calls, value.distance, inside, value.kernel, recovers, also)

    def _recovery(self, replaced: Collection[str], also: list[str]) -> tuple[bool | None, list[str]]:
        """Whether the rest recovers, and which other values have to be eager's as well for that.

        A value that a kernel keeps and that stands for no node cannot be eager's: what reads it is off, too.
        """
        alone = self._recovers(replaced)
        if alone is not False or not also:
            return alone, [] if alone else also
        return self._recovers([*replaced, *also]), also

    def _recovers(self, replaced: Collection[str]) -> bool | None:
        """Whether all results are right with eager's values in the place of these; None where not tried."""
        free = self.accumulated
        if free is None or not free.wrong:
            return None
        asked = frozenset(replaced)
        if asked not in self.recovered:
            found = self._phase(SUBSTITUTION, lambda tick: substituted(self.subject, tick, asked, free))
            self.recovered[asked] = None if found is None else not found.wrong
        return self.recovered[asked]


def operator_of(node: Node) -> str:
    """What a node calls; of a part of a result what made it, and of a functional form the operator that is meant.

    >>> operator_of(node)
    'torch.relu'
    """
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    wrapped = node.args[0] if node.args and "auto_functionalized" in str(node.target) else node
    return target_name(wrapped)


def _row(nodes: Mapping[str, Node], name: str, kernel: str, off: Distance) -> dict[str, Any]:
    return {"node": name, "op": operator_of(nodes[name]), "kernel": kernel, **_numbers(off)}


def _numbers(off: Distance) -> dict[str, Any]:
    found = asdict(off)
    return {key: value for key, value in found.items() if value or key in ("off", "noise", "times")}


def culprit(
    nodes: Mapping[str, Node],
    seen_at: str,
    calls: Sequence[str],
    off: Distance,
    inside: Inside | None,
    kernel: str = "",
    recovers: bool | None = None,
    also: Sequence[str] = (),
) -> dict[str, Any]:
    """The part `culprit` of an answer: the node at fault among the `calls` of which the value `seen_at` is made."""
    inside = inside or Inside(False)
    return {
        **_row(nodes, inside.node or seen_at, kernel, off),
        "seen_at": seen_at,
        "calls": list(calls),
        "confirmed": inside.diverges,
        "how": inside.how,
        "verdict": inside.sentence,
        "recovers": recovers,
        "also": list(also),
    }


HOW = "every value returned, which changes fusion"


def analyze_exposed(
    graph: GraphModule,
    inputs: Sequence[Any],
    ways: Compilers,
    tell: Callable[[Mapping[str, Any]], None],
    why: str,
    drawn: EagerRun | None = None,
) -> dict[str, Any]:
    """The parts of the answer, as `analysis.analyze` gives them; `why` says why the code itself shows nothing."""
    started = time.monotonic()
    calls = [n.name for n in graph.graph.nodes if n.op.startswith("call_")]
    whole = Whole(graph, inputs, ways, drawn)
    tensors = list(tensors_among(graph, inputs, calls, drawn, whole.memory))
    tell({"phase": ACCUMULATED, "done": 0, "of": len(tensors)})
    part = whole.part(calls, tensors)
    results = ways.compiled(part.graph, list(part.inputs))(clone_inputs(list(part.inputs)))
    eager = EagerSteps(graph, inputs, tensors, drawn, whole.memory)
    truth = Float64Steps(graph, inputs, tensors, eager.dtypes, drawn)
    rows = []
    with torch.no_grad():
        for place, (name, compiled) in enumerate(zip(tensors, results)):
            known = eager.value(name)
            if isinstance(compiled, torch.Tensor) and not_comparable(compiled, known) is None:
                off = distance(compiled.detach(), known, truth.value(name), eager.terms(name))
                rows.append((name, off))
            eager.done(name)
            truth.done(name)
            tell({"phase": ACCUMULATED, "done": place + 1, "of": len(tensors)})
    parts: dict[str, Any] = {
        "seen": {"calls": len(calls), "seen": len(rows), "why_not": f"{why}; seen with {HOW}"},
        ACCUMULATED: [_row(whole.nodes, name, "", off) for name, off in rows],
        "seconds": {},
        "culprit": None,
    }
    far = {name: off for name, off in rows if off.far}
    begin = beginnings(graph, far, dict(rows)) if far else []
    if begin:
        name, recovers = begin[0], None
        for each in begin[:MOST_BEGINNINGS] if len(begin) > 1 else ():
            right = whole.right_without(calls, each)
            recovers = right if each == name else recovers
            if right:
                name, recovers = each, True
                break
        inside = whole.look_inside(name, whole.calls_between(name, tensors))
        parts["culprit"] = culprit(whole.nodes, name, [name], far[name], inside, recovers=recovers)
    parts["seconds"][ACCUMULATED] = round(time.monotonic() - started, 3)
    for key, value in parts.items():
        tell({"part": key, "value": value})
    return parts


GRADIENTS = "gradients"
# How the culprit was found: wrong with eager's kernels as well, or only as compiled.
OF_AOTAUTOGRAD, OF_CODE = "gradients", "compiled gradients"
OF_GRADIENTS = "outputs[1]"
"""Where `judge_gradients` puts the gradients, behind the outputs."""


@dataclass(frozen=True)
class _WrongGradient:
    """Calls whose gradients are wrong by themselves, and the first of these gradients."""

    calls: Sequence[str]
    leaf: LeafVerdict


def wrong_gradient(
    graph: GraphModule,
    inputs: Sequence[Any],
    ways: Compilers,
    tell: Callable[[Mapping[str, Any]], None],
    drawn: EagerRun | None = None,
    without_code: Compilers | None = None,
) -> dict[str, Any] | None:
    """The part `culprit` of an answer; None where no gradient is wrong, or the graph cannot be cut.

    `ways` compile a captured graph with its backward, `without_code` does so with eager's kernels: AOTAutograd alone.
    Used as `wrong_gradient(graph, [x], ways, print)["node"]`.
    """
    if writes_what_is_read(graph):
        return None
    whole = Whole(graph, inputs, ways, drawn)
    differentiable = _differentiable(graph, inputs)
    groups = _groups(graph)
    tried = 0

    def wrong(first: int, last: int) -> _WrongGradient | None:
        nonlocal tried
        tell({"phase": GRADIENTS, "done": tried, "of": 2 * len(groups).bit_length()})
        tried += 1
        chosen = {name for group in groups[first:last] for name in group}
        names = [name for name in whole.nodes if name in chosen]
        return _judged_gradients(whole, names, differentiable)

    low, high = 0, len(groups)
    found = wrong(low, high)
    if found is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if (later := wrong(middle, high)) is not None:
            low, found = middle, later
        elif (earlier := wrong(low, middle)) is not None:
            high, found = middle, earlier
        else:
            break
    alone = without_code is not None and _judged_gradients(
        replace(whole, ways=without_code), found.calls, differentiable
    )
    return _gradient_culprit(whole, found, OF_AOTAUTOGRAD if alone else OF_CODE)


def _gradient_culprit(whole: Whole, found: _WrongGradient, how: str) -> dict[str, Any]:
    named = [name for name in found.calls if whole.nodes[name].target is not operator.getitem]
    leaf = found.leaf
    off, noise = (
        abs(value - leaf.truth) if isinstance(value, float) and isinstance(leaf.truth, float) else 0.0
        for value in (leaf.compiled, leaf.eager)
    )
    distance = Distance(off, noise, leaf.z or 0.0)
    return culprit(whole.nodes, named[-1], named, distance, Inside(True, named[-1], how, leaf.sentence))


def _differentiable(graph: GraphModule, given: Sequence[Any]) -> set[str]:
    """The nodes through which a gradient may flow."""
    values = dict(zip((n for n in graph.graph.nodes if n.op == "placeholder"), given))
    found: set[str] = set()
    for node in graph.graph.nodes:
        wants = isinstance(values.get(node), torch.Tensor) and values[node].requires_grad
        if wants or any(source.name in found for source in node.all_input_nodes):
            found.add(node.name)
    return found


def _groups(graph: GraphModule) -> list[list[str]]:
    """The calls in order, each with those that take its result apart: a tuple cannot be handed to another part."""
    groups: dict[Node, list[str]] = {}
    for node in graph.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        source = node.args[0] if node.target is operator.getitem else None
        owner = next((n for n, names in groups.items() if source is not None and source.name in names), node)
        groups.setdefault(owner, []).append(node.name)
    return list(groups.values())


def _judged_gradients(
    whole: Whole, calls: Sequence[str], differentiable: Collection[str]
) -> _WrongGradient | None:
    """What is wrong with the gradients of these calls; None where nothing is, or they cannot be run by themselves."""
    returned = [
        name
        for name in calls
        if name in differentiable and any(user.name not in calls for user in whole.nodes[name].users)
    ]
    try:
        with torch.no_grad():
            part = whole.part(calls, returned)
            names = [node.name for node in part.graph.graph.nodes if node.op == "placeholder"]
            given = [
                value.detach().requires_grad_(name in differentiable and value.is_floating_point())
                for name, value in zip(names, part.inputs)
            ]
        run = whole.ways.compiled(part.graph, given)
        with torch.enable_grad():
            verdict = judge_gradients(part.graph, given, lambda *values: run(list(values)), rng_matched=True)
    except Exception:  # what a part returns may not be differentiable, and a compiler may refuse a part
        return None
    leaves = [leaf for leaf in verdict.leaves if leaf.path.startswith(OF_GRADIENTS) and leaf.kind == DIVERGED]
    return _WrongGradient(calls, leaves[0]) if leaves else None
