"""Tries workarounds on the user's whole graph: it must compile, run to its end, and give eager's numbers.

A change that leaves nodes eager is tried by compiling the rest, fed with the values those nodes had; a graph break by
compiling both halves. Where the fully compiled graph runs at all, what works is timed against it.
"""

from __future__ import annotations

import copy
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from torchsleuth.core.changes import Change
from torchsleuth.core.criteria import CURED, Answer
from torchsleuth.core.processes.limits import within
from torchsleuth.script_runtime.compiling import with_reshapes
from torchsleuth.search.blame.runner import OUT_OF_TIME, Asked, Result, Runner
from torchsleuth.search.minify.contract import State
from torchsleuth.search.minify.reducers.sizes import static_sizes
from torchsleuth.search.minify.states import NoAnswer, Questions, state_of_cut
from torchsleuth.torch_core.graphs.cut import cut
from torchsleuth.torch_core.graphs.recording import RecordedTensor, Recording
from torchsleuth.torch_internals.modes import set_grad_enabled
from torchsleuth.torch_internals.operators import short_name
from torchsleuth.torch_internals.schemas import written_arguments

# A trial is not begun with less than this left, and gets at least this.
LEAST_SECONDS = 15.0
# Of the time that is left, what may go into asking which candidates help the smallest graph that fails.
SHARE_FOR_THE_SMALLEST = 0.25
# Each costs a compile more.
MOST_TIMED = 3
NO_TIME = "there was no time left to try it"


@dataclass(frozen=True)
class Tried:
    """What came of a change: `error` says in a sentence why it is not verified; `run_seconds` where it was timed."""

    change: Change
    error: str | None
    seconds: float = 0.0
    run_seconds: float | None = None

    @property
    def verified(self) -> bool:
        return self.error is None

    @property
    def estimated(self) -> bool:
        """Whether the time is that of parts, without the graph breaks between them."""
        return bool(self.change.eager_nodes) or self.change.cut_before is not None


class NotApplicable(Exception):
    """The change cannot be made to this graph; says why."""


@dataclass
class Original:
    """The user's graph as it was captured, with what is worked out about it once."""

    state: State
    accuracy: bool
    questions: Questions
    # Of a wrong result: how far from eager the outputs that were wrong may be, from how far they were when seen.
    allowed: Mapping[str, float] = field(default_factory=dict)
    # Its backward fails without a compiler as well: the program cannot have run it.
    forward_only: bool = False

    @functools.cached_property
    def relaxed(self) -> State:
        """The state as eager can run it: a compiled forward may hand over activations that cannot be viewed so."""
        if self.state.settings.level != "aot":
            return self.state
        return self.state.having(graph=with_reshapes(self.state.graph))

    @functools.cached_property
    def recording(self) -> Recording:
        try:
            found = self.questions.recording(self.relaxed)
        except NoAnswer as why:
            raise NotApplicable(f"the graph does not run in eager ({why})") from why
        if found.stopped is not None:
            raise NotApplicable(f"the graph does not run in eager on these inputs ({found.stopped})")
        return found

    @functools.cached_property
    def tolerances(self) -> dict[str, float]:
        return self.questions.tolerances(self.state).by_path

    def tolerances_in(self, state: State) -> dict[str, float] | None:
        """How far from eager the results of a state may be; None where a trial's own tolerances will do."""
        whole = state is self.state or state is self.relaxed
        if self.accuracy and not self.allowed:
            return None
        own = self.tolerances if whole else self.questions.tolerances(state).by_path
        if not self.accuracy:
            return own
        # Those of a trial are coarse: in a long graph of low precision they would hide the failure.
        stricter = self.allowed if whole else self._allowed_in(state)
        return {**own, **stricter}

    def _allowed_in(self, part: State) -> dict[str, float]:
        """The tolerances of a part of the graph: an output of the whole is measured as it is there."""
        places = {name: f"outputs[{place}]" for place, name in enumerate(_output_names(self.state))}
        return {
            f"outputs[{place}]": self.allowed[places[name]]
            for place, name in enumerate(_output_names(part))
            if places.get(name) in self.allowed
        }


def _output_names(state: State) -> list[str]:
    outputs = state.graph.graph.output_node().args[0]
    return [str(node) for node in (outputs if isinstance(outputs, (list, tuple)) else (outputs,))]


