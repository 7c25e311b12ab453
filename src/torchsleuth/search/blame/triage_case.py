"""Triage of a case: the component, the part of it, the operators and the user's line, each by runs that differ in it.

First the failing run itself, traced, with the same graph in eager beside it. Then as few calls as still fail, because
experiments on a small graph take seconds; where a minimal graph is known, that one. What a person reads first, the line
of their model, is looked up last: it is the line of the nodes that are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Case, Rung, Triage
from torchsleuth.core.cases.record import GraphRecord
from torchsleuth.core.change_table import UNCOMPILED
from torchsleuth.core.changes import Change
from torchsleuth.core.criteria import PROGRAMS_OWN, Answer
from torchsleuth.core.processes.limits import clock_of_a_hang
from torchsleuth.search.blame.inductor import narrowed, stopped_at
from torchsleuth.search.blame.ladder import climb, has_custom_operator, misbehaving_operator
from torchsleuth.search.blame.runner import Asked, Result, Runner, needed_settings, settings_of
from torchsleuth.search.minify.case_state import CaseQuestions, SearchStart, wait_for_device
from torchsleuth.search.minify.contract import Reduction, State
from torchsleuth.search.minify.driver import search
from torchsleuth.search.minify.engine import combined
from torchsleuth.search.minify.oracle import TrialOracle
from torchsleuth.search.minify.reducers.sizes import static_sizes
from torchsleuth.search.minify.states import NoAnswer
from torchsleuth.search.minify.subsets import NothingFails
from torchsleuth.search.workers.failure_rate import failure_rate
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_core.graphs.printer import print_graph
from torchsleuth.torch_core.graphs.source_line import SourceLine
from torchsleuth.torch_internals.hooks import target_name
from torchsleuth.torch_internals.operators import triton_launch

# Of the whole budget, the share for finding the few calls that fail; the experiments need the rest.
SHARE_FOR_CALLS = 0.5
LOOKING_FOR_CALLS = "looking for the calls that fail by themselves"
AS_IT_WAS = Change("as it was")
IN_EAGER = replace(UNCOMPILED, what="the same graph without a compiler")
# A compile that failed on the way to a first forward had no backward: a derivative that only tracing needs is no fault
# of the program's.
FORWARD_IN_EAGER = replace(IN_EAGER, forward_only=True)
CALLS_LEFT = "the time was up before it was clear which of these calls matter (--budget)"
TIME_WAS_UP = "the time was up before its part was found (--budget)"
NO_SWITCH = Triage("inductor", detail="no switch of torch makes a difference")
# A graph of fewer calls is tried as quickly as it is made smaller.
MANY_CALLS = 12
# Beside the line at fault, others that are shown.
MOST_LINES = 3
PUT_OFF = "who is at fault is asked of the smallest graph that fails, which is not known yet"
SMALLEST = Change("the smallest graph that fails")
# How often a failure that did not come is waited for.
SECOND_LOOKS = 5

# The labels that an issue about a component gets.
_LABELS = {
    "dynamo": ("module: dynamo",),
    "aot_autograd": ("module: pt2-dispatcher",),
    "decompositions": ("module: decompositions",),
    "inductor": ("module: inductor",),
}


class NotPinnedDown(SleuthError):
    """Triage cannot say who is at fault; says why and what to do."""

    exit_status = 1


class PutOff(Exception):
    """The rest is for when the graph is small; `nodes` are those that the failing run was at.

    `component` where the level at which the graph fails leaves one only.
    """

    def __init__(self, nodes: Sequence[str], component: str | None = None) -> None:
        super().__init__(PUT_OFF)
        self.nodes = tuple(dict.fromkeys(nodes))
        self.component = component


def triage_case(
    folder: CaseFolder,
    questions: CaseQuestions,
    *,
    budget_seconds: float = 120.0,
    say: Callable[[str], None] = lambda text: None,
    before_minify: bool = False,
) -> CaseFolder:
    """Finds out who is at fault and writes it into the case; raises `NotPinnedDown` where nothing can be said.

    What was found is in `triage_case(folder, questions).case.triage`. With `before_minify`, of a large graph only what
    the failing run itself tells.
    """
    started = time.monotonic()
    case = folder.case
    if case.graph is None and case.triage is not None and case.triage.component is not None:
        return update_case(folder, triage=_of_capture(case, case.triage))
    if case.no_repro is not None:
        raise NotPinnedDown(f"case {case.id} has nothing that could be tried: {case.no_repro}")
    workers = questions.workers
    # Workers may take long to load torch on a cold machine; that is not time spent on the question.
    workers.wait_ready(budget_seconds)
    wait_for_device(workers, case.device, budget_seconds)
    waited = time.monotonic() - started
    questions.deadline = started + waited + budget_seconds
    start = questions.start_of(folder)
    limits = clock_of_a_hang(workers.limits, case.kind, case.phase, case.extra.get("timeout"))
    runner = Runner(questions, start.expected, limits, say, questions.deadline)
    blame = _Blame(case, start, runner)
    small = questions.smallest.get(folder.path)
    try:
        found = blame.of_smallest(small) if small is not None else blame.of_whole(before_minify)
    except PutOff as why:
        seconds = round(time.monotonic() - started, 2)
        line = PUT_OFF if why.component is not None else None
        known = Triage(why.component, error=PUT_OFF, nodes=why.nodes, seconds=seconds, not_narrowed=line)
        return update_case(folder, triage=known)
    return update_case(folder, triage=blame.written(found, time.monotonic() - started))


def _of_capture(case: Case, triage: Triage) -> Triage:
    """Dynamo made no graph, so there is nothing to leave out: what its error says is all there is."""
    known = replace(triage, pinned=True, detail=triage.detail or case.signature.summary)
    return replace(known, labels=labels_of(case, known))


@dataclass
class _Blame:
    """The case, its graph, and who asks: of a compile that hangs, with as short a clock as tells it.

    `left` are the calls of the graph that was asked at last, at fault or not, the `fewest` or not; `unclear` says why
    nothing better is known; `only_dynamic`, that it needs symbolic sizes.
    """

    case: Case
    start: SearchStart
    runner: Runner
    left: tuple[str, ...] = ()
    unclear: str | None = None
    fewest: bool = False
    only_dynamic: bool = False

    def of_smallest(self, small: Reduction) -> Triage:
        """Who is at fault in the graph that `minify` has left."""
        first = self._look(small.state, SMALLEST)
        if not first.fails:
            name, why = self.case.id, first.outcome.error or "it does not fail once more"
            raise NotPinnedDown(f"the smallest graph of case {name} cannot be asked who is at fault: {why}")
        return self._finding(small.state, first, None if small.complete else CALLS_LEFT)

    def of_whole(self, before_minify: bool) -> Triage:
        """Who is at fault in the graph as it was captured."""
        case, state = self.case, self.start.state
        # A failing compile ends early and tells its place; a whole compile and run is asked for only if it must be.
        looks = [AS_IT_WAS] if case.phase == "compile" else []
        in_eager = FORWARD_IN_EAGER if case.phase == "compile" and case.direction == "forward" else IN_EAGER
        looks += [in_eager] if case.kind != "accuracy" else []
        if case.kind == "hang" and AS_IT_WAS in looks:
            seen = {AS_IT_WAS: self._look(state, AS_IT_WAS)}
            seen[in_eager] = self.runner.one(state, in_eager)
        else:
            asked = [Asked(state, look, trace=look is AS_IT_WAS) for look in looks]
            seen = dict(zip(looks, self.runner.ask_all(asked)))
        if in_eager in seen:
            eager = seen[in_eager].outcome
            if PROGRAMS_OWN.answer(self.runner.expected, eager.signature) is Answer.FAILS:
                summary = eager.signature.summary if eager.signature else "it fails"
                said = f"it fails without the compiler, too: {summary}{_kernel_at(state, eager.seen.node)}"
                return Triage("program", "operator", detail=said, pinned=True, nodes=(eager.seen.node or "",))
        first = self._failing(seen[AS_IT_WAS]) if AS_IT_WAS in seen else None
        if case.kind != "hang" and first is not None and first.steps and first.steps[-1].kind == "lower":
            return self._with_settings(state, stopped_at(self.runner, state, first.steps) or NO_SWITCH)
        if before_minify and calls_of(state.graph) >= MANY_CALLS:
            # What is cut after AOTAutograd and hangs by itself has left all but one behind.
            settings = state.settings
            inductor = (settings.level, settings.backend) == ("aot", "inductor")
            others = state.embedded.defines_backend or has_custom_operator(state)
            alone = case.kind == "hang" and inductor and not others
            raise PutOff(_nodes_at(first), "inductor" if alone else None)
        return self._finding(*self._fewer_calls(first))

    def _finding(self, state: State, first: Result, unclear: str | None) -> Triage:
        found = _component(self.runner, state, first)
        self.left = tuple(n.name for n in state.graph.graph.nodes if n.op.startswith("call_"))
        self.unclear = unclear if not found.nodes else None
        self.fewest = unclear is None
        return self._with_settings(state, _with_calls(state, found, unclear))

    def _with_settings(self, state: State, found: Triage) -> Triage:
        """The user's settings that the failure needs, and whether it needs symbolic sizes."""
        if self.runner.out_of_time:
            return found
        # Each run that hangs costs its clock.
        if settings_of(state) and self.runner.expected.kind != "hang":
            needed = needed_settings(self.runner, state)
            named = [f"{module}.{key}" for module, key in needed]
            found = replace(found, flags=tuple(dict.fromkeys([*found.flags, *named])))
        static = combined(static_sizes(state), state) if state.symbols else None
        if static is not None:
            self.only_dynamic = self.runner.one(static, Change("with static sizes")).passes
        return found

    def written(self, found: Triage, seconds: float) -> Triage:
        """What was found as the case has it: with the line of the program, the runs that show it, and labels."""
        record, log = self.start.record, self.runner.log
        line, not_narrowed = _line_of(record, (*reversed(found.nodes), *reversed(self.left))), None
        known = record.lines
        several = len({known[name].place for name in found.nodes if name in known})
        if self.unclear is not None and several > 1:
            # The last of many lines would be wrong more often than not.
            line, not_narrowed = None, f"not narrowed: {several} lines are left; {self.unclear}"
        elif line is None and found.nodes:
            not_narrowed = "no line of the program is known for the calls at fault"
        triage = replace(
            found,
            ops=found.ops or _ops_of(self.start.state, found.nodes),
            user_line=line.place if line else None,
            not_narrowed=not_narrowed,
            seconds=round(seconds, 2),
            code=line.code if line else None,
            with_lines=self._other_lines(line),
            function=line.function if line else None,
            module=(line.module or None) if line else None,
            forward_op=(line.call or None) if line and line.gradient else None,
            trials=len(log),
            rungs=tuple(Rung(r.change.what, r.answer.value, round(r.outcome.seconds, 2)) for r in log),
        )
        return replace(triage, labels=labels_of(self.case, triage, only_dynamic=self.only_dynamic))

    def _other_lines(self, line: SourceLine | None) -> tuple[str, ...]:
        """The other lines that the failure needs: a view made in one shows in the next. None where they are many."""
        known = self.start.record.lines
        needed = [known[name] for name in self.left if name in known]
        others = {
            each.place: f"{each.place}: {each.code}" for each in needed if line and each.place != line.place
        }
        return tuple(others.values()) if self.fewest and len(others) <= MOST_LINES else ()

    def _look(self, state: State, look: Change) -> Result:
        """A first look at a state; where it hangs in little time, all else is asked with as little."""
        expected = self.runner.expected
        if (expected.kind, expected.phase) == ("hang", "compile"):
            oracle = TrialOracle(self.runner.questions, expected, self.runner.limits, self.runner.deadline)
            limits = oracle.short_limits(state)
            if limits is not None:
                quicker = replace(self.runner, limits=limits, stop_after="codegen")
                result = quicker.one(state, look, trace=True)
                if result.fails:
                    self.runner = quicker
                    return result
        return self.runner.one(state, look, trace=True)

    def _failing(self, first: Result | None = None) -> Result:
        """The run as it was, if it failed as it should; otherwise a sentence says what it did."""
        first = first or self.runner.one(self.start.state, AS_IT_WAS, trace=True)
        if first.answer is Answer.FAILS:
            return first
        name, outcome = self.case.id, first.outcome
        if first.answer is Answer.CANNOT_TELL:
            raise NotPinnedDown(f"case {name} cannot be tried here: {outcome.error}")
        if outcome.signature is not None:
            summary = outcome.signature.summary
            raise NotPinnedDown(
                f"case {name} fails differently here ({summary}); run its original.py to compare"
            )
        # It did not come: it is gone, or it comes only sometimes, and how often.
        trial = self.runner.trial(Asked(self.start.state, AS_IT_WAS))
        rate = failure_rate(self.runner.workers, trial, SECOND_LOOKS)
        if not rate.failures:
            raise NotPinnedDown(
                f"case {name} does not fail here any more (0 of {rate.runs + 1} runs); record it again"
            )
        raise NotPinnedDown(
            f"case {name} fails only sometimes: in {rate.failures} of {rate.runs} more runs; experiments cannot tell "
            f"chance from cause, so look for what differs between runs: torchsleuth verify {name} --times 20"
        )

    def _fewer_calls(self, first: Result | None) -> tuple[State, Result, str | None]:
        """The state with as few calls as still fail, its failing run, traced, and why they may not be the fewest."""
        start, runner = self.start, self.runner
        oracle = TrialOracle(runner.questions, start.expected, runner.limits).holding_to(start.state)
        left = (runner.deadline or time.monotonic() + 60) - time.monotonic()
        analysis = self.case.analysis
        suspects = [
            *([analysis.node] if analysis is not None and analysis.node is not None else ()),
            *_nodes_at(first),
            *start.blamed(),
        ]
        runner.say(LOOKING_FOR_CALLS)
        if not runner.questions.begins(LOOKING_FOR_CALLS):
            return start.state, first or self._failing(), CALLS_LEFT
        state, unclear = start.state, None
        seconds = max(1.0, left * SHARE_FOR_CALLS)
        oracle.deadline = time.monotonic() + seconds
        try:
            reduction = search(
                start.state,
                oracle,
                seeds=list(dict.fromkeys(suspects)),
                width=runner.workers.count,
                budget_seconds=seconds,
                calls_only=True,
            )
            state, unclear = reduction.state, None if reduction.complete else CALLS_LEFT
            runner.say(f"calls left: {reduction.calls}, after {reduction.queries} trials")
        except NothingFails:
            unclear = "no part of the graph fails by itself"
        except NoAnswer as why:
            unclear = f"the graph cannot be cut, since it does not run without the compiler ({why})"
        if unclear is not None:
            runner.say(unclear)
        if state is not start.state:
            small = runner.one(state, Change("the calls that are left"), trace=True)
            if small.fails:
                return state, small, unclear
            unclear = unclear or "the calls that fail by themselves do not fail once more"
        return start.state, first or self._failing(), unclear


