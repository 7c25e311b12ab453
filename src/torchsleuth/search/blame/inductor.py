"""Inside Inductor: which pass, lowering, fusion, setting or code generation it is.

Where the compiler stopped - with an error, by a signal, at its clock - the trace says the step, and one run without
that step confirms it. Wrong numbers and failures at run time have no such place: there, everything of one kind is
left out at once, and what helps is narrowed down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsleuth.core.cases.model import Triage
from torchsleuth.core.change_table import (
    ALL_KEPT_EAGER,
    APART,
    GRAPH_PASSES,
    INTERPRETED,
    NEEDED_PASSES,
    PRECISION_CASTS,
    WITHOUT_CUDAGRAPHS,
    WITHOUT_FUSION,
    WITHOUT_INLINING,
    WITHOUT_PATTERNS,
    WITHOUT_TEMPLATES,
    few,
    kept_eager,
    one_choice,
    together,
    without_applications,
    without_graph_passes,
    without_passes,
)
from torchsleuth.core.changes import Change
from torchsleuth.search.blame.runner import Result, Runner, blamed, cautious_fix, switchable
from torchsleuth.search.minify.contract import State
from torchsleuth.torch_core.graphs.cut import calls_of
from torchsleuth.torch_internals.compile_trace import Step
from torchsleuth.torch_internals.compiler_switches import (
    CONFIGURATIONS,
    OF_A_TEMPLATE,
    TEMPLATES,
    nodes_fused,
    template_of,
)
from torchsleuth.torch_internals.operators import triton_launch

# Steps after lowering, and what is said of a compile that stopped in one.
_LATE = {
    "compiler": "the code that was generated does not compile",
    "kernel": "it stopped while code was generated for {}",
    "codegen": "it stopped while code was generated for {}",
    "fusion": "it stopped while kernels were fused",
}


def stopped_at(runner: Runner, state: State, steps: Sequence[Step]) -> Triage | None:
    """The part at which a compile stopped, confirmed by a run without it.

    None where the steps do not say, or where many things lead to the step: fusion, settings, one operator.
    """
    for step in reversed(steps):
        if step.kind == "lower":
            return _lowering(runner, state, step)
        if step.kind in ("pass", "pattern") and (found := _graph_pass(runner, state, step)) is not None:
            return found
        if step.kind == "cudagraphs":
            return blamed(WITHOUT_CUDAGRAPHS, "it stopped while making a CUDA graph")
        if step.kind in _LATE:
            return None
    return None


def _lowering(runner: Runner, state: State, step: Step) -> Triage:
    op = step.name
    change = replace(kept_eager([op]), what=f"{op} kept as an eager kernel", stop_after="lowering")
    without = runner.one(state, change)
    how = "; it passes when that operator is kept as an eager kernel" if without.passes else ""
    number = None
    if step.nodes and (at := f"{op} at {step.nodes[0]}") in (done := without.applied("lowerings")):
        number = done.index(at) + 1
    said = f"it stopped in the lowering of {op}{how}"
    return blamed(change, said, ops=(op,), nodes=step.nodes, application=number)


def _graph_pass(runner: Runner, state: State, step: Step) -> Triage | None:
    subsystem, _, name = step.name.rpartition(":") if step.kind == "pass" else ("patterns", "", step.name)
    if not subsystem:
        return None
    change = without_passes([(subsystem, name)])
    how = "; it passes without it" if runner.one(state, change).passes else ""
    kind = "pattern" if subsystem == "patterns" else "pass"
    nodes = _of_graph(state, step.nodes) if kind == "pattern" else ()
    return blamed(change, f"it stopped in the {kind} {name}{how}", nodes=nodes)


def _of_graph(state: State, names: Sequence[str]) -> tuple[str, ...]:
    """Those names that are nodes of the graph itself: a pass works on what the compiler made of it."""
    own = {node.name for node in state.graph.graph.nodes} if state.settings.level == "aot" else set()
    return tuple(name for name in names if name in own)


def narrowed(runner: Runner, state: State, first: Result) -> Triage | None:
    """The part at fault in a graph that is compiled or runs wrongly; None where no switch makes a difference."""
    settings = switchable(state)
    passes = [subsystem for subsystem in GRAPH_PASSES if first.applied(subsystem)]
    no_passes, cautious = without_graph_passes(passes), together(settings, "with every setting cautious")
    asked = [ALL_KEPT_EAGER, INTERPRETED, *([no_passes] if passes else []), APART, cautious]
    if first.applied("cudagraphs"):
        asked.append(WITHOUT_CUDAGRAPHS)
    said = dict(zip(asked, runner.ask(state, asked)))
    eager, interpreted = said[ALL_KEPT_EAGER], said[INTERPRETED]
    # The first with which it passes; what comes earlier in a compile may be what makes the others fail.
    if WITHOUT_CUDAGRAPHS in said and said[WITHOUT_CUDAGRAPHS].passes:
        return blamed(WITHOUT_CUDAGRAPHS, "it passes without CUDA graphs")
    if passes and said[no_passes].passes:
        return _which_pass(runner, state, first, passes)
    if said[APART].passes:
        return _which_fusion(runner, state)
    if (template := _which_template(runner, state, first)) is not None:
        return template
    if said[cautious].passes:
        return _which_settings(runner, state, settings, interpreted)
    late = next((step for step in reversed(first.steps) if step.kind in _LATE), None)
    configurations = list(dict.fromkeys(first.applied(CONFIGURATIONS)))
    if (chosen := _which_choice(runner, state, CONFIGURATIONS, configurations)) is not None:
        return chosen
    if late is not None:
        why = _LATE[late.kind].format(late.name or "the graph")
        return blamed(INTERPRETED, why, nodes=() if late.kind == "compiler" else late.nodes)
    if not eager.passes and not interpreted.passes:
        return _launch_of_a_kernel(state)
    found = _lowering_or_codegen(eager, interpreted)
    ops = list(dict.fromkeys(name.rpartition(" at ")[0] for name in eager.applied("lowerings")))
    if eager.passes and len(ops) > 1:
        ops = runner.smallest_cure(state, ops, kept_eager)
    return replace(found, ops=tuple(ops))


def _launch_of_a_kernel(state: State) -> Triage | None:
    """Of a Triton kernel of the user's that is right by itself, which eager runs, what Inductor writes around it."""
    launches = [(n.name, triton_launch(n.target, n.kwargs)) for n in state.graph.graph.nodes]
    kernels = {name: launch.name for name, launch in launches if launch is not None}
    if len(kernels) != 1 or calls_of(state.graph) != 1:
        return None
    ((node, kernel),) = kernels.items()
    said = f"the Triton kernel {kernel} is right where it is launched directly, not as Inductor launches it"
    return Triage("inductor", "launch of the user's kernel", detail=said, pinned=True, nodes=(node,))