def parts_of(original: Original, change: Change) -> list[State]:
    """The states to compile for a change: one, or the two halves of a graph that is cut."""
    state = original.state
    if change.dynamic is False:
        edit = next((e for e in static_sizes(state) if e.what == "static sizes"), None)
        fixed = None if edit is None else edit.apply(state)
        if fixed is None:
            raise NotApplicable("the graph does not fit together with fixed sizes")
        return [fixed]
    if change.default_settings:
        config = {k: v for k, v in state.settings.config.items() if "inductor" not in k}
        return [state.setting(config=config, options={})]
    if change.no_inference_mode:
        return [state.having(graph=_gradients_off_instead(state))]
    if change.eager_nodes or change.cut_before is not None:
        _refuse_shared_writes(original.recording, change)
    if change.eager_nodes:
        return [_piece(original, [n for n in original.recording.calls if n not in change.eager_nodes])]
    if change.cut_before is not None:
        calls = original.recording.calls
        place = calls.index(change.cut_before)
        return [_piece(original, calls[:place]), _piece(original, calls[place:])]
    return [original.relaxed if change.backend is not None else state]


def _gradients_off_instead(state: State) -> torch.fx.GraphModule:
    """The graph as Dynamo would capture it had the program said no_grad where it says inference_mode."""
    graph, ambient = copy.deepcopy(state.graph), state.settings.state
    for node in graph.graph.nodes:
        name = short_name(node.target) if node.op == "call_function" else ""
        if name in ("_enter_inference_mode", "_exit_inference_mode"):
            # What an exit goes back to is what was there before the first of them.
            grad = name.startswith("_exit") and ambient is not None and ambient.grad
            node.target, node.args = set_grad_enabled(), (grad,)
    graph.recompile()
    return graph


def _refuse_shared_writes(recording: Recording, change: Change) -> None:
    """Raises `NotApplicable` where a compiled part makes a view that another part writes to.

    Each part is compared with eager by its values, which do not say whether what it returns still shares memory.
    """
    parts: dict[str, int | None] = {}
    part = 0
    for name in recording.calls:
        part += name in change.eager_nodes or name == change.cut_before
        parts[name] = None if name in change.eager_nodes else part
    owners: dict[int, str] = {}
    views: set[str] = set()
    for name in recording.nodes:
        value = recording.value(name)
        if isinstance(value, RecordedTensor) and owners.setdefault(value.memory, name) != name:
            views.add(name)
    for name in recording.calls:
        for written in written_arguments(recording.nodes[name]):
            made_in = parts.get(written.name)
            if written.name in views and made_in is not None and made_in != parts[name]:
                raise NotApplicable(
                    f"parts cannot tell whether {name} still writes to what {written} is a view of"
                )


def _piece(original: Original, names: Sequence[str]) -> State:
    recording = original.recording
    try:
        return state_of_cut(original.state, cut(recording, set(names)), recording)
    except Exception as error:
        raise NotApplicable(f"the graph cannot be cut there ({type(error).__name__}: {error})") from error


def asked_of(original: Original, change: Change, what: str = "") -> list[Asked]:
    """What is asked about a change: each part that is left to compile has to run to its end, and rightly."""
    tried = replace(change.in_graphs, what=what or change.name, forward_only=original.forward_only)
    return [
        Asked(state, tried, CURED, tolerances=original.tolerances_in(state))
        for state in parts_of(original, change)
    ]


