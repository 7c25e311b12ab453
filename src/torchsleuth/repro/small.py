"""The minimal graph as the script a person would have written: a small function under `torch.compile`.

Public names of torch where there are any, inputs as plain constructor calls, and the answer in the last line and the
exit status. Whether a form still fails is for the caller to try: forms come from the most readable to the most exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from torchsleuth._version import __version__
from torchsleuth.cases.record import AmbientState, CompileSettings, Embedded
from torchsleuth.graphs.printer import Unprintable, print_graph
from torchsleuth.graphs.writes import written_inputs
from torchsleuth.repro.script import one_line, template
from torchsleuth.repro.small_body import body_lines
from torchsleuth.repro.small_inputs import TooLarge, input_expression, packed_expression
from torchsleuth.repro.small_marks import marks_of
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.tensors.specs import ScalarSpec, TensorSpec

# Kinds of failure that no exception tells of.
_WITHOUT_TEXT = ("crash", "hang", "accuracy")


@dataclass(frozen=True)
class SmallInput:
    """One input: its name, its form, and its value where that matters."""

    name: str
    spec: TensorSpec | ScalarSpec
    value: torch.Tensor | None = None


@dataclass(frozen=True)
class SmallGraph:
    """A minimal graph with all that its script needs to know."""

    graph: torch.fx.GraphModule
    inputs: tuple[SmallInput, ...]
    settings: CompileSettings
    signature: Signature
    embedded: Embedded = field(default_factory=Embedded)
    dynamic: bool = False
    # Of a wrong result: how far rounding alone may move it.
    tolerance: float | None = None
    # Of an error: the traceback of this very graph, which the script's test for it must fit.
    text: str = ""
    case: str | None = None


@dataclass(frozen=True)
class SmallScript:
    """A script, the form it has (`function`, `operators` or `graph`), and the files it needs beside it."""

    form: str
    text: str
    input_bytes: int
    files: Mapping[str, bytes] = field(default_factory=dict)


def small_scripts(small: SmallGraph) -> Iterator[SmallScript]:
    """Scripts for a minimal graph, the most readable first; none where its inputs or nested graphs are too large.

    The first is of the form "function".
    """
    if any(isinstance(part, torch.fx.GraphModule) for part in small.graph.children()):
        return
    seen = set()
    # Where a whole compile is known not to fail, only the graph itself is worth trying.
    for form in ("function", "operators") if small.settings.level == "dynamo" else ("graph",):
        try:
            script = _script(small, form)
        except (TooLarge, Unprintable):
            return
        if script.text not in seen:
            seen.add(script.text)
            yield script


def _script(small: SmallGraph, form: str) -> SmallScript:
    small = _without_unused_source(small)
    names = _input_names(small)
    printed = print_graph(small.graph)
    if printed.constants:
        raise TooLarge("the graph holds constants that do not fit into its text")
    body = body_lines(small.graph, names, public=form == "function", boxed=form == "graph")
    made, kept = _made_inputs(small, list(names.values()))
    setup = [*_settings(small.settings), *_needs(small)]
    setup += ["torch.manual_seed(0)"] * any("randn" in text for text in made)
    setup += [f"{name} = {text}" for name, text in zip(names.values(), made)]
    setup += _marked_sizes(small, names) if form != "graph" else []
    accuracy = small.signature.kind == "accuracy"
    calls, wrong = _calls(small, form, list(names.values()), accuracy)
    marks = None if small.signature.kind in _WITHOUT_TEXT else marks_of(small.signature, small.text)
    standard = sorted({"sys", *kept.modules, *([*marks.modules, "traceback"] if marks else [])})
    imports = [f"import {', '.join(standard)}", "import torch"]
    imports += _form_imports(small, form) + [i for i in printed.imports if i in body.imports]
    imports += list(small.embedded.imports)
    text = template("small.py.jinja").render(
        summary=one_line(small.signature.summary),
        about=_about(small),
        imports=list(dict.fromkeys([*imports, *body.imports])),
        expected=_expected(small.signature),
        embedded=re.sub(r"(?m)^import (torch|sys)\n", "", small.embedded.source).strip(),
        parameters=", ".join(names.values()),
        body=body.lines,
        setup=setup,
        calls=calls,
        tell_running=_telling(small, form),
        marks=marks.expression if marks else "",
        wrong=wrong,
        reproduced=repr(f"REPRODUCED: {small.signature.summary}"),
    )
    return SmallScript(form, text, kept.size, kept.files)


@dataclass
class _Kept:
    """What the inputs of one script keep of their values: bytes in all, files beside it, modules to read them with."""

    size: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)


def _made_inputs(small: SmallGraph, names: Sequence[str]) -> tuple[list[str], _Kept]:
    kept = _Kept()
    made = []
    for name, given in zip(names, small.inputs):
        try:
            text, count = input_expression(given.spec, given.value, small.signature.phase == "run")
        except TooLarge:
            if given.value is None:
                raise
            text, count = packed_expression(given.value, f"repro.{name}.bin", kept.files)
            kept.modules |= {module for module in ("base64", "pathlib") if module in text}
        kept.size += count
        made.append(text)
    return made, kept


def _input_names(small: SmallGraph) -> dict[str, str]:
    """Plain names for the inputs: x, y, z, and numbers beyond."""
    letters = ["x", "y", "z"] if len(small.inputs) <= 3 else [f"x{n}" for n in range(len(small.inputs))]
    return {given.name: letter for given, letter in zip(small.inputs, letters)}


def _about(small: SmallGraph) -> str:
    case = f", case {small.case}" if small.case else ""
    return f"torch {torch.__version__.partition('+')[0]}, torchsleuth {__version__}{case}"


def _settings(settings: CompileSettings) -> list[str]:
    lines = []
    for module, values in settings.config.items():
        lines += [f"{module}.{key} = {value}" for key, value in values.items()]
    state, default = settings.state or AmbientState(), AmbientState()
    if state.default_dtype != default.default_dtype:
        lines.append(f"torch.set_default_dtype({state.default_dtype})")
    if state.matmul_precision != default.matmul_precision:
        lines.append(f"torch.set_float32_matmul_precision({state.matmul_precision!r})")
    if state.deterministic:
        lines.append("torch.use_deterministic_algorithms(True)")
    return lines


def _marked_sizes(small: SmallGraph, names: Mapping[str, str]) -> list[str]:
    """The sizes that change, one by one, where others must not; none where all of them may, which is said shorter."""
    marks = []
    fixed = 0
    for given in small.inputs:
        if isinstance(given.spec, ScalarSpec):
            if given.spec.expr is not None:
                return []  # a number that changes cannot be marked
            continue
        texts = given.spec.shape_expr or tuple(map(str, given.spec.shape))
        fixed += sum(text.isdigit() and int(text) > 1 for text in texts)
        name = names[given.name]
        marks += [
            f"torch._dynamo.mark_dynamic({name}, {d})" for d, text in enumerate(texts) if not text.isdigit()
        ]
    return marks if fixed else []


def _needs(small: SmallGraph) -> list[str]:
    if not any("cuda" in getattr(i.spec, "device", "") for i in small.inputs):
        return []
    return [
        "if not torch.cuda.is_available():",
        '    print("CANNOT TELL: the failure was seen on a CUDA device and there is none here")',
        "    sys.exit(3)",
    ]


def _form_imports(small: SmallGraph, form: str) -> list[str]:
    lines = [f"import {module}" for module in small.settings.config]
    if form == "graph":
        lines.append("from torch._inductor.compile_fx import compile_fx_inner")
        lines.append("from torch.fx.experimental.proxy_tensor import make_fx")
    elif _telling(small, form):
        inductor = small.settings.backend == "inductor"
        lines.append(
            "from torch._inductor.compile_fx import compile_fx"
            if inductor
            else "from torch._dynamo import lookup_backend"
        )
    return lines


def _telling(small: SmallGraph, form: str) -> str:
    """How the real compiler is called by a backend that says when compiling is over.

    Only a death or a hang while running needs it: an exception or a wrong result says by itself where it came from.
    """
    if small.signature.kind not in ("crash", "hang") or small.signature.phase != "run" or form == "graph":
        return ""
    name = small.settings.backend
    return "compile_fx(graph, inputs)" if name == "inductor" else f"lookup_backend({name!r})(graph, inputs)"


def _calls(small: SmallGraph, form: str, names: Sequence[str], accuracy: bool) -> tuple[list[str], str]:
    places = dict(zip((given.name for given in small.inputs), names))
    written = [places[name] for name in written_inputs(small.graph) if accuracy and name in places]
    given = ", ".join(names)
    again = ", ".join(f"{name}_too" if name in written else name for name in names)
    if form == "graph":
        mode = "symbolic" if small.dynamic else "fake"
        lines = [f'graph = make_fx(f, tracing_mode="{mode}")({given})']
        lines += [
            f"compiled = compile_fx_inner(graph, [{given}]{_inner_options(small.settings)})",
            'print("torchsleuth: running", file=sys.stderr)',
        ]
        call = f"compiled([{again}])"
    else:
        lines = []
        call = f"torch.compile(f{_options(small, form)})({again})"
    outputs = small.graph.graph.output_node().args[0]
    single = isinstance(outputs, (list, tuple)) and len(outputs) == 1
    if accuracy:
        near = "1e-3, 1e-3" if small.tolerance is None else f"rtol=0, atol={small.tolerance:.1g}"
        compared, wrong = _compared(f"f({given})", call, written, single and form != "graph")
        return [*lines, *compared], wrong.replace("NEAR", near)
    if small.signature.phase == "run" and any(getattr(i.spec, "requires_grad", False) for i in small.inputs):
        lines.append(f"{call}{'' if single else '[0]'}.sum().backward()")
    else:
        lines.append(call)
    return lines, ""


def _compared(eager: str, call: str, written: Sequence[str], single: bool) -> tuple[list[str], str]:
    """The lines that run both, and the test that they differ; inputs that a run changes are results of it, too."""
    if single and not written:
        return [f"wanted, got = {eager}, {call}"], "not torch.allclose(wanted, got, NEAR, equal_nan=True)"
    lines = [f"{name}_too = {name}.clone()" for name in written]
    if written:
        star = "" if single else "*"
        eager = f"[{star}{eager}, {', '.join(written)}]"
        call = f"[{star}{call}, {', '.join(f'{name}_too' for name in written)}]"
    lines.append(f"wanted, got = {eager}, {call}")
    return lines, "not all(torch.allclose(a, b, NEAR, equal_nan=True) for a, b in zip(wanted, got))"


def _inner_options(settings: CompileSettings) -> str:
    """What AOTAutograd tells the inner compiler of a graph: some failures are those of a backward graph alone."""
    kinds = ("is_backward", "is_inference")
    return "".join(f", {key}=True" for key in kinds if settings.compile_kwargs.get(key))


def _options(small: SmallGraph, form: str) -> str:
    parts = []
    settings = small.settings
    if _telling(small, form) or small.embedded.defines_backend:
        parts.append("backend=backend")
    elif settings.backend != "inductor":
        parts.append(f"backend={settings.backend!r}")
    if small.dynamic and not _marked_sizes(small, {given.name: given.name for given in small.inputs}):
        parts.append("dynamic=True")
    if settings.options:
        inner = ", ".join(f"{key!r}: {value}" for key, value in settings.options.items())
        parts.append(f"options={{{inner}}}")
    return "".join(f", {part}" for part in parts)


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


def _expected(signature: Signature) -> str:
    doc = {"kind": signature.kind, "phase": signature.phase}
    more = {
        "exceptions": list(signature.exceptions[-1:]),
        "message": signature.message,
        "frames": list(signature.frames[:1]),
        "signal": signature.signal,
    }
    return repr({**doc, **{key: value for key, value in more.items() if value}})
