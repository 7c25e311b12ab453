"""What could make the user's graph pass, each as one change: how to try it, and the line to paste.

Nothing is tried here. A candidate says what it changes in a trial (`Change`) and in a whole program (`Overrides`);
`reach` is how much of the compiler it gives up, so that the smallest one that works can be put first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchsleuth.core.cases.flags import INDUCTOR, PRECISION_CASTS, RANDOM, Flag, config_of
from torchsleuth.core.cases.model import Triage
from torchsleuth.search.blame.cautious_settings import CAUTIOUS
from torchsleuth.search.blame.experiments import Config
from torchsleuth.search.cure.places import (
    Function,
    Lines,
    Suspects,
    class_of,
    function_of,
    is_library,
    module_expression,
    nodes_of_functions,
    nodes_of_modules,
    with_eager_call,
)
from torchsleuth.watched.overrides import Overrides

# How much each kind gives up, least first.
PART, SETTING, OPERATOR, CALL, MODULE, FUNCTION, BREAK, MODE, BACKEND = range(9)
PASSES = ("pre_grad_passes", "joint_graph_passes", "post_grad_passes")
# More lines than this are no workaround that anyone would paste.
MOST_PLACES = 4
# Inside a loop Dynamo answers a graph break by leaving the whole function that holds the loop eager.
BREAKS = "with a graph break at each; within a loop all of the looping function stays eager"
_FLAG = re.compile(r"(torch\._\w+\.config)\.([\w.]+) = (.+)")
# An overload of an operator; what Dynamo records are functions of torch's.
_OPERATOR = re.compile(r"(?!torch\.|operator\.)\w+\.\w+\.\w+")
# The setting that stands for a subsystem which torch lets one switch off as a whole only.
_WHOLE = {
    "patterns": Flag("pattern_matcher", "False", "pattern matching on graphs"),
    "fusion": Flag("max_fusion_size", "1", "fusion of kernels"),
    "cudagraphs": Flag("triton.cudagraphs", "False", "CUDA graphs"),
}


@dataclass(frozen=True)
class Change:
    """What a trial of the whole graph does differently.

    `snippet` is run first, as if it stood in the program; `without` are nodes that stay eager; `parted_before` is the
    node before which the graph is cut in two; `static` makes all sizes fixed; `plain` goes back to torch's default
    settings; `no_inference_mode` only switches gradients off where the program enters inference mode.
    """

    config: Config = field(default_factory=dict)
    off: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    backend: str | None = None
    snippet: str = ""
    without: frozenset[str] = frozenset()
    parted_before: str | None = None
    static: bool = False
    plain: bool = False
    no_inference_mode: bool = False


@dataclass(frozen=True)
class Candidate:
    """One workaround to be tried. `overrides` is None where a whole program cannot be run with it."""

    name: str
    how: str
    disables: str
    reach: int
    change: Change
    overrides: Overrides | None = None


@dataclass(frozen=True)
class About:
    """What candidates depend on. `calls` are the graph's in order; `settings` those that are not torch's defaults."""

    kind: str
    backend: str
    calls: tuple[str, ...]
    targets: Mapping[str, str] = field(default_factory=dict)  # what each of them calls
    suspects: Suspects = field(default_factory=Suspects)
    lines: Lines = field(default_factory=dict)
    triage: Triage = field(default_factory=Triage)
    backward: bool = False
    symbols: bool = False
    low_precision: bool = False
    settings: Config = field(default_factory=dict)
    defaults: Config = field(default_factory=dict)
    several_calls: bool = False  # the smallest repro has more than one


def candidates_for(about: About) -> list[Candidate]:
    """What is worth trying, the least harmful first.

    >>> [c.name for c in candidates_for(About("compile_error", "inductor", ("relu",)))]
    ['backend aot_eager']
    """
    found = [
        *_settings(about),
        *_rewrites(about),
        *_operators(about),
        *_calls(about),
        *_modules(about),
        *_functions(about),
        *_breaks(about),
        *_modes(about),
        *_backends(about),
    ]
    return list({(each.name, each.how): each for each in found}.values())


def _settings(about: About) -> Iterator[Candidate]:
    triage = about.triage
    cures = [flag for line in triage.flags if (flag := _cure(line)) is not None]
    if cures:
        yield setting_candidate(cures)
    for line in triage.flags:
        if (flag := _back_to_default(line, about)) is not None:
            yield setting_candidate([flag])
    if triage.subsystem in PASSES and triage.part:
        # Names of passes are parted by commas, and torch reads them in any case.
        before = about.settings.get(INDUCTOR, {}).get("disabled_passes", "''").strip("'\"")
        names = ",".join(filter(None, [before, triage.part.replace(", ", ",")]))
        yield setting_candidate([Flag("disabled_passes", repr(names), f"the graph pass {triage.part}")], PART)
    if triage.subsystem == "patterns" and triage.part:
        patterns = triage.part.split(", ")
        # Triage may have run out of time before it knew which of several it is.
        for some in [[name] for name in patterns] + [patterns]:
            yield _without_patterns([name.rpartition(": ")[2] for name in some], ", ".join(some))
    if triage.subsystem == "inlining" or about.kind == "hang":
        for flag in CAUTIOUS:
            if flag.key in ("realize_reads_threshold", "realize_opcount_threshold"):
                yield setting_candidate([flag])
    if triage.subsystem in _WHOLE:
        yield setting_candidate([_WHOLE[triage.subsystem]])
    if triage.part == "random numbers":
        yield setting_candidate([RANDOM])
    if about.kind == "accuracy" and about.low_precision and about.backend == "inductor":
        yield setting_candidate([PRECISION_CASTS])


def _without_patterns(functions: list[str], named: str) -> Candidate:
    """Patterns are tables of entries that know the function they were made from; each is emptied of these."""
    names = tuple(f"{function}_" for function in functions)
    lines = f"""\
