"""What gets the user going again: candidates tried on the user's own graph, the mildest that works first.

A control run says that the graph still fails when it is checked as the workarounds are; without it, anything would
look like a cure. Where the check's own random numbers are the cure, that is the answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.core.cases.folder import CaseFolder, update_case
from torchsleuth.core.cases.model import Case, Triage, Workaround
from torchsleuth.core.cases.releases import bisection_of, newest_working
from torchsleuth.core.change_table import BACKEND, RANDOM, other_release, together
from torchsleuth.core.changes import INDUCTOR, Change
from torchsleuth.core.processes.limits import clock_of_a_hang
from torchsleuth.search.blame.runner import Runner, cautious_fix, switchable
from torchsleuth.search.blame.triage_case import IN_EAGER
from torchsleuth.search.cure.attempts import Attempts, Original, Tried
from torchsleuth.search.cure.candidates import About, candidates_for, suspects_of
from torchsleuth.search.minify.case_state import CaseQuestions, SearchStart
from torchsleuth.search.minify.contract import State
from torchsleuth.torch_core.compare.reference.eager import MUTATED
from torchsleuth.torch_core.tensors import TensorSpec
from torchsleuth.torch_internals.configuration import default_setting

# Runs of the same code on a busy machine differ by this much; below it, what is given up decides.
NOISE = 1.5
# What a call costs before any kernel runs is 0.2 ms; runs of a few times that say nothing about kernels.
LEAST_MEASURED = 1e-3
CONTROL = Change(name="as it was")
_LOW = ("torch.float16", "torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e5m2")


class NothingToWorkAround(SleuthError):
    """There is no failure of the compiler's that a workaround could avoid; says why."""


def find_workarounds(
    folder: CaseFolder,
    questions: CaseQuestions,
    *,
    budget_seconds: float,
    say: Callable[[str], None] = lambda text: None,
) -> list[Change]:
    """What was tried to make the case's graph pass, in the order in which the case then has what came of it."""
    case = folder.case
    refuse_hopeless(case)
    start = questions.start_of(folder)
    limits = clock_of_a_hang(questions.workers.limits, case.kind, case.phase, case.extra.get("timeout"))
    questions.deadline = time.monotonic() + budget_seconds
    runner = Runner(questions, case.signature, limits, say)
    small = questions.smallest.get(folder.path)
    done: list[Tried] = []

    def keep(more: Sequence[Tried]) -> None:
        """What works is in the case at once: a later trial may cost the host its time."""
        done.extend(each for each in more if each.verified)
        update_case(folder, workarounds=tuple(workaround_of(each, None) for each in ordered(done)))

    found = attempts(folder, start, runner, budget_seconds, small.state if small else None, keep)
    update_case(folder, workarounds=tuple(workaround for _, workaround in found))
    return [change for change, _ in found]


def refuse_hopeless(case: Case) -> None:
    """Raises `NothingToWorkAround` where the fault is not the compiler's, or there is no graph to try anything on."""
    if case.triage is not None and case.triage.component == "program":
        raise NothingToWorkAround(
            f"case {case.id} fails without the compiler, too; what has to change is the program"
            + (f", at {case.triage.user_line}" if case.triage.user_line else "")
        )
    if case.no_repro is not None:
        where = f" around {case.triage.user_line}" if case.triage and case.triage.user_line else ""
        raise NothingToWorkAround(
            f"case {case.id} has no graph to try anything on: {case.no_repro}. What always keeps code away from the "
            f"compiler, untried: @torch.compiler.disable above the function{where}"
        )


def attempts(
    folder: CaseFolder,
    start: SearchStart,
    runner: Runner,
    budget_seconds: float,
    small: State | None = None,
    keep: Callable[[Sequence[Tried]], None] = lambda tried: None,
) -> list[tuple[Change, Workaround]]:
    """What was tried, and what came of each; what helps the `small` graph comes early."""
    deadline = time.monotonic() + budget_seconds
    case, about = folder.case, about_case(folder, start)
    trying = Attempts(runner, _original(case, start.state, runner), deadline)
    wanted = candidates_for(about)
    # What is pinned down has been seen to help the small graph.
    helps = {} if about.triage.pinned or small is None else trying.help_small(small, wanted)
    # What needs no compile comes first: then there is something, however short the time.
    wanted.sort(key=lambda each: (each.reach != BACKEND, -helps.get(each.name, 0), each.reach))
    tried: list[Tried] = []
    check_is_a_cure = False
    if case.kind != "hang" or case.verified is None or not case.verified.reproduced:
        # The control needs a place of its own only where there is one worker.
        control, *tried = trying.try_all([CONTROL, *wanted[: runner.workers.count - 1]])
        check_is_a_cure = control.verified
        if check_is_a_cure:
            wanted, tried = _what_the_check_leaves(case, runner, start.state, wanted), []
    trying.keep = keep
    keep(tried)
    tried += trying.try_all(wanted[len(tried) :])
    if not check_is_a_cure and not any(t.verified and t.change.reach < BACKEND for t in tried):
        tried += trying.try_all(_settings_that_help(trying, small or start.state, about))
    runner.say(f"{sum(t.verified for t in tried)} of {len(tried)} workarounds verified")
    tried, full = ordered(tried), None
    if case.kind == "accuracy":  # else there is nothing to time against
        tried, full = trying.timed(tried)
    return [*((each.change, workaround_of(each, full)) for each in ordered(tried)), *_release(folder)]