def _nodes_at(first: Result | None) -> list[str]:
    """The nodes that the failing run was at, the innermost step first."""
    return [name for step in reversed(first.steps if first else ()) for name in step.nodes]


def _kernel_at(state: State, name: str | None) -> str:
    """What to add where the call that failed is that of a Triton kernel: which one it is."""
    node = next((each for each in state.graph.graph.nodes if each.name == name), None)
    launch = None if node is None else triton_launch(node.target, node.kwargs)
    return "" if launch is None else f", in the Triton kernel {launch.name}"


def _component(runner: Runner, state: State, first: Result) -> Triage:
    """The component, and the part of Inductor where it is Inductor's."""
    if state.settings.level == "dynamo":
        climbed = climb(runner, state)
        if climbed.component != "inductor":
            return climbed
    elif has_custom_operator(state) and (operator := misbehaving_operator(runner, state)) is not None:
        return operator
    if state.embedded.defines_backend:
        return Triage("backend", state.settings.backend, pinned=True)
    looks = [lambda: narrowed(runner, state, first)]
    if runner.expected.phase == "compile":
        # What hangs for what it was given, and not by itself, may stand anywhere when its time is up.
        first_of_all = 1 if runner.expected.kind == "hang" and calls_of(state.graph) > 1 else 0
        looks.insert(first_of_all, lambda: stopped_at(runner, state, first.steps))
    part = next(filter(None, (look() for look in looks)), None)
    return part or (Triage("inductor", detail=TIME_WAS_UP) if runner.out_of_time else NO_SWITCH)


