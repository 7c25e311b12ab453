"""A minimal graph with all that its script needs to know, and the lines of a script that compile it and run it.

A search ends with a `SmallGraph`, and scripts are written from it. Under `TORCH_COMPILE_DISABLE=1` every form of them
runs without the compiler: `torch.compile` sees to that itself, and a graph that is given to a part of the compiler has
a function around it that does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torchsleuth.core.cases.record import AmbientState, CompileSettings, Embedded
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.torch_core.compare.reference.opkinds import draws
from torchsleuth.torch_core.tensors import ScalarSpec, TensorSpec
from torchsleuth.torch_internals.schemas import written_inputs


@dataclass(frozen=True)
class SmallInput:
    """One input: its name, its form, and its value where that matters."""

    name: str
    spec: TensorSpec | ScalarSpec
    value: torch.Tensor | None = None


def plain_names(inputs: Sequence[str]) -> dict[str, str]:
    """What a small script calls the inputs of a graph.

    >>> plain_names(["l_x_", "arg0_1"])
    {'l_x_': 'x', 'arg0_1': 'y'}
    """
    return dict(zip(inputs, "xyz" if len(inputs) <= 3 else [f"x{n}" for n in range(len(inputs))]))


@dataclass(frozen=True)
class SmallGraph:
    """A minimal graph, its inputs and settings, and the failure it shows."""

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
    # Of a hang: the seconds after which it is one, and whether what a compile takes explodes with the number of calls.
    hung_after: float | None = None
    grows: bool = False

    @property
    def names(self) -> dict[str, str]:
        return plain_names([given.name for given in self.inputs])

    @property
    def shared_memory(self) -> dict[int, list[SmallInput]]:
        """The inputs that lie on one memory, by its number; of identical ones the first stands for all."""
        found: dict[int, list[SmallInput]] = {}
        for given in self.inputs:
            spec = given.spec
            if isinstance(spec, TensorSpec) and spec.alias_of is not None and spec.same_as is None:
                found.setdefault(spec.alias_of, []).append(given)
        return {number: sharing for number, sharing in found.items() if len(sharing) > 1}

    @property
    def sharing(self) -> set[str]:
        """The inputs that share their memory with another, or are another."""
        specs = {given.name: given.spec for given in self.inputs if isinstance(given.spec, TensorSpec)}
        originals = {self.inputs[s.same_as].name for s in specs.values() if s.same_as is not None}
        return originals | {n for n, s in specs.items() if s.alias_of is not None or s.same_as is not None}

    @property
    def without_memory(self) -> set[str]:
        """The names of inputs that no memory lies under, so that only a clone is a copy."""
        odd = ("mkldnn", "zero")
        return {self.names[g.name] for g in self.inputs if getattr(g.spec, "layout", None) in odd}

    @property
    def state(self) -> AmbientState:
        return self.settings.state or AmbientState()

    @property
    def differentiable(self) -> bool:
        return any(getattr(given.spec, "requires_grad", False) for given in self.inputs)

    @property
    def returns_one(self) -> bool:
        outputs = self.graph.graph.output_node().args[0]
        return isinstance(outputs, (list, tuple)) and len(outputs) == 1

    @property
    def tensors_only(self) -> bool:
        """Whether nothing but tensors goes in and comes out."""
        outputs = self.graph.graph.output_node().args[0]
        listed = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        into = all(isinstance(given.spec, TensorSpec) for given in self.inputs)
        return into and all(isinstance(out, torch.fx.Node) for out in listed)

    @property
    def trains(self) -> bool:
        """Whether a backward is part of what is run: an input that need not have a gradient has none any more."""
        asked_for = self.settings.level == "dynamo" and not self.settings.forward_only
        return self.differentiable and asked_for and self.state.grad

    @property
    def draws_random_numbers(self) -> bool:
        return any(draws(node) for node in self.graph.graph.nodes)

    @property
    def dynamic_sizes(self) -> list[tuple[str, int]]:
        """The sizes that change, as (input, dimension), where others must not; none where all of them may."""
        marks = []
        fixed = 0
        for given in self.inputs:
            if isinstance(given.spec, TensorSpec):
                texts = given.spec.shape_expr or tuple(map(str, given.spec.shape))
                fixed += sum(text.isdigit() and int(text) > 1 for text in texts)
                marks += [(self.names[given.name], d) for d, text in enumerate(texts) if not text.isdigit()]
        return marks if fixed else []

    @property
    def dynamic_numbers(self) -> dict[int, str]:
        """The numbers among the inputs that change, as expressions of symbols, by place."""
        specs = [given.spec for given in self.inputs]
        return {n: s.expr for n, s in enumerate(specs) if isinstance(s, ScalarSpec) and s.expr is not None}

    def size_of_symbol(self, symbol: str) -> tuple[int, int] | None:
        """An input and a dimension of it that a symbol is the size of."""
        for place, given in enumerate(self.inputs):
            texts = given.spec.shape_expr if isinstance(given.spec, TensorSpec) else None
            if texts and symbol in texts:
                return place, texts.index(symbol)
        return None


# A function of public names; of operators; traced for the inner compiler; built node by node.
FUNCTION, OPERATORS, GRAPH, NODES = "function", "operators", "graph", "nodes"
_RUNNING = 'print("torchsleuth: running", file=sys.stderr)'
# Only tensors of one dtype and one shape can be compared by value; another dtype or shape is wrong by itself.
_WRONG = (
    "{a}.dtype != {b}.dtype or {a}.shape != {b}.shape or not torch.allclose({a}, {b}, {near}, equal_nan=True)"
)
# Seconds of a compile explode where twice the calls take more than this many times as long: a healthy one takes at most
# twice as long. Of fewer calls in the first half all is what any compile takes.
GROWTH, LEAST_HALF = 4, 3
_FAKES = '[node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]'


class CannotCall(Exception):
    """A graph that cannot be compiled in this form."""


@dataclass(frozen=True)
class Calls:
    """The function that compiles, the lines that call it, the test that results are wrong, and the imports for all."""

    define: list[str]
    lines: list[str]
    wrong: str
    imports: list[str]


def calls_of(small: SmallGraph, form: str) -> Calls:
    """What compiles and runs `f` in a form; raises `CannotCall` where it cannot be done so."""
    define, imports = _definition(small, form)
    names = list(small.names.values())
    compiled = "compiled" if form in (GRAPH, NODES) else f"torch.compile(f{_options(small)})"
    if small.grows:
        return _growing(small, form)
    if small.signature.kind == "accuracy" and small.trains:
        define = [*define, *([""] if define else []), *_results(small, form)]
        lines = [f"wanted, got = results(f), results({compiled})"]
        wrong = _wrong(small, single=False)
    else:
        lines, wrong = _run(small, form, names, compiled)
    if small.settings.parted:
        lines = [
            *_compiled_before(small, form, compiled),
            *(line.replace(compiled, "compiled") for line in lines),
        ]
    contexts = _contexts(small)
    if contexts:
        lines = [f"with {', '.join(contexts)}:", *(f"    {line}" for line in lines)]
    return Calls(define, lines, wrong, imports)


def _growing(small: SmallGraph, form: str) -> Calls:
    """What compiling takes, by itself and for half of the calls: a claim about growth holds on any machine."""
    if form in (GRAPH, NODES):
        raise CannotCall("the clock is for what torch.compile does")
    call = f"torch.compile(graph{_options(small)})({', '.join(small.names.values())})"
    contexts = _contexts(small)
    run = [f"{call}.sum().backward()" if small.trains else call]
    run = [f"with {', '.join(contexts)}:", f"    {run[0]}"] if contexts else run
    define = [
        "def seconds(share):  # computed while that share of the calls of f is compiled, from the first",
        "    graph = torch.fx.symbolic_trace(f)",
        '    calls = [node for node in graph.graph.nodes if node.op.startswith("call_")]',
        "    graph.graph.output_node().args = (calls[int(share * len(calls)) - 1],)",
        "    graph.graph.eliminate_dead_code()",
        "    graph.recompile()",
        "    torch.compiler.reset()",
        "    began = time.process_time()",
        *(f"    {line}" for line in run),
        "    return time.process_time() - began",
    ]
    lines = [
        "seconds(1 / 4)  # loads what any compile needs",
        "half, whole = seconds(1 / 2), seconds(1)",
        'print(f"compiling half of its calls takes {half:.1f} s, all of them {whole:.1f} s")',
    ]
    return Calls(define, lines, f"whole > max(1, {GROWTH} * half)", [])


def _compiled_before(small: SmallGraph, form: str, compiled: str) -> list[str]:
    """The call that it was compiled for: with inputs that share no memory.

    Only `torch.compile` has the guards of which one is missing: without them any graph would fail.
    """
    if form in (GRAPH, NODES):
        raise CannotCall("only torch.compile looks at its inputs before it takes what it compiled for others")
    places = zip(small.names.values(), small.inputs)
    apart = [f"{n}.detach().clone()" if isinstance(g.spec, TensorSpec) else n for n, g in places]
    return [
        f"compiled = {compiled}",
        f"compiled({', '.join(apart)})  # compiled for inputs that share no memory",
    ]


def _run(small: SmallGraph, form: str, names: Sequence[str], compiled: str) -> tuple[list[str], str]:
    boxed = form in (GRAPH, NODES)
    if small.signature.kind == "accuracy":
        return _compared(small, names, compiled, small.returns_one and not boxed)
    call = f"{compiled}({', '.join(names)})"
    if not small.trains:
        return [call], ""
    if small.returns_one:
        return [f"{call}{'[0]' if boxed else ''}.sum().backward()"], ""
    return [f"sum(out.sum() for out in {call} if out.requires_grad).backward()"], ""


def _compared(small: SmallGraph, names: Sequence[str], compiled: str, single: bool) -> tuple[list[str], str]:
    """The lines that run both, and the test that they differ; inputs that a run changes are results of it, too."""
    places = small.names
    written = [places[name] for name in written_inputs(small.graph) if name in places]
    # Tensors on one memory are copied together, or they would share it no more.
    together = {places[name] for name in small.sharing} if written else set()
    copied = [name for name in names if name in {*written, *together}]
    second = {name: f"{name}_too" if name in copied else name for name in names}
    lines = []
    if copied:
        lines = [f"{', '.join(second[name] for name in copied)} = {_copies(small, copied)}"]
    eager, call = f"f({', '.join(names)})", f"{compiled}({', '.join(second.values())})"
    if written:
        star = "" if single else "*"
        eager = f"[{star}{eager}, {', '.join(written)}]"
        call = f"[{star}{call}, {', '.join(second[name] for name in written)}]"
    if small.draws_random_numbers:
        seed = "torch.manual_seed(0)"
        lines += [seed, f"wanted = {eager}", seed, f"got = {call}"]
    else:
        lines.append(f"wanted, got = {eager}, {call}")
    return lines, _wrong(small, single=single and not written)


def _copies(small: SmallGraph, names: Sequence[str]) -> str:
    """Inputs once more, with their strides and the memory they share: a clone would lose both."""
    if small.without_memory & set(names):
        return ", ".join(f"{name}.clone()" for name in names)
    return f"copy.deepcopy({names[0]})" if len(names) == 1 else f"copy.deepcopy(({', '.join(names)}))"


def _wrong(small: SmallGraph, *, single: bool) -> str:
    """The test that results differ; what is no tensor among several is not looked at."""
    if single:
        return _WRONG.format(a="wanted", b="got", near=_near(small))
    tensors = "" if small.tensors_only else " if torch.is_tensor(a)"
    return f"any({_WRONG.format(a='a', b='b', near=_near(small))} for a, b in zip(wanted, got){tensors})"


def _near(small: SmallGraph) -> str:
    return "1e-3, 1e-3" if small.tolerance is None else f"rtol=0, atol={small.tolerance:.1g}"


def _results(small: SmallGraph, form: str) -> list[str]:
    """A function that trains one step: its gradients are results, too."""
    single = small.returns_one and form not in (GRAPH, NODES)
    names = ", ".join(small.names.values())
    inputs = f"copy.deepcopy([{names}])"
    if small.without_memory:
        inputs = f"[t.detach().clone().requires_grad_(t.requires_grad) for t in ({names},)]"
    changed = " + inputs" if written_inputs(small.graph) else ""
    specs = [given.spec for given in small.inputs if isinstance(given.spec, TensorSpec)]
    begins, given = [f"    inputs = {inputs}"], "inputs"
    if any(spec.requires_grad and not spec.is_leaf for spec in specs):  # computed by the program before
        leaf = "t.detach().clone().requires_grad_(t.requires_grad) if torch.is_tensor(t) else t"
        computed, given = "t.clone() if torch.is_tensor(t) and t.requires_grad else t", "leaves"
        begins = [f"    leaves = [{leaf} for t in ({names},)]", f"    inputs = [{computed} for t in leaves]"]
    return [
        "def results(run):  # what it returns, and the gradients of what it was given",
        *begins,
        "    torch.manual_seed(0)",
        f"    outputs = {'[run(*inputs)]' if single else 'list(run(*inputs))'}",
        "    trained = [out for out in outputs if torch.is_tensor(out) and out.requires_grad]",
        "    torch.autograd.backward(trained, [torch.randn_like(out) for out in trained])",
        f"    asked = [t for t in {given} if torch.is_tensor(t) and t.requires_grad]",
        f"    return outputs{changed} + [torch.zeros_like(t) if t.grad is None else t.grad for t in asked]",
    ]


def _contexts(small: SmallGraph) -> list[str]:
    """The modes in which the graph failed, where they are not those a script starts in."""
    captured = small.settings.level == "dynamo"
    found = ["torch.inference_mode()"] if small.state.inference_mode else []
    if small.differentiable and not (captured and small.state.grad):
        found.append("torch.no_grad()")
    casts = small.state.autocast.items() if captured else ()
    return [*found, *(f"torch.autocast({kind!r}, dtype={dtype})" for kind, dtype in casts)]


def _definition(small: SmallGraph, form: str) -> tuple[list[str], list[str]]:
    """The function that hands the graph to the compiler, where `torch.compile` itself does not: lines and imports."""
    if form in (FUNCTION, OPERATORS):
        return _telling(small)
    inductor = small.settings.level == "aot"
    if inductor and small.embedded.defines_backend:
        raise CannotCall("the inner compiler is the user's own")
    examples, lines, imports = "list(inputs)", [], []
    if form == GRAPH:
        mode = "symbolic" if small.dynamic else "fake"
        imports.append("from torch.fx.experimental.proxy_tensor import make_fx")
        lines = [f'graph = make_fx(f, tracing_mode="{mode}")(*inputs)', f"fakes = {_FAKES}"]
        graph, examples = "graph", "fakes"
    else:
        graph = "f"
        if inductor or small.dynamic:
            lines, more = _fakes(small)
            imports += more
            examples = "fakes"
    if inductor:
        imports.append("from torch._inductor.compile_fx import compile_fx_inner")
        how = f"compile_fx_inner({graph}, {examples}{_inner_options(small, form)})"
        run = "run(list(inputs))"
    else:
        how, more = _backend_call(small, graph, examples)
        imports += more
        run = "run(*inputs)"
    about = "Inductor's inner compiler" if inductor else "the backend"
    define = [
        f"def compiled(*inputs):  # the graph by itself, given to {about}",
        '    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":',
        "        return f(*inputs)",
        *(f"    {line}" for line in [*lines, f"run = {how}", _RUNNING, f"return {run}"]),
    ]
    return define, imports


def _fakes(small: SmallGraph) -> tuple[list[str], list[str]]:
    """Fake inputs on the placeholders of `f`, as AOTAutograd leaves them."""
    imports = ["from torch._subclasses.fake_tensor import FakeTensorMode"]
    sizes = ""
    if small.dynamic:
        imports.append("from torch.fx.experimental.symbolic_shapes import ShapeEnv")
        sizes = (
            f"shape_env=ShapeEnv({'assume_static_by_default=True' if marked_sizes(small, NODES) else ''}), "
        )
    fake = "mode.from_tensor(t)"
    if any(isinstance(given.spec, ScalarSpec) for given in small.inputs):
        fake = f"{fake} if isinstance(t, torch.Tensor) else t"
    lines = [
        f"mode = FakeTensorMode({sizes}allow_non_fake_inputs=True)",
        f"fakes = [{fake} for t in inputs]",
        *_fake_numbers(small),
        'for node, fake in zip(f.graph.find_nodes(op="placeholder"), fakes):',
        '    node.meta["val"] = fake',
    ]
    visible = small.settings.visible_outputs
    if visible is not None and small.settings.level == "aot":
        lines.append(f'f.graph.output_node().meta["user_visible_output_idxs"] = {list(visible)}')
    return lines, imports


def marked_sizes(small: SmallGraph, form: str) -> list[tuple[str, int]]:
    """The sizes to mark as dynamic one by one; where a number changes, only a graph with sizes of its own can tell."""
    if not small.dynamic or form == GRAPH or (small.dynamic_numbers and form != NODES):
        return []
    return small.dynamic_sizes


def _fake_numbers(small: SmallGraph) -> list[str]:
    """Numbers that change are the sizes that they are equal to."""
    lines = []
    for place, symbol in small.dynamic_numbers.items():
        found = small.size_of_symbol(symbol)
        if found is None:
            raise CannotCall("a number among its inputs changes from call to call, and is no size of another")
        lines.append(f"fakes[{place}] = fakes[{found[0]}].shape[{found[1]}]")
    return lines


def _inner_options(small: SmallGraph, form: str) -> str:
    """What AOTAutograd tells the inner compiler of a graph: some failures are those of a backward graph alone."""
    given = small.settings.compile_kwargs
    if form == GRAPH:
        given = {key: given.get(key) for key in ("is_backward", "is_inference")}
    if given.get("cudagraphs"):
        raise CannotCall("it is compiled for CUDA graphs")
    return "".join(f", {key}={value!r}" for key, value in given.items() if value)


def _backend_call(small: SmallGraph, graph: str, examples: str) -> tuple[str, list[str]]:
    """The call of the backend on a graph that Dynamo captured, and its import."""
    name, options = small.settings.backend, small.settings.options
    if small.embedded.defines_backend or name != "inductor":
        if options:
            raise CannotCall("only torch.compile hands options to a backend of the user's")
        if small.embedded.defines_backend:
            return f"backend({graph}, {examples})", []
        return f"lookup_backend({name!r})({graph}, {examples})", ["from torch._dynamo import lookup_backend"]
    patches = f", config_patches={_dictionary(options)}" if options else ""
    compiled = f"compile_fx({graph}, {examples}{patches})"
    return compiled, ["from torch._inductor.compile_fx import compile_fx"]


def _telling(small: SmallGraph) -> tuple[list[str], list[str]]:
    """A backend that says when compiling is over.

    Only a death or a hang while running needs it: an exception or a wrong result says by itself where it came from.
    """
    if not _tells(small):
        return [], []
    compiled, imports = _backend_call(small, "graph", "inputs")
    lines = [
        "def telling(graph, inputs):  # the compiler itself, saying when it is done",
        f"    compiled = {compiled}",
        f"    {_RUNNING}",
        "    return compiled",
    ]
    return lines, imports


def _tells(small: SmallGraph) -> bool:
    return small.signature.kind in ("crash", "hang") and small.signature.phase == "run"


def _dictionary(options: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key!r}: {value}" for key, value in options.items()) + "}"


def _options(small: SmallGraph) -> str:
    parts = []
    settings = small.settings
    if _tells(small):
        parts.append("backend=telling")
    elif small.embedded.defines_backend:
        parts.append("backend=backend")
    elif settings.backend != "inductor":
        parts.append(f"backend={settings.backend!r}")
    if small.dynamic and not marked_sizes(small, FUNCTION):
        parts.append("dynamic=True")
    if settings.options and not _tells(small):
        parts.append(f"options={_dictionary(settings.options)}")
    return "".join(f", {part}" for part in parts)
