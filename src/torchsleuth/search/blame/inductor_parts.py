"""Inside Inductor: which pass, lowering, fusion, setting or code generation it is.

Where the compiler stopped - with an error, by a signal, at its clock - the trace says the step, and one run without
that step confirms it. Wrong numbers and failures at run time have no such place: there, everything of one kind is
left out at once, and what helps is narrowed down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsleuth.core.change_table import INTERPRETED, PRECISION_CASTS, together
from torchsleuth.core.changes import Change
from torchsleuth.search.blame.cautious_settings import cautious_fix, switchable
from torchsleuth.search.blame.experiments import ExperimentRunner, Result, few
from torchsleuth.search.blame.finding import Finding
from torchsleuth.search.minify.contract import State
from torchsleuth.torch_internals.compile_trace import Step
from torchsleuth.torch_internals.compiler_switches import nodes_fused

PASSES = ("pre_grad_passes", "joint_graph_passes", "post_grad_passes")
# Without these passes a graph with custom or mutating operators cannot be lowered at all.
NEEDED = (
    "decompose_auto_functionalized",
    "decompose_map_to_while_loop",
    "decompose_scan_to_while_loop",
    "decompose_triton_kernel_wrapper_functional",
    "fix_auto_functionalized_dtype_views",
    "move_constructors_to_cuda",
    "reinplace_fsdp_all_gather",
    "reinplace_inplaceable_ops",
    "stable_sort",
)


# Steps after lowering, and what is said of a compile that stopped in one.
_LATE = {
    "compiler": "the code that was generated does not compile",
    "kernel": "it stopped while code was generated for {}",
    "codegen": "it stopped while code was generated for {}",
    "fusion": "it stopped while kernels were fused",
}


def stopped_at(runner: ExperimentRunner, state: State, steps: Sequence[Step]) -> Finding | None:
    """The part at which a compile stopped, confirmed by a run without it.

    None where the steps do not say, or where many things lead to the step: fusion, settings, one operator.
    """
    for step in reversed(steps):
        if step.kind == "lower":
            return _lowering(runner, state, step)
        if step.kind in ("pass", "pattern") and (found := _graph_pass(runner, state, step)) is not None:
            return found
        if step.kind == "cudagraphs":
            return Finding(
                "inductor", "cudagraphs", "it stopped while making a CUDA graph", True, subsystem="cudagraphs"
            )
        if step.kind in _LATE:
            return None
    return None


def _lowering(runner: ExperimentRunner, state: State, step: Step) -> Finding:
    without = runner.one(
        state,
        Change(
            f"{step.name} kept as an eager kernel",
            off={"lowerings": {"names": [step.name]}},
            stop_after="lowering",
        ),
    )
    how = "; it passes when that operator is kept as an eager kernel" if without.passes else ""
    number = None
    if step.nodes and (at := f"{step.name} at {step.nodes[0]}") in (done := without.applied("lowerings")):
        number = done.index(at) + 1
    return Finding(
        "inductor",
        "lowering",
        f"it stopped in the lowering of {step.name}{how}",
        True,
        (step.name,),
        step.nodes,
        "lowerings",
        number,
    )


def _graph_pass(runner: ExperimentRunner, state: State, step: Step) -> Finding | None:
    subsystem, _, name = step.name.rpartition(":") if step.kind == "pass" else ("patterns", "", step.name)
    if not subsystem:
        return None
    off = {subsystem: {"names": [name]}}
    without = runner.one(state, Change(f"without {name}", off=off))
    how = "; it passes without it" if without.passes else ""
    kind = "pattern" if subsystem == "patterns" else "pass"
    nodes = _of_graph(state, step.nodes) if kind == "pattern" else ()
    said = f"it stopped in the {kind} {name}{how}"
    return Finding("inductor", name, said, True, nodes=nodes, subsystem=subsystem)


def _of_graph(state: State, names: Sequence[str]) -> tuple[str, ...]:
    """Those names that are nodes of the graph itself: a pass works on what the compiler made of it."""
    own = {node.name for node in state.graph.graph.nodes} if state.settings.level == "aot" else set()
    return tuple(name for name in names if name in own)


def narrowed(runner: ExperimentRunner, state: State, first: Result) -> Finding | None:
    """The part at fault in a graph that is compiled or runs wrongly; None where no switch makes a difference."""
    flags = switchable(state)
    passes = [subsystem for subsystem in PASSES if first.applied(subsystem)]
    experiments = {
        "lowerings": Change("every operator kept as an eager kernel", off={"lowerings": {}}),
        "interpret": INTERPRETED,
        "passes": Change("without graph passes", off={p: {"but": NEEDED} for p in (*passes, "patterns")}),
        "fusion": Change("every operator in a kernel of its own", off={"fusion": {}, "inlining": {}}),
        "flags": together(flags, "with every setting cautious"),
    }
    if first.applied("cudagraphs"):
        experiments["cudagraphs"] = Change("without CUDA graphs", off={"cudagraphs": {}})
    if not passes:
        del experiments["passes"]
    said = dict(zip(experiments, runner.ask(state, list(experiments.values()))))
    if "cudagraphs" in said and said["cudagraphs"].passes:
        return Finding(
            "inductor", "cudagraphs", "it passes without CUDA graphs", True, subsystem="cudagraphs"
        )
    if "passes" in said and said["passes"].passes:
        return _which_pass(runner, state, first, passes)
    if said["fusion"].passes:
        return _which_fusion(runner, state, said["fusion"])
    if said["flags"].passes:
        return _which_flags(runner, state, flags, said["interpret"])
    late = next((step for step in reversed(first.steps) if step.kind in _LATE), None)
    if late is not None:
        found = Finding(
            "inductor", "codegen", _LATE[late.kind].format(late.name or "the graph"), True, nodes=late.nodes
        )
        return replace(found, nodes=()) if late.kind == "compiler" else found
    if not said["lowerings"].passes and not said["interpret"].passes:
        return None
    found = _lowering_or_codegen(said["lowerings"], said["interpret"])
    return replace(found, ops=_which_operators(runner, state, said["lowerings"]))


def _which_operators(runner: ExperimentRunner, state: State, eager: Result) -> tuple[str, ...]:
    """The fewest operators of the lowered graph that make it pass when they are kept as eager kernels."""
    ops = list(dict.fromkeys(name.rpartition(" at ")[0] for name in eager.applied("lowerings")))

    def without(some: Sequence[str]) -> Change:
        return Change(f"{few(list(some))} kept as eager kernels", off={"lowerings": {"names": list(some)}})

    return tuple(runner.smallest_cure(state, ops, without)) if eager.passes and len(ops) > 1 else tuple(ops)


def _lowering_or_codegen(eager: Result, interpreted: Result) -> Finding:
    """The lowered graph, interpreted, tells what is wrong: the lowering, or the code made of it."""
    if interpreted.passes:
        return Finding(
            "inductor",
            "codegen",
            "the lowered graph is right when it is interpreted; the code generated from it is not",
            True,
        )
    if interpreted.fails:
        why = "the lowered graph is wrong already when it is interpreted, without generated code"
        return Finding("inductor", "lowering", why, True, subsystem="lowerings")
    why = "it passes when every operator is kept as an eager kernel"
    return Finding("inductor", "lowering", why, eager.passes, subsystem="lowerings")


def _which_pass(runner: ExperimentRunner, state: State, first: Result, passes: Sequence[str]) -> Finding:
    """The pattern or else the pass by name, then which of its applications."""
    patterns = list(dict.fromkeys(first.applied("patterns")))
    without_any = Change("without patterns", off={"patterns": {"but": NEEDED}})
    if patterns and runner.one(state, without_any).passes:
        return _which_pattern(runner, state, patterns)
    applied = [(p, name) for p in passes for name in dict.fromkeys(first.applied(p)) if name not in NEEDED]
    # What the user brought is the first suspect.
    applied.sort(key=lambda each: "custom" not in each[1])

    def without(some: Sequence[tuple[str, str]]) -> Change:
        return Change(f"without {few([name for _, name in some])}", off=_windows(some))

    guilty = runner.smallest_cure(state, applied, without)
    subsystem, name = guilty[0]
    places = [place for place, each in enumerate(first.applied(subsystem)) if each == name]
    number = places[0] + 1
    if len(places) > 1:
        asked = [
            Change(f"without application {place + 1} of {subsystem}", off={subsystem: {"skip": [place]}})
            for place in places
        ]
        helped = [place for place, result in zip(places, runner.ask(state, asked)) if result.passes]
        number = (helped or places)[0] + 1
    names = ", ".join(each for _, each in guilty)
    return Finding(
        "inductor",
        names,
        f"it passes without the pass {names} of {subsystem}",
        True,
        subsystem=subsystem,
        application=number,
    )


def _which_pattern(runner: ExperimentRunner, state: State, applied: Sequence[str]) -> Finding:
    """The pattern, and where in the graph it was applied; several where they make up for each other."""

    def without(some: Sequence[str]) -> Change:
        return Change(f"without {few(list(some))}", off={"patterns": {"names": list(some)}})

    guilty = runner.smallest_cure(state, applied, without)
    names = list(dict.fromkeys(each.rpartition(" at ")[0] for each in guilty))
    places = _of_graph(state, [each.rpartition(" at ")[2] for each in guilty])
    said = f"it passes without the pattern {', '.join(names)}"
    in_time = len(names) == 1 or not runner.out_of_time
    return Finding(
        "inductor",
        ", ".join(names),
        said if in_time else f"{said}; the time was up before it was clear which of them (--budget)",
        in_time,
        nodes=places,
        subsystem="patterns",
        application=applied.index(guilty[0]) + 1,
    )


def _windows(passes: Sequence[tuple[str, str]]) -> dict[str, dict[str, list[str]]]:
    windows: dict[str, dict[str, list[str]]] = {}
    for subsystem, name in passes:
        windows.setdefault(subsystem, {"names": []})["names"].append(name)
    return windows


def _which_fusion(runner: ExperimentRunner, state: State, all_apart: Result) -> Finding:
    """Fusion of kernels, inlining of operators, or both; and which, where one of them is enough."""
    only = runner.ask(
        state,
        [
            Change("without fusion of kernels", off={"fusion": {}}),
            Change("without inlining of operators", off={"inlining": {}}),
        ],
    )
    chosen = next((r for r in only if r.passes), None)
    if chosen is None:
        return Finding(
            "inductor",
            "fusion",
            "it passes when every operator is a kernel of its own",
            True,
            subsystem="fusion",
        )
    subsystem = next(iter(chosen.change.off))
    names = chosen.applied(subsystem)

    def without(some: Sequence[int]) -> Change:
        what = f"without {len(some)} of {len(names)} in {subsystem}"
        return Change(what, off={subsystem: {"skip": list(some)}})

    places = runner.smallest_cure(state, range(len(names)), without) if names else []
    which = ", ".join(names[place] for place in places)
    detail = f"it passes without {subsystem} of {which or 'anything'}"
    number = places[0] + 1 if len(places) == 1 else None
    joined = [names[place] for place in places]
    nodes = (
        tuple(joined) if subsystem == "inlining" else tuple(n for each in joined for n in nodes_fused(each))
    )
    nodes = nodes if state.settings.level == "aot" else ()
    return Finding("inductor", "fusion", detail, True, nodes=nodes, subsystem=subsystem, application=number)


def _which_flags(
    runner: ExperimentRunner, state: State, flags: Sequence[Change], interpreted: Result
) -> Finding:
    fix = cautious_fix(runner, state, flags)
    lines = [each.how for each in fix]
    means = " and ".join(each.disables for each in fix)
    # What is kept in another precision is a part only by itself.
    part = (fix[0].part if fix == [PRECISION_CASTS] or fix[0] != PRECISION_CASTS else None) or "codegen"
    found = Finding(
        "inductor", part, f"it passes without {means}: {' and '.join(lines)}", True, flags=tuple(lines)
    )
    if interpreted.passes and part == "codegen":
        return replace(found, detail=f"{found.detail}; the lowered graph is right when it is interpreted")
    return found