from torch._inductor.pattern_matcher import PatternMatcherPass

def without(self, gm, apply=PatternMatcherPass.apply):
    for entries in self.patterns.values():
        entries[:] = [e for e in entries if not f"{{name_of(e)}}_".startswith({names!r})]
    return apply(self, gm)

def name_of(entry):
    return getattr(entry, "pattern_name", None) or getattr(getattr(entry, "handler", None), "__name__", "")

PatternMatcherPass.apply = without"""
    return _snippet(f"pattern {named} off", lines, f"the graph pattern {named}, and nothing else")


def _snippet(name: str, lines: str, disables: str, reach: int = PART) -> Candidate:
    return Candidate(name, lines, disables, reach, Change(snippet=lines), Overrides(snippet=lines))


def setting_candidate(flags: list[Flag], reach: int = SETTING) -> Candidate:
    """A candidate that is one setting, or a few together."""
    config = config_of(flags)
    return Candidate(
        "setting " + ", ".join(flag.key for flag in flags),
        "\n".join(flag.line for flag in flags),
        " and ".join(flag.means for flag in flags),
        reach,
        Change(config=config),
        Overrides(config=config),
    )


def _cure(line: str) -> Flag | None:
    """The setting of a line such as `torch._inductor.config.max_fusion_size = 1`, with which triage saw it pass."""
    match = _FLAG.fullmatch(line.strip())
    if match is None:
        return None
    module, key, value = match.groups()
    means = next(
        (flag.means for flag in CAUTIOUS if (flag.key, flag.value) == (key, value)), f"{key} = {value}"
    )
    return Flag(key, value, means, module)


def _back_to_default(name: str, about: About) -> Flag | None:
    """The default of a setting of the user's own, without which it does not fail: `torch._inductor.config.freezing`."""
    for module, values in about.defaults.items():
        for key, default in values.items():
            if name in (f"{module}.{key}", f"options.{key}"):
                return Flag(key, default, f"{key} = {about.settings[module][key]}", module)
    return None


def _rewrites(about: About) -> Iterator[Candidate]:
    """Another way to write the same thing."""
    if any(op.endswith("_enter_inference_mode") for op in about.suspects.ops):
        yield Candidate(
            "torch.no_grad() instead of torch.inference_mode()",
            "with torch.no_grad():  # in compiled code, instead of torch.inference_mode()",
            "what inference mode saves over no_grad: version counters and the tracking of views",
            PART,
            Change(no_inference_mode=True),
        )


def _operators(about: About) -> Iterator[Candidate]:
    if about.triage.subsystem == "python_decompositions":
        for op in about.triage.ops:
            yield from _left_whole(op, about.backend == "inductor")
    if about.backend != "inductor" or about.triage.component not in (None, "inductor", "decompositions"):
        return
    ops = tuple(op for op in about.suspects.ops if _OPERATOR.fullmatch(op))
    if about.triage.subsystem == "decomposition":
        yield _without_decompositions(ops)
        return
    if 1 < len(ops) <= MOST_PLACES:
        for op in ops:
            yield _fallback((op,))
    if ops and len(ops) <= MOST_PLACES:
        yield _fallback(ops)