# Of what autotuning chooses between, so many are compiled by themselves.
MOST_CHOICES = 8


def _which_template(runner: Runner, state: State, first: Result) -> Triage | None:
    """A template at fault, or one choice for it; None where none is.

    It passes with one of torch's own kernels in its place. Where there is none, as for flex attention, nothing but
    the template must be left.
    """
    choices = list(dict.fromkeys(first.applied(TEMPLATES)))
    if not choices:
        return None
    names = few(list(dict.fromkeys(map(template_of, choices))))
    if runner.one(state, WITHOUT_TEMPLATES).passes:
        said = f"it passes with a kernel of torch's own in place of {names}"
        return _which_choice(runner, state, TEMPLATES, choices) or blamed(WITHOUT_TEMPLATES, said)
    if calls_of(state.graph) > 1:
        return None
    said = f"the one call that is left is compiled from {names}, which may be what is written into it"
    return _which_choice(runner, state, TEMPLATES, choices) or blamed(WITHOUT_TEMPLATES, said)


def _which_choice(runner: Runner, state: State, subsystem: str, choices: Sequence[str]) -> Triage | None:
    """What autotuning chose, each by itself; None where all fail, or all pass."""
    shown = choices[:MOST_CHOICES] if len(choices) > 1 else ()
    alone = runner.ask(state, [one_choice(subsystem, name) for name in shown])
    fails = [name for name, result in zip(shown, alone) if result.fails]
    passes = [name for name, result in zip(shown, alone) if result.passes]
    if not fails or not passes:
        return None
    said = f"it fails with {few(fails)}, and passes with {few(passes)}, each by itself"
    return blamed(one_choice(subsystem, fails[0]), said)


