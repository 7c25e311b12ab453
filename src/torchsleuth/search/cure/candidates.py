"""What could make the user's graph pass: which rows of the table of changes are worth trying, the least harmful first.

Where the fault lies comes first, as something a person can switch off: a function, a module, a class of modules. The
record of a graph says for each node which line of the program it comes from and in which module that ran. The nodes at
fault are those that triage named, else those that call what the smallest repro calls, else those the error names.

Nothing is tried here, and nothing is said: what a row changes, what a person pastes and what that gives up is in
`core/changes.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from torchsleuth.core import change_table as table
from torchsleuth.core.cases.model import Case, Triage
from torchsleuth.core.changes import INDUCTOR, Change, Config
from torchsleuth.search.minify.case_state import SearchStart, seeds
from torchsleuth.torch_core.graphs.source_line import SourceLine

# What Dynamo calls the rest of a function after a graph break.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
# A smallest repro of more calls than this says little about any one of them.
FEW_OPS = 3

Lines = Mapping[str, SourceLine]


@dataclass(frozen=True)
class Function:
    """A function of the program: `define` is the line of its `def`, None where the file cannot be read here."""

    file: str
    name: str
    line: int
    define: int | None

    @property
    def place(self) -> str:
        """`model.py:12`, or `model.py` where the line is not known."""
        return Path(self.file).name + (f":{self.define}" if self.define is not None else "")


@dataclass(frozen=True)
class Suspects:
    """The operators at fault, the nodes that were seen to fail, and all nodes that call the same operators."""

    ops: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()


def suspects_of(case: Case, start: SearchStart) -> Suspects:
    """Who may be at fault, best knowledge first; nobody where nothing says so.

    Those that triage named, for one: `suspects_of(folder.case, start).ops`.
    """
    calls = {n.name: str(n.target) for n in start.state.graph.graph.nodes if n.op.startswith("call_")}
    lines = start.record.lines
    triage, minified = case.triage, case.minified
    ops = list(triage.ops) if triage else []
    nodes = [name for name in (triage.nodes if triage else ()) if name in calls]
    if not ops and not nodes and minified and 0 < len(minified.ops) <= FEW_OPS:
        ops = list(minified.ops)
    if not ops and not nodes:
        nodes = seeds(start.state.graph, start.traceback, start.expected.message, lines)[:1]
    ops = ops or list(dict.fromkeys(calls[name] for name in nodes))
    alike = [name for name, target in calls.items() if target in ops]
    if not nodes and not alike and triage and triage.user_line:
        nodes = [name for name in calls if name in lines and lines[name].place == triage.user_line]
    nodes = nodes or alike[:1]
    return Suspects(tuple(ops), tuple(nodes), tuple(dict.fromkeys([*nodes, *alike])))


def function_of(line: SourceLine) -> Function | None:
    """The function that a line of the record lies in; None for code outside of any function."""
    match = _RESUMED.fullmatch(line.function)
    name = match[1] if match else line.function
    return Function(line.file, name, line.line, _definition(line, name)) if name.isidentifier() else None


def _definition(line: SourceLine, name: str) -> int | None:
    """The line of the `def` around a line, where the file is here and still holds that line."""
    try:
        text = Path(line.file).read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return None
    wanted = line.line
    source = text.splitlines()
    if wanted > len(source) or line.code.strip() not in source[wanted - 1]:
        return None
    around = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == name
        and node.lineno <= wanted <= (node.end_lineno or 0)
    ]
    return max(around, default=None)


def nodes_of_functions(lines: Lines, functions: Iterable[Function]) -> frozenset[str]:
    """The nodes that come from these functions."""
    wanted = set(functions)
    known: dict[tuple[str, str, int], Function | None] = {}

    def function(line: SourceLine) -> tuple[str, str, int | None] | None:
        key = (line.file, line.function, line.line)
        if key not in known:
            known[key] = function_of(line)
        found = known[key]
        return None if found is None else (found.file, found.name, found.define)

    keys = {(f.file, f.name, f.define) for f in wanted}
    return frozenset(name for name, line in lines.items() if function(line) in keys)


def nodes_of_modules(lines: Lines, paths: Iterable[str]) -> frozenset[str]:
    """The nodes that ran in the modules at these paths or below them."""
    tops = tuple(paths)

    def inside(path: str) -> bool:
        return any(path == top or path.startswith(f"{top}.") for top in tops)

    return frozenset(name for name, line in lines.items() if inside(line.module))


def module_expression(path: str) -> str:
    """The module at a path as Python: `model.encoder.layers[3].mlp` for `encoder.layers.3.mlp`.

    >>> module_expression("layers.3.mlp"), module_expression("2")
    ('model.layers[3].mlp', 'model[2]')
    """
    return "model" + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in path.split("."))


def is_library(file: str) -> bool:
    """Whether a file is an installed package's, which nobody should edit."""
    return re.search(r"[/\\](site|dist)-packages[/\\]", file) is not None


def with_eager_call(code: str, called: str) -> str | None:
    """A line of source with the one call of that name kept from the compiler; None where it makes no such call.

    >>> with_eager_call("    markers.mul_(2.0)", "mul_")
    'torch.compiler.disable(markers.mul_)(2.0)'
    """
    text, before = code.strip(), "def f(): "  # a line with `return` is one of a function only
    try:
        tree = ast.parse(before + text)
    except SyntaxError:
        return None
    found = [
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == called
    ]
    if len(found) != 1 or not text.isascii():
        return None
    begin, end = found[0].col_offset - len(before), (found[0].end_col_offset or 0) - len(before)
    return f"{text[:begin]}torch.compiler.disable({text[begin:end]}){text[end:]}"


def class_of(lines: Lines, nodes: Iterable[str]) -> str | None:
    """The one class of torch.nn whose modules hold all these nodes, e.g. `nn.ReLU`; None where there is none."""
    calls = {lines[name].call if name in lines else "" for name in nodes}
    if len(calls) != 1:
        return None
    name = calls.pop()
    found = getattr(torch.nn, name.removeprefix("nn."), None) if name.startswith("nn.") else None
    return name if isinstance(found, type) and issubclass(found, torch.nn.Module) else None


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