@dataclass
class Attempts:
    """Changes tried on the user's graph until the deadline, as many at a time as there are workers.

    `keep` is told of each wave. Used as `Attempts(runner, original, deadline).try_all(candidates)`.
    """

    runner: Runner
    original: Original
    deadline: float
    keep: Callable[[Sequence[Tried]], None] = lambda tried: None

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline

    def try_all(self, changes: Sequence[Change]) -> list[Tried]:
        """Every change tried, in waves."""
        tried: list[Tried] = []
        waiting, count = list(changes), self.runner.workers.count
        while waiting:
            if self.late:
                return tried + [Tried(each, NO_TIME) for each in waiting]
            wave, waiting = waiting[:count], waiting[count:]
            done = self._wave(wave)
            self.keep(done)
            tried += done
        return tried

    def _wave(self, wave: Sequence[Change]) -> list[Tried]:
        asked: list[list[Asked]] = []
        refused: dict[int, str] = {}
        for number, change in enumerate(wave):
            try:
                asked.append(asked_of(self.original, change))
            except NotApplicable as why:
                refused[number] = str(why)
                asked.append([])
        answers = self._answers(asked, self.deadline)
        return [
            Tried(change, refused[number]) if number in refused else _judged(change, results)
            for number, (change, results) in enumerate(zip(wave, answers))
        ]

    def _answers(self, asked: Sequence[Sequence[Asked]], deadline: float) -> list[list[Result]]:
        """The answers about each change, all asked at once."""
        left = max(LEAST_SECONDS, deadline - time.monotonic())
        limits = within(self.runner.limits or self.runner.workers.limits, time.monotonic() + left)
        results = iter(self.runner.ask_all(list(itertools.chain(*asked)), limits))
        return [[next(results) for _ in own] for own in asked]

    def help_small(self, small: State, changes: Sequence[Change]) -> dict[str, int]:
        """Whether a change helps the smallest graph that fails: 1 or -1 by name; one that is not tried is not in it.

        Places in the program are those of the whole graph.
        """
        until = time.monotonic() + SHARE_FOR_THE_SMALLEST * (self.deadline - time.monotonic())
        in_graphs = [(each, each.in_graphs) for each in changes]
        waiting = [each for each in in_graphs if each[1].config or each[1].off or each[1].snippet]
        found: dict[str, int] = {}
        count = self.runner.workers.count
        while waiting and time.monotonic() < until:
            wave, waiting = waiting[:count], waiting[count:]
            asked = [
                [Asked(small, replace(change, what=f"on the smallest graph: {each.name}"), CURED)]
                for each, change in wave
            ]
            for (each, _), (result,) in zip(wave, self._answers(asked, until)):
                if result.answer is not Answer.CANNOT_TELL:
                    found[each.name] = 1 if result.passes else -1
        return found

    def timed(self, tried: Sequence[Tried]) -> tuple[list[Tried], float | None]:
        """The same with the time of a run for the best few that are verified; and that of the fully compiled graph."""
        chosen = [each for each in tried if each.verified][:MOST_TIMED]
        if not chosen or self.late:
            return list(tried), None
        changes = [Change(name="full compilation"), *(each.change for each in chosen)]
        asked = [asked_of(self.original, each, f"time of: {each.name}") for each in changes]
        asked = [[replace(each, time_runs=True) for each in own] for own in asked]
        full, *others = self._answers(asked, self.deadline)
        found = {
            id(each): replace(each, run_seconds=self._run_seconds(each.change, results))
            for each, results in zip(chosen, others)
        }
        return [found.get(id(each), each) for each in tried], full[0].outcome.seen.run_seconds

    def _run_seconds(self, change: Change, results: Sequence[Result]) -> float | None:
        times = [result.outcome.seen.run_seconds for result in results]
        if change.eager_nodes:
            times.append(self._eager_seconds(change.eager_nodes))
        known = [each for each in times if each is not None]
        return sum(known) if len(known) == len(times) else None

    def _eager_seconds(self, names: frozenset[str]) -> float | None:
        """How long the nodes that stay eager take; None where that cannot be measured."""
        original = self.original
        try:
            piece = _piece(original, [name for name in original.recording.calls if name in names])
        except NotApplicable:
            return None
        return original.questions.eager_seconds(piece)


def _judged(change: Change, results: Sequence[Result]) -> Tried:
    """What the trials of the parts that a change leaves say about it."""
    seconds = round(sum(result.outcome.seconds for result in results), 2)
    error = next((why for result in results if (why := why_not(result)) is not None), None)
    return Tried(change, error, seconds)


def why_not(result: Result) -> str | None:
    """Why a trial does not verify a workaround, in a sentence; None where it does."""
    signature = result.outcome.signature
    if result.answer is Answer.PASSES:
        return None
    if result.answer is Answer.FAILS:
        return "it fails as before"
    if signature is not None and signature.kind == "accuracy":
        return "it runs, but the numbers are wrong"
    if signature is not None:
        return f"it fails in another way: {signature.summary}"
    error = str(result.outcome.error)
    return error if error.startswith(OUT_OF_TIME) else f"it cannot be tried here: {error}"