def _with_calls(state: State, found: Triage, unclear: str | None) -> Triage:
    """The operators and nodes that are left, where the part itself does not name any."""
    if unclear is not None and not (found.ops or found.nodes):
        found = replace(found, pinned=False, detail="; ".join(filter(None, [found.detail, unclear])))
    calls = tuple(n.name for n in state.graph.graph.nodes if n.op.startswith("call_"))
    return replace(found, ops=found.ops or tuple(print_graph(state.graph).ops), nodes=found.nodes or calls)


def _line_of(record: GraphRecord, nodes: Sequence[str]) -> SourceLine | None:
    """The line of the first of these nodes that has one, the last at fault being the one whose result is wrong.

    A node that the search has put in the place of others has none; then it is the last of the calls that are left. Of a
    model made of a library's modules it is the line that calls the model, with the module's path.
    """
    known = record.lines
    for name in nodes:
        nested = [key for key in known if key.endswith(f".{name}")]
        line = known.get(name) or (known[nested[0]] if nested else None)
        if line:
            return line
    return record.called_from


def _ops_of(state: State, nodes: Sequence[str]) -> tuple[str, ...]:
    """The operators of these nodes, each once.

    >>> _ops_of(state, ["relu"])
    ('torch.relu',)
    """
    calls = [n for n in state.graph.graph.nodes if n.name in set(nodes) and n.op.startswith("call_")]
    return tuple(dict.fromkeys(map(target_name, calls)))


def labels_of(case: Case, triage: Triage, *, only_dynamic: bool = False) -> tuple[str, ...]:
    """The labels a PyTorch engineer would put on the issue; none where the bug is not PyTorch's.

    >>> labels_of(case, Triage(component="inductor", part="lowering"))
    ('oncall: pt2', 'module: inductor', 'oncall: cpu inductor')
    """
    # A custom pass is the user's own.
    if triage.component not in _LABELS or "custom" in (triage.part or ""):
        return ()
    found = ["oncall: pt2", *_LABELS[triage.component]]
    if triage.component == "inductor" and case.device == "cpu":
        found.append("oncall: cpu inductor")
    if only_dynamic:
        found.append("module: dynamic shapes")
    if triage.subsystem == "cudagraphs":
        found.append("module: cuda graphs")
    if triage.part == "fake kernel":
        found.append("module: custom-operators")
    if case.kind in ("accuracy", "crash"):
        found.append("triage review")
    return tuple(found)