def _fallback(ops: tuple[str, ...]) -> Candidate:
    calls = "\n".join(f"make_fallback(torch.ops.{op}, warn=False, override_decomp=True)" for op in ops)
    return Candidate(
        f"{', '.join(ops)} kept eager",
        f"from torch._inductor.graph import make_fallback\n{calls}",
        f"fusion of {', '.join(ops)}: Inductor calls the eager kernel",
        OPERATOR,
        Change(off={"lowerings": {"names": list(ops)}}),
        Overrides(fallback=ops),
    )


def _without_decompositions(ops: tuple[str, ...]) -> Candidate:
    pops = "\n".join(f"decompositions.pop(torch.ops.{op}, None)" for op in ops)
    return Candidate(
        f"{', '.join(ops)} not decomposed",
        f"from torch._inductor.decomposition import decompositions\n{pops}",
        f"the decomposition of {', '.join(ops)}, and its fusion",
        OPERATOR,
        # What is not decomposed has no lowering either.
        Change(off={"decomposition": {"names": list(ops)}, "lowerings": {"names": list(ops)}}),
        Overrides(decompositions=ops),
    )


def _left_whole(op: str, inductor: bool) -> Iterator[Candidate]:
    """An operator without its decomposition in Python goes where eager would send it; Inductor then lowers it."""
    lines = f"""\
from torch._C import DispatchKey

for overload in torch.ops.{op}.overloads():
    op = getattr(torch.ops.{op}, overload)
    op.py_kernels.pop(DispatchKey.Autograd, None)
    op.py_kernels.pop(DispatchKey.CompositeImplicitAutograd, None)
    op._dispatch_cache.clear()"""
    yield _snippet(f"{op} not decomposed", lines, f"the decomposition of {op}", OPERATOR)
    if inductor:
        fallback = f"""
from torch._inductor.decomposition import decompositions
from torch._inductor.graph import make_fallback

decompositions.pop(torch.ops.{op}.default, None)
make_fallback(torch.ops.{op}.default, warn=False, override_decomp=True)"""
        yield _snippet(
            f"{op} not decomposed, and kept eager",
            lines + fallback,
            f"the decomposition of {op} and its fusion: Inductor calls the eager kernel",
            OPERATOR,
        )


def _calls(about: About) -> Iterator[Candidate]:
    """One call of a line under torch.compiler.disable, as the line then reads: for what fails before any operator does.

    A write into a view, mostly, that AOTAutograd does not see as eager does it.
    """
    if about.triage.component != "aot_autograd":
        return
    for name in about.suspects.nodes[-MOST_PLACES:]:
        line = about.lines.get(name)
        if line is None or is_library(line.file):
            continue
        called = about.targets.get(name, "").rpartition(".")[2]
        # The line may run many times, in each layer once.
        left_out = frozenset(
            other
            for other in about.calls
            if about.targets.get(other) == about.targets.get(name)
            and other in about.lines
            and about.lines[other].place == line.place
        )
        edited = with_eager_call(line.code, called)
        if edited is not None and _leaves_something(about, left_out):
            yield Candidate(
                f"{called} eager at {line.place}",
                f"{edited}  # {line.place}",
                f"compilation of that call, {BREAKS}",
                CALL,
                Change(without=left_out),
            )


def _modules(about: About) -> Iterator[Candidate]:
    """The modules of the suspects under torch.compiler.disable: first that of the node seen to fail, then all alike."""
    for nodes in dict.fromkeys((about.suspects.nodes, about.suspects.alike)):
        lines = [about.lines.get(name) for name in nodes]
        paths = list(dict.fromkeys(line.module for line in lines if line and line.module))
        inside = sum(bool(line and line.module) for line in lines)
        if not paths or inside < len(nodes):
            continue
        if len(paths) <= MOST_PLACES:
            left_out = nodes_of_modules(about.lines, paths)
            if _leaves_something(about, left_out):
                yield _module_candidate(paths, left_out)
        name = class_of(about.lines, nodes)
        if len(paths) > 1 and name is not None:
            of_class = [n for n, line in about.lines.items() if line.call == name]
            if _leaves_something(about, frozenset(of_class)):
                yield _class_candidate(name, frozenset(of_class))


def _module_candidate(paths: list[str], nodes: frozenset[str]) -> Candidate:
    spelled = [module_expression(path) for path in paths]
    lines = [f"{each}.forward = torch.compiler.disable({each}.forward)" for each in spelled]
    what = ", ".join(paths)
    return Candidate(
        f"module {what} eager",
        "\n".join(lines) + "  # model: what you compile",
        f"compilation of {_several(len(paths), 'module')} ({_several(len(nodes), 'call')} here), {BREAKS}",
        MODULE,
        Change(without=nodes),
        Overrides(modules=tuple(paths)),
    )


