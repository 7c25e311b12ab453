"""What could make the user's graph pass: which rows of the table of changes are worth trying, the least harmful first.

Nothing is tried here, and nothing is said: what a row changes, what a person pastes and what that gives up is in
`core/changes.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torchsleuth.core import change_table as table
from torchsleuth.core.cases.model import Triage
from torchsleuth.core.changes import INDUCTOR, Change, Config
from torchsleuth.search.cure.places import (
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

# More lines than this are no workaround that anyone would paste.
MOST_PLACES = 4
_SETTING = re.compile(r"(torch\._\w+\.config)\.([\w.]+) = (.+)")
# An overload of an operator; what Dynamo records are functions of torch's.
_OPERATOR = re.compile(r"(?!torch\.|operator\.)\w+\.\w+\.\w+")
# The setting that stands for a subsystem which torch lets one switch off as a whole only.
_WHOLE = {"patterns": table.NO_PATTERNS, "fusion": table.NO_FUSION, "cudagraphs": table.NO_CUDAGRAPHS}


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

    def leaves_something(self, left_out: frozenset[str]) -> bool:
        """Whether something is left out, and something is left to compile."""
        return bool(left_out) and any(name not in left_out for name in self.calls)


def candidates_for(about: About) -> list[Change]:
    """What is worth trying, the least harmful first.

    >>> [c.name for c in candidates_for(About("compile_error", "inductor", ("relu",)))]
    ['backend aot_eager']
    """
    found = [
        *_settings(about),
        *_operators(about),
        *_calls(about),
        *_modules(about),
        *_functions(about),
        *_breaks(about),
    ]
    if about.symbols:
        found.append(table.ONE_SIZE)
    if inductor := about.settings.get(INDUCTOR):
        found.append(table.default_settings(list(inductor), about.defaults.get(INDUCTOR, {})))
    # The last resort: another compiler, or none.
    backends = ["aot_eager"] if about.backend == "inductor" else ["inductor", "aot_eager"]
    found += map(table.other_backend, ["eager"] if about.triage.component == "aot_autograd" else backends)
    return list({(each.name, each.how): each for each in found}.values())


def _settings(about: About) -> Iterator[Change]:
    triage = about.triage
    cures = [found for line in triage.flags if (found := _of_line(line)) is not None]
    if cures:
        yield table.together(cures)
    for name in triage.flags:
        yield from _back_to_default(name, about)
    if triage.subsystem in table.GRAPH_PASSES and triage.part:
        # Names of passes are separated by commas, and torch reads them in any case.
        before = about.settings.get(INDUCTOR, {}).get("disabled_passes", "''").strip("'\"")
        names = ",".join(filter(None, [before, triage.part.replace(", ", ",")]))
        yield replace(
            table.setting("disabled_passes", repr(names), f"the graph pass {triage.part}"), reach=table.PART
        )
    if triage.subsystem == "patterns" and triage.part:
        patterns = triage.part.split(", ")
        # Triage may have run out of time before it knew which of several it is.
        for some in [[name] for name in patterns] + [patterns]:
            yield table.without_patterns([name.rpartition(": ")[2] for name in some], ", ".join(some))
    if triage.subsystem == "inlining" or about.kind == "hang":
        yield from table.LESS_INLINING
    if triage.subsystem in _WHOLE:
        yield _WHOLE[triage.subsystem]
    if triage.part == table.RANDOM.part:
        yield table.RANDOM
    if about.kind == "accuracy" and about.low_precision and about.backend == "inductor":
        yield table.PRECISION_CASTS
    if any(op.endswith("_enter_inference_mode") for op in about.suspects.ops):
        yield table.NO_INFERENCE_MODE


def _of_line(line: str) -> Change | None:
    """The setting of a line such as `torch._inductor.config.max_fusion_size = 1`, with which triage saw it pass."""
    match = _SETTING.fullmatch(line.strip())
    if match is None:
        return None
    module, key, value = match.groups()
    known = next((each for each in table.CAUTIOUS if each.how == line.strip()), None)
    return known or table.setting(key, value, f"{key} = {value}", module)


def _back_to_default(name: str, about: About) -> Iterator[Change]:
    """The default of a setting of the user's own, without which it does not fail: `torch._inductor.config.freezing`."""
    for module, values in about.defaults.items():
        for key, default in values.items():
            if name in (f"{module}.{key}", f"options.{key}"):
                yield table.setting(key, default, f"{key} = {about.settings[module][key]}", module)
                return