def _original(case: Case, state: State, runner: Runner) -> Original:
    """The graph as it was captured, and how it is checked."""
    known = (case.extra.get("accuracy") or {}).get("tolerances") or {}
    places = [path.removesuffix(MUTATED) for path in case.signature.outputs]
    # The tolerance of each output that was wrong, as the check that found it set it.
    wrong_by = {path: known[path] for path in places if path in known}
    # A graph that failed before its first forward may have a backward that fails in eager as well.
    early = (case.phase, case.after, case.direction) == ("compile", "dynamo", "forward")
    forward_only = early and runner.one(state, IN_EAGER).outcome.signature is not None
    return Original(state, case.kind == "accuracy", runner.questions, wrong_by, forward_only)


def _what_the_check_leaves(
    case: Case, runner: Runner, state: State, wanted: Sequence[Change]
) -> list[Change]:
    """The only candidates that can be judged where the check itself is a cure."""
    if runner.one(state, Change("as it was, with random numbers of its own")).passes:
        raise NothingToWorkAround(
            f"case {case.id} does not fail here, so no workaround can be tried; "
            f"see whether it fails at all: torchsleuth verify {case.id} --times 3"
        )
    return [RANDOM, *(each for each in wanted if each.reach == BACKEND)]


def _settings_that_help(trying: Attempts, state: State, about: About) -> list[Change]:
    """Settings that make the failure vanish, for a fault that nobody has pinned down."""
    if about.backend != "inductor" or about.triage.pinned or trying.late:
        return []
    settings = switchable(state)
    if not trying.runner.one(state, together(settings, "with every setting cautious")).passes:
        return []
    return [together(settings if trying.late else cautious_fix(trying.runner, state, settings))]


def about_case(folder: CaseFolder, start: SearchStart) -> About:
    """What the candidates for a case depend on."""
    case, state = folder.case, start.state
    calls = [n for n in state.graph.graph.nodes if n.op.startswith("call_")]
    dtypes = {i.spec.dtype for i in state.inputs if isinstance(i.spec, TensorSpec)}
    settings = {k: dict(v) for k, v in state.settings.config.items()}
    settings.setdefault(INDUCTOR, {}).update(state.settings.options)
    if case.kind == "accuracy":
        settings[INDUCTOR].pop(RANDOM.keys[0], None)  # the check's own
    defaults = {
        module: {key: repr(found[0]) for key in values if (found := default_setting(module, key)) is not None}
        for module, values in settings.items()
    }
    return About(
        kind=case.kind,
        backend=case.backend,
        calls=tuple(n.name for n in calls),
        targets={n.name: str(getattr(n.target, "__name__", n.target)) for n in calls},
        suspects=suspects_of(case, start),
        lines=start.record.lines,
        triage=case.triage or Triage(),
        backward=case.direction == "backward",
        symbols=bool(state.symbols),
        low_precision=any(str(dtype) in _LOW for dtype in dtypes),
        settings={module: values for module, values in settings.items() if values},
        defaults=defaults,
        several_calls=case.minified is not None and (case.minified.calls or 0) > 1,
    )


def ordered(tried: Iterable[Tried]) -> list[Tried]:
    """Verified ones first; of those, the faster ones beyond noise; then the ones that give up least.

    Another backend is the last resort, however fast: it gives up the compiler itself.

    >>> ordered([])
    []
    """
    listed = list(tried)
    good = [each for each in listed if each.verified]
    fastest = min((each.run_seconds for each in good if each.run_seconds), default=None)

    def slower(each: Tried) -> int:
        own = _slower(each.run_seconds, fastest)
        if not each.estimated:
            return own
        # Graph breaks are not in an estimate: it is no reason to go before something that gives up less.
        milder = [o for o in good if not o.estimated and o.change.reach < each.change.reach]
        return max(own, min((_slower(o.run_seconds, fastest) for o in milder), default=0))

    def key(each: Tried) -> tuple[bool, bool, int, int, int]:
        reach = each.change.reach
        speed = slower(each) if each.verified else 0
        return not each.verified, reach == BACKEND, speed, reach, len(each.change.how)

    return sorted(listed, key=key)


def _slower(seconds: float | None, fastest: float | None) -> int:
    """How many times slower than the fastest, in steps larger than noise; what cannot be timed counts as fast."""
    if not seconds or not fastest:
        return 0
    return math.floor(math.log(max(seconds, LEAST_MEASURED) / max(fastest, LEAST_MEASURED), NOISE))


def workaround_of(tried: Tried, full_seconds: float | None) -> Workaround:
    """What the case keeps of a trial; what it costs, where both runs take long enough to be measured.

    >>> workaround_of(Tried(RANDOM, None, run_seconds=0.06), 0.05).cost
    1.2
    """
    cost = None
    if tried.run_seconds and full_seconds and min(tried.run_seconds, full_seconds) >= LEAST_MEASURED:
        cost = round(tried.run_seconds / full_seconds, 2)
    return Workaround.of(tried.change, tried.error, cost=cost, seconds=tried.seconds)


def _release(folder: CaseFolder) -> list[tuple[Change, Workaround]]:
    """Another torch, where `bisect` has found one in which the repro passes."""
    result = bisection_of(folder.case)
    version = newest_working(result) if result is not None else None
    if version is None or version == folder.case.torch.partition("+")[0]:
        return []
    smaller = folder.file("repro.py").is_file()
    error = "only the smallest repro was run with it, not the whole graph" if smaller else None
    release = other_release(version, folder.case.torch)
    return [(release, Workaround.of(release, error))]