def _lowering_or_codegen(eager: Result, interpreted: Result) -> Triage:
    """The lowered graph, interpreted, tells what is wrong: the lowering, or the code made of it."""
    if interpreted.passes:
        why = "the lowered graph is right when it is interpreted; the code generated from it is not"
        return blamed(INTERPRETED, why)
    if interpreted.fails:
        why = "the lowered graph is wrong already when it is interpreted, without generated code"
        return blamed(ALL_KEPT_EAGER, why)
    why = "it passes when every operator is kept as an eager kernel"
    return replace(blamed(ALL_KEPT_EAGER, why), pinned=eager.passes)


def _which_pass(runner: Runner, state: State, first: Result, passes: Sequence[str]) -> Triage:
    """The pattern or else the pass by name, then which of its applications."""
    patterns = list(dict.fromkeys(first.applied("patterns")))
    if patterns and runner.one(state, WITHOUT_PATTERNS).passes:
        return _which_pattern(runner, state, patterns)
    applied = [
        (p, name) for p in passes for name in dict.fromkeys(first.applied(p)) if name not in NEEDED_PASSES
    ]
    # What the user brought is the first suspect.
    applied.sort(key=lambda each: "custom" not in each[1])
    guilty = runner.smallest_cure(state, applied, without_passes)
    subsystem, name = guilty[0]
    places = [place for place, each in enumerate(first.applied(subsystem)) if each == name]
    helped = places
    if len(places) > 1:
        what = f"without application {{}} of {subsystem}"
        asked = [without_applications(subsystem, [place], what.format(place + 1)) for place in places]
        helped = [place for place, result in zip(places, runner.ask(state, asked)) if result.passes]
    change = without_passes(guilty)
    said = f"it passes without the pass {change.part} of {subsystem}"
    return blamed(change, said, application=(helped or places)[0] + 1)


def _which_pattern(runner: Runner, state: State, applied: Sequence[str]) -> Triage:
    """The pattern, and where in the graph it was applied; several where they make up for each other."""
    guilty = runner.smallest_cure(
        state, applied, lambda some: without_passes([("patterns", name) for name in some])
    )
    names = list(dict.fromkeys(each.rpartition(" at ")[0] for each in guilty))
    places = _of_graph(state, [each.rpartition(" at ")[2] for each in guilty])
    change = without_passes([("patterns", name) for name in names])
    said = f"it passes without the pattern {change.part}"
    number = applied.index(guilty[0]) + 1
    if len(names) == 1 or not runner.out_of_time:
        return blamed(change, said, nodes=places, application=number)
    late = f"{said}; the time was up before it was clear which of them (--budget)"
    return replace(blamed(change, late, nodes=places, application=number), pinned=False)


def _which_fusion(runner: Runner, state: State) -> Triage:
    """Fusion of kernels, inlining of operators, or both; and which, where one of them is enough."""
    only = runner.ask(state, [WITHOUT_FUSION, WITHOUT_INLINING])
    chosen = next((r for r in only if r.passes), None)
    if chosen is None:
        return blamed(APART, "it passes when every operator is a kernel of its own")
    subsystem = next(iter(chosen.change.off))
    names = chosen.applied(subsystem)

    def without(some: Sequence[int]) -> Change:
        what = f"without {len(some)} of {len(names)} in {subsystem}"
        return without_applications(subsystem, some, what)

    places = runner.smallest_cure(state, range(len(names)), without) if names else []
    joined = [names[place] for place in places]
    nodes = joined if subsystem == "inlining" else [node for each in joined for node in nodes_fused(each)]
    change = chosen.change
    if joined and all(OF_A_TEMPLATE in each for each in joined):
        change = replace(change, part="epilogue")
    return blamed(
        change,
        f"it passes without {subsystem} of {', '.join(joined) or 'anything'}",
        nodes=tuple(nodes) if state.settings.level == "aot" else (),
        application=places[0] + 1 if len(places) == 1 else None,
    )


def _which_settings(runner: Runner, state: State, settings: Sequence[Change], interpreted: Result) -> Triage:
    fix = cautious_fix(runner, state, settings)
    lines = tuple(each.how for each in fix)
    # What is kept in another precision is a part only by itself.
    part = None if fix[0] == PRECISION_CASTS and len(fix) > 1 else fix[0].part
    why = f"it passes without {together(fix).disables}: {' and '.join(lines)}"
    if interpreted.passes and part is None:
        why = f"{why}; the lowered graph is right when it is interpreted"
    return Triage("inductor", part or "codegen", detail=why, pinned=True, flags=lines)