def _operators(about: About) -> Iterator[Change]:
    inductor, triage = about.backend == "inductor", about.triage
    if triage.subsystem == "python_decompositions":
        for op in triage.ops:
            yield table.not_decomposed_in_python(op)
            if inductor:
                yield table.not_decomposed_in_python(op, fallback=True)
    if not inductor or triage.component not in (None, "inductor", "decompositions"):
        return
    ops = tuple(op for op in about.suspects.ops if _OPERATOR.fullmatch(op))
    if triage.subsystem == "decomposition":
        yield table.not_decomposed(ops)
        return
    if 1 < len(ops) <= MOST_PLACES:
        yield from (table.kept_eager([op]) for op in ops)
    if ops and len(ops) <= MOST_PLACES:
        yield table.kept_eager(ops)


def _calls(about: About) -> Iterator[Change]:
    """One call of a line, for what fails before any operator does.

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
        if edited is not None and about.leaves_something(left_out):
            yield table.call_eager(called, line.place, edited, left_out)


def _modules(about: About) -> Iterator[Change]:
    """The modules of the suspects: first that of the node seen to fail, then all alike."""
    for nodes in dict.fromkeys((about.suspects.nodes, about.suspects.alike)):
        lines = [about.lines.get(name) for name in nodes]
        paths = list(dict.fromkeys(line.module for line in lines if line and line.module))
        inside = sum(bool(line and line.module) for line in lines)
        if not paths or inside < len(nodes):
            continue
        if len(paths) <= MOST_PLACES:
            left_out = nodes_of_modules(about.lines, paths)
            if about.leaves_something(left_out):
                yield table.modules_eager({path: module_expression(path) for path in paths}, left_out)
        name = class_of(about.lines, nodes)
        if len(paths) > 1 and name is not None:
            of_class = frozenset(n for n, line in about.lines.items() if line.call == name)
            if about.leaves_something(of_class):
                yield table.class_eager(name, of_class)


def _functions(about: About) -> Iterator[Change]:
    for nodes in dict.fromkeys((about.suspects.nodes, about.suspects.alike)):
        lines = [about.lines.get(name) for name in nodes]
        found = [function_of(line) for line in lines if line and not is_library(line.file)]
        by_place = {(f.file, f.name, f.define): f for f in found if f is not None}
        if not by_place or len(found) < len(nodes) or None in found or len(by_place) > MOST_PLACES:
            continue
        left_out = nodes_of_functions(about.lines, by_place.values())
        if about.leaves_something(left_out):
            places = {(f.file, f.name, f.line): f.place for f in by_place.values()}
            yield table.functions_eager(places, left_out)


def _breaks(about: About) -> Iterator[Change]:
    """A graph break before the line: helps only where a node fails because of its neighbours."""
    triage = about.triage
    neighbours = triage.subsystem in (*table.GRAPH_PASSES, "fusion", "inlining", "patterns")
    if not (neighbours or about.several_calls or not triage.pinned):
        return
    lines = {n: about.lines[n] for n in about.calls if n in about.lines}
    # What fails together is cut before any of its lines but the first of all.
    for name in [name for name in about.suspects.nodes if name in lines][:MOST_PLACES]:
        line = lines[name]
        same = [n for n, other in lines.items() if (other.file, other.line) == (line.file, line.line)]
        # A backward runs the program's lines in reverse: what comes after the break in the program comes first in it.
        place = about.calls.index(same[-1]) + 1 if about.backward else about.calls.index(same[0])
        if not is_library(line.file) and 0 < place < len(about.calls):
            yield table.break_before(line.place, line.code.strip(), about.calls[place])