def _class_candidate(name: str, nodes: frozenset[str]) -> Candidate:
    return Candidate(
        f"every {name} eager",
        f"torch.{name}.forward = torch.compiler.disable(torch.{name}.forward)",
        f"compilation of every torch.{name} ({_several(len(nodes), 'call')} here), {BREAKS}",
        MODULE,
        Change(without=nodes),
        Overrides(classes=(name,)),
    )


def _functions(about: About) -> Iterator[Candidate]:
    for nodes in dict.fromkeys((about.suspects.nodes, about.suspects.alike)):
        lines = [about.lines.get(name) for name in nodes]
        found = [function_of(line) for line in lines if line and not is_library(line.file)]
        by_place = {(f.file, f.name, f.define): f for f in found if f is not None}
        if not by_place or len(found) < len(nodes) or None in found or len(by_place) > MOST_PLACES:
            continue
        left_out = nodes_of_functions(about.lines, by_place.values())
        if _leaves_something(about, left_out):
            yield _function_candidate(list(by_place.values()), left_out)


def _function_candidate(functions: list[Function], nodes: frozenset[str]) -> Candidate:
    names = ", ".join(f"{f.name}" for f in functions)
    return Candidate(
        f"function {names} eager",
        "\n".join(f"@torch.compiler.disable  # above `def {f.name}` in {f.place}" for f in functions),
        f"compilation of {names} and all it calls ({_several(len(nodes), 'call')} here), {BREAKS}",
        FUNCTION,
        Change(without=nodes),
        Overrides(functions=tuple((f.file, f.name, f.line) for f in functions)),
    )


def _leaves_something(about: About, left_out: frozenset[str]) -> bool:
    return bool(left_out) and any(name not in left_out for name in about.calls)


def _breaks(about: About) -> Iterator[Candidate]:
    """A graph break before the line: helps only where a node fails because of its neighbours."""
    triage = about.triage
    together = triage.subsystem in (*PASSES, "fusion", "inlining", "patterns")
    if not (together or about.several_calls or not triage.pinned):
        return
    lines = {n: about.lines[n] for n in about.calls if n in about.lines}
    # What fails together is parted before any of its lines but the first of all.
    for name in [name for name in about.suspects.nodes if name in lines][:MOST_PLACES]:
        line = lines[name]
        same = [n for n, other in lines.items() if (other.file, other.line) == (line.file, line.line)]
        # A backward runs the program's lines in reverse: what comes after the break in the program comes first in it.
        place = about.calls.index(same[-1]) + 1 if about.backward else about.calls.index(same[0])
        if is_library(line.file) or not 0 < place < len(about.calls):
            continue
        yield Candidate(
            f"graph break before {line.place}",
            f"torch._dynamo.graph_break()  # before {line.place}: {line.code.strip()}",
            "fusion across that line, and fullgraph=True",
            BREAK,
            Change(parted_before=about.calls[place]),
        )


def _modes(about: About) -> Iterator[Candidate]:
    if about.symbols:
        yield Candidate(
            "dynamic=False",
            "torch.compile(model, dynamic=False)  # and without mark_dynamic",
            "one compile for many sizes: every new size is compiled again",
            MODE,
            Change(static=True),
            Overrides(dynamic=False),
        )
    inductor = about.settings.get(INDUCTOR, {})
    if inductor:
        keys = ", ".join(inductor)
        yield Candidate(
            "default settings",
            f"torch.compile(model)  # without mode= and options=, and without setting {keys}",
            keys,
            MODE,
            Change(plain=True),
            Overrides(config={INDUCTOR: dict(about.defaults.get(INDUCTOR, {}))}),
        )


def _backends(about: About) -> Iterator[Candidate]:
    """The last resort: another compiler, or none."""
    names = ["aot_eager"] if about.backend == "inductor" else ["inductor", "aot_eager"]
    if about.triage.component == "aot_autograd":
        names = ["eager"]
    for name in names:
        gives_up = (
            "nothing but your backend" if name == "inductor" else "all code generation: kernels are eager's"
        )
        yield Candidate(
            f"backend {name}",
            f'torch.compile(model, backend="{name}")',
            gives_up,
            BACKEND,
            Change(backend=name),
            Overrides(backend=name),
        )


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
