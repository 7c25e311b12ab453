"""The minimal graph as the script a person would have written: a small function under `torch.compile`.

Public names of torch where there are any, inputs as plain constructor calls, and the answer in the last line and the
exit status. Whether a form still fails is for the caller to try: forms come from the most readable to the most exact.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from torchsleuth._version import __version__
from torchsleuth.core.cases.record import Embedded
from torchsleuth.script_runtime.inputs import load_inputs
from torchsleuth.torch_core.graphs.attributes import INLINE_ELEMENTS
from torchsleuth.torch_core.graphs.spelling import Unprintable
from torchsleuth.torch_core.repro.loops import made_together, rolled
from torchsleuth.torch_core.repro.script import (
    clock_of_hang,
    expected_literal,
    marks_of,
    modules_of_clock,
    one_line,
    sanitizing_lines,
    template,
)
from torchsleuth.torch_core.repro.small_body import body_lines, node_lines
from torchsleuth.torch_core.repro.small_graph import (
    FUNCTION,
    GRAPH,
    NODES,
    OPERATORS,
    CannotCall,
    SmallGraph,
    calls_of,
    marked_sizes,
)
from torchsleuth.torch_core.repro.small_inputs import (
    TooLarge,
    input_expression,
    memory_of,
    packed_expression,
    view_expression,
)
from torchsleuth.torch_core.tensors import InputsDescription, ScalarSpec, TensorSpec

# Kinds of failure that no exception tells of.
_WITHOUT_TEXT = ("crash", "hang", "accuracy")
# Statements up to which a function is read at a glance; of longer ones what repeats becomes loops.
READABLE = 20
# What the lines of a script may need of the standard library.
_STANDARD = {"base64", "copy", "math", "operator", "os", "pathlib", "subprocess"}


@dataclass(frozen=True)
class SmallScript:
    """A script, the form it has (`function`, `operators`, `graph` or `nodes`), and the files it needs beside it.

    One of `random` inputs stands in where eager refuses the plain ones: a matrix of ones has no inverse; and of a wrong
    result where other numbers happen to be right: it holds those of the search, if they are few.
    """

    form: str
    text: str
    input_bytes: int
    files: Mapping[str, bytes] = field(default_factory=dict)
    random: bool = False


def small_scripts(small: SmallGraph, *, untried: bool = False) -> Iterator[SmallScript]:
    """Scripts for a minimal graph, the most readable first; those left out in which it cannot be written.

    The first is of the form "function", unless a whole compile of a graph for the inner compiler is known to pass;
    `untried` says that nobody asked.
    """
    seen = set()
    inner = [GRAPH] if small.settings.level == "aot" else []
    whole = [FUNCTION, OPERATORS] if untried or not inner else []
    for form in (*whole, *inner, NODES):
        for random in (False, True):
            script = small_script(small, form, random=random)
            if script is not None and script.text not in seen:
                seen.add(script.text)
                yield script


def small_script(small: SmallGraph, form: str = NODES, *, random: bool = True) -> SmallScript | None:
    """The script in one form, by default the one that does what trials do; None where it cannot be written so."""
    try:
        return _script(small, form, random)
    except (TooLarge, Unprintable, CannotCall):
        return None


def _script(small: SmallGraph, form: str, random: bool) -> SmallScript:
    small = _without_unused_source(small)
    names = small.names
    if form == NODES:
        body = node_lines(small.graph, names, references=small.embedded != Embedded())
    else:
        body = body_lines(small.graph, names, public=form == FUNCTION, boxed=form == GRAPH)
    made, kept = _made_inputs(_as_drawn(small) if random else small, random or small.signature.phase == "run")
    calls = calls_of(small, form)
    setup = [*sanitizing_lines(small.settings), *_settings(small), *_needs(small)]
    setup += ["torch.manual_seed(0)"] * any("randn" in text for text in made)
    setup += made_together(made)
    setup += [f"torch._dynamo.mark_dynamic({name}, {d})" for name, d in marked_sizes(small, form)]
    marks = None if small.signature.kind in _WITHOUT_TEXT else marks_of(small.signature, small.text)
    clock = clock_of_hang(small.signature, small.hung_after)
    statements = body.lines
    if form != NODES and len(statements) > READABLE:
        statements = rolled(statements, {*names.values(), *calls.define, "f", "torch"})
    lines = [*statements, *setup, *calls.define, *calls.lines]
    standard = {"sys", *modules_of_clock(clock), *([*marks.modules, "traceback"] if marks else [])}
    standard |= {"time"} if small.grows else set()
    imports = [*_standard_imports(standard, lines), "import torch"]
    imports += [f"import {module}" for module in small.settings.config]
    imports += [*calls.imports, *small.embedded.imports, *body.imports]
    text = template("small.py.jinja").render(
        summary=one_line(small.signature.summary),
        about=_about(small),
        imports=list(dict.fromkeys(imports)),
        expected=expected_literal(small.signature),
        embedded=re.sub(r"(?m)^import (torch|sys)\n", "", small.embedded.source).strip(),
        parameters=", ".join(names.values()),
        body=statements,
        built=form == NODES,
        setup=setup,
        clock=clock,
        define=calls.define,
        calls=calls.lines,
        marks=marks.expression if marks else "",
        wrong=calls.wrong,
        reproduced=repr(f"REPRODUCED: {small.signature.summary}"),
    )
    return SmallScript(form, text, kept.size, kept.files, random)


def _standard_imports(modules: set[str], lines: Sequence[str]) -> list[str]:
    """The imports of the standard library: these modules, and those that the lines of the script name."""
    tree = ast.parse("\n".join(["def script():", *(f"    {line}" for line in lines)]))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    numbers = sorted(used & {"inf", "nan"})
    imports = [f"import {', '.join(sorted(modules | used & _STANDARD))}"]
    return [*imports, *([f"from math import {', '.join(numbers)}"] if numbers else [])]


@dataclass
class _Kept:
    """What the inputs of one script keep of their values: bytes in all, files beside it."""

    size: int = 0
    files: dict[str, bytes] = field(default_factory=dict)


def _made_inputs(small: SmallGraph, random: bool) -> tuple[list[str], _Kept]:
    """The lines that make the inputs, those that share memory over a tensor of its own; and what they keep."""
    kept, names = _Kept(), list(small.names.values())
    lines: list[str] = []
    elements: dict[int, str] = {}
    for number, sharing in small.shared_memory.items():
        form, value = memory_of([g.spec for g in sharing], [g.value for g in sharing])  # type: ignore[misc]
        elements[number] = form.dtype
        lines.append(f"memory{number} = {_made(random, form, value, f'memory{number}', kept)}")
    for name, given in zip(names, small.inputs):
        spec = given.spec
        if isinstance(spec, TensorSpec) and spec.same_as is not None:
            text = names[spec.same_as]
        elif isinstance(spec, TensorSpec) and spec.alias_of in elements:
            text = view_expression(spec, f"memory{spec.alias_of}", elements[spec.alias_of])
        else:
            text = _made(random, spec, given.value, name, kept)
        lines.append(f"{name} = {text}")
    return lines, kept


def _as_drawn(small: SmallGraph) -> SmallGraph:
    """A wrong result with the numbers that trials draw (`script_runtime/inputs.py`), where they fit into a line.

    Which of some numbers is the greatest depends on all of them: a wrong argmax is right for half of them.
    """
    specs = {given.name: given.spec for given in small.inputs if isinstance(given.spec, TensorSpec)}
    kept = {given.name for given in small.inputs if given.value is not None}
    free = {name: spec for name, spec in specs.items() if name not in kept and spec.layout == "strided"}
    few = all(math.prod(spec.shape) <= INLINE_ELEMENTS and spec.device == "cpu" for spec in free.values())
    if small.signature.kind != "accuracy" or not (free and few):
        return small
    if small.shared_memory and len(free) < len(specs):
        return small
    # Whoever writes scripts sees no device.
    given = [
        replace(i.spec, device="cpu") if isinstance(i.spec, TensorSpec) else i.spec for i in small.inputs
    ]
    described = InputsDescription(tuple(given)).to_json()
    drawn = {given.name: value for given, value in zip(small.inputs, load_inputs(dict(described)))}
    values = {name: drawn[name].detach() for name in free}
    inputs = tuple(replace(given, value=values.get(given.name, given.value)) for given in small.inputs)
    return replace(small, inputs=inputs)


def _made(
    random: bool, spec: TensorSpec | ScalarSpec, value: torch.Tensor | None, name: str, kept: _Kept
) -> str:
    try:
        text, count = input_expression(spec, value, random)
    except TooLarge:
        if value is None:
            raise
        assert isinstance(spec, TensorSpec)
        text, count = packed_expression(value, f"repro.{name}.bin", kept.files, spec.device)
    kept.size += count
    return text


def _about(small: SmallGraph) -> str:
    case = f", case {small.case}" if small.case else ""
    clock = f"not done after {small.hung_after:.0f} s; " if small.hung_after else ""
    clock = "seconds explode with the number of calls; " if small.grows else clock
    return f"{clock}torch {torch.__version__.partition('+')[0]}, torchsleuth {__version__}{case}"


def _settings(small: SmallGraph) -> list[str]:
    lines = []
    for module, values in small.settings.config.items():
        lines += [f"{module}.{key} = {value}" for key, value in values.items()]
    if small.signature.kind == "accuracy" and small.draws_random_numbers:
        lines.append("torch._inductor.config.fallback_random = True")
    return lines + small.state.lines()


def _needs(small: SmallGraph) -> list[str]:
    if not any("cuda" in getattr(i.spec, "device", "") for i in small.inputs):
        return []
    return [
        "if not torch.cuda.is_available():",
        '    sys.exit(print("CANNOT TELL: the failure was seen on a CUDA device and there is none here") or 3)',
    ]


def _without_unused_source(small: SmallGraph) -> SmallGraph:
    """What was taken from the program's files stays where it is the backend, an option, or called in the graph."""
    nodes = [n for n in small.graph.graph.nodes if n.op.startswith("call_")]
    used = small.settings.options or small.embedded.defines_backend or not all(map(_of_torch, nodes))
    return small if used else replace(small, embedded=Embedded())


def _of_torch(node: torch.fx.Node) -> bool:
    namespace = getattr(node.target, "namespace", None)  # of an operator
    home = str(getattr(node.target, "__module__", None) or "torch").partition(".")[0]
    if namespace is not None:
        return namespace in ("aten", "prims", "prim", "inductor")
    return node.op == "call_method" or home in ("torch", "_operator", "math", "builtins")
