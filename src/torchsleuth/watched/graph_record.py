"""One graph as it was before the compiler touched it: source, inputs, settings, provenance, on disk.

Everything a repro needs is written before the compile starts, from the process that knows it. Values are a
matter of cost: specs always; integers and small non-parameter floats before the first call; the rest only once
something has failed. Parameters are never copied while nothing fails.
"""

from __future__ import annotations

import ast
import base64
import functools
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchsleuth.core.cases.record import AmbientState, CompileSettings, Embedded, GraphRecord
from torchsleuth.core.cases.scrub import without_secrets
from torchsleuth.torch_core.graphs.printer import PrintedGraph, Unprintable, print_graph, structural_hash
from torchsleuth.torch_core.graphs.provenance import calling_line, module_and_call, user_lines
from torchsleuth.torch_core.tensors import (
    REBUILT_FORMS,
    ContentStoreWriter,
    InputsDescription,
    ScalarSpec,
    TensorSpec,
    Unsupported,
    describe_inputs,
    shares_memory,
    with_aliases,
)
from torchsleuth.torch_internals.configuration import changed_settings, global_state, versions
from torchsleuth.torch_internals.decompositions import changed_decompositions, table_source
from torchsleuth.torch_internals.operators import fake_groups_source, groups_of
from torchsleuth.torch_internals.saved_code import SavedCode
from torchsleuth.torch_internals.tensors import form_of, values_in_memory, values_nbytes
from torchsleuth.watched.call_state import PLAIN_TENSORS
from torchsleuth.watched.embed_slice import CannotEmbed
from torchsleuth.watched.flight import write_json
from torchsleuth.watched.startup import how_started
from torchsleuth.watched.value_source import Made, Maker, embed

# A constant beyond this is by spec only: frozen weights are constants too, and may be gigabytes.
CONSTANT_BYTES = 4 << 20
# Before a first call: index tensors decide what a kernel touches, so they are worth more bytes than floats.
INTEGER_BYTES = 1 << 20
FLOAT_BYTES = 64 << 10
TOTAL_BYTES = 16 << 20
# Once it has failed: values beyond this are kept by spec, as a case folder should stay something one can copy.
KEPT_BYTES = 256 << 20
# Where a script did not fail without them, values are worth more.
SECOND_LOOK_BYTES = 4 << 30


# What makes the inputs of a record of the arguments of a call.
Plain = Callable[[Sequence[Any]], list[Any]]


@dataclass
class RecordedGraph:
    """A graph of this process on disk: the folder of its record, what is in it, and its inputs' forms.

    `calls` is the number of the call under way, or of the last one; `whole` where all inputs of one are kept as they
    were before it.
    """

    folder: Path
    facts: GraphRecord
    inputs: InputsDescription | None = None
    calls: int = 0
    whole: bool = False
    # What makes the recorded inputs of the arguments of a call, where some of those wrap others.
    plain: Plain | None = None

    def update(self, **changes: Any) -> None:
        """Changes fields of the record, here and on disk: `recorded.update(inputs=kept.to_json())`."""
        self.facts = replace(self.facts, **changes)
        write_json(self.folder / "record.json", self.facts.to_json())


@dataclass(frozen=True)
class GraphOrigin:
    """Where a graph came from: at which seam, for which backend, in which compile."""

    settings: CompileSettings
    compile_id: str | None = None
    function: str | None = None
    outer: int | None = None
    custom_backend: Any = None


def record_graph(
    folder: Path, number: int, graph: torch.fx.GraphModule, inputs: Sequence[Any], origin: GraphOrigin
) -> RecordedGraph:
    """Writes the record of `graph` into `folder` and returns it."""
    graph, plain = with_plain_inputs(graph, inputs)
    inputs = inputs if plain is None else plain(inputs)
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    config, wanted = _settings_as_source()
    if origin.custom_backend is not None:
        wanted = {"backend": origin.custom_backend, **wanted}
    visible = graph.graph.output_node().meta.get("user_visible_output_idxs")
    settings = replace(
        origin.settings, config=config, visible_outputs=None if visible is None else tuple(visible)
    )
    record = GraphRecord(
        settings,
        number=number,
        compile_id=origin.compile_id,
        function=origin.function,
        outer=origin.outer,
        versions=versions(),
        hash=structural_hash(graph),
        source_lines=user_lines(graph),
        placeholders=tuple(p.name for p in placeholders),
        program=how_started(),
    )
    if not record.source_lines:
        record = replace(record, called_from=calling_line(), modules=_modules(graph))
    printed, record = _printed(graph, folder, record)
    fakes = [p.meta.get("val", p.meta.get("example_value")) for p in placeholders]
    description = None
    try:
        description = describe_inputs(list(inputs), fakes)
    except Unsupported as reason:
        record = _without_repro(record, reason)
    try:
        record = replace(record, embedded=_embedded(wanted, printed, groups_of(graph)))
    except CannotEmbed as reason:
        record = _without_repro(record, reason)
    except LookupError as reason:
        record = _without_repro(record, f"the graph communicates between processes, and {reason}")
    recorded = RecordedGraph(folder, record, description, plain=plain)
    recorded.update(inputs=None if description is None else description.to_json())
    return recorded


def state_now() -> AmbientState:
    """The switches of torch under which this process compiles right now."""
    return AmbientState(**global_state())


def record_without_graph(folder: Path, number: int, code: SavedCode) -> RecordedGraph:
    """Writes the record of code that was compiled before, and does not hold the graph it was compiled from."""
    why = f"the {code.kind} was compiled by another process, and does not hold the graph it was compiled from"
    (folder / "graph.py").write_text(f"# {why}\n", encoding="utf-8")
    settings = CompileSettings(
        "aot", "inductor", "backward" if code.backward else "forward", state=state_now()
    )
    record = GraphRecord(
        settings,
        number=number,
        versions=versions(),
        hash="-".join(sorted(code.names)),
        no_repro=why,
        program=how_started(),
    )
    recorded = RecordedGraph(folder, record)
    recorded.update()
    return recorded


def _modules(graph: torch.fx.GraphModule) -> dict[str, dict[str, Any]]:
    """What is left to say where no node has a line: a model made of a library's modules."""
    return {
        n.name: dict(zip(("module", "call", "gradient"), module_and_call(n)))
        for n in graph.graph.nodes
        if n.op.startswith("call_")
    }


def _without_repro(record: GraphRecord, reason: object) -> GraphRecord:
    return replace(record, no_repro=record.no_repro or str(reason))


def _printed(
    graph: torch.fx.GraphModule, folder: Path, record: GraphRecord
) -> tuple[PrintedGraph | None, GraphRecord]:
    """Writes the graph's text, and notes what that text needs; a graph that cannot be printed is for reading only."""
    try:
        printed = print_graph(graph)
    except Unprintable as reason:
        text = graph.print_readable(print_output=False)
        (folder / "graph.py").write_text(f"# For reading only: {reason}\n{text}", encoding="utf-8")
        calls = [n for n in graph.graph.nodes if n.op.startswith("call_")]
        ops = sorted({str(n.target) for n in calls if n.op == "call_function"})
        return None, replace(_without_repro(record, reason), calls=len(calls), ops=tuple(ops))
    (folder / "graph.py").write_text(printed.source, encoding="utf-8")
    return printed, replace(
        record,
        calls=printed.calls,
        ops=tuple(printed.ops),
        imports=tuple(printed.imports),
        nodes=dict(printed.nodes),
        constants=_keep_constants(printed.constants, folder),
    )


def _keep_constants(constants: Mapping[str, torch.Tensor], folder: Path) -> dict[str, Any]:
    if not constants:
        return {}
    description = describe_inputs(list(constants.values()), None)
    small = [t for t in constants.values() if values_nbytes(t) <= CONSTANT_BYTES]
    description = keep_values(description, list(constants.values()), small, folder / "inputs")
    return {"names": list(constants), "description": description.to_json()}


def definitions_of(printed: PrintedGraph) -> Embedded:
    """What the text of a graph needs of the user's program; raises `CannotEmbed`: `definitions_of(print_graph(gm))`."""
    return _embedded({}, printed, None)


def _embedded(
    wanted: Mapping[str, Any], printed: PrintedGraph | None, groups: Mapping[str, tuple[int, ...]] | None
) -> Embedded:
    """Source of what the user's program made and the repro needs: backend, passes, functions, custom ops, the table of
    decompositions, groups of processes."""
    references = printed.references if printed is not None else {}
    custom_ops = printed.custom_ops if printed is not None else ()
    put_in, taken_out = changed_decompositions()
    names = {op: f"decomposition_{op.replace('.', '_')}" for op in put_in}
    wanted = {**wanted, **references, **{names[op]: made for op, made in put_in.items()}}
    made = Embedded()
    if wanted or custom_ops:
        made = embed(wanted, custom_ops, loaded_libraries=torch.ops.loaded_libraries)
    more = [table_source(names, taken_out)] if put_in or taken_out else []
    notes = made.notes
    if groups is not None:
        more.append(fake_groups_source(groups))
        notes = (*notes, "runs as one process in a fake group: nothing comes from the other ranks")
    if more:
        made = replace(made, source="\n".join(filter(None, [made.source, *more])), notes=notes)
        made = replace(made, imports=tuple(dict.fromkeys(["import torch", *made.imports])))
    return replace(made, source=without_secrets(made.source))


# ---- inputs that wrap other tensors
#
# For the record alone, each such input becomes the tensors that its `__tensor_flatten__` names, to the innermost, and
# one call that makes it of them, a function of the program's like any other: what is made smaller are plain tensors.


def with_plain_inputs(
    graph: torch.fx.GraphModule, inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, Plain | None]:
    """A graph that takes the tensors inside of its inputs, and what makes those of arguments of the graph itself.

    Where no input wraps others that is the graph as it is, and None.
    """
    places = {n: made for n, value in enumerate(inputs) if (made := _made(value)) is not None}
    if not places:
        return graph, None
    taken: dict[torch.fx.Node, torch.fx.Node] = {}
    plain = torch.fx.Graph()
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for place, node in enumerate(given):
        made = places.get(place)
        if made is None:
            taken[node] = plain.node_copy(node, taken.__getitem__)
            continue
        fakes = dict(zip(made.names, _leaves(node.meta.get("example_value"), made)))
        inside = []
        for name in made.names:
            inside.append(plain.placeholder(f"{node.name}_{name}"))
            inside[-1].meta["example_value"] = fakes.get(name)
        taken[node] = (node, inside, made)
    for node in given:
        if isinstance(taken[node], tuple):
            source, inside, made = taken[node]
            maker = Maker(made, f"make_{source.name.strip('_')}")
            taken[node] = plain.create_node("call_function", maker, tuple(inside), name=source.name)
            taken[node].meta = dict(source.meta)
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            taken[node] = plain.node_copy(node, taken.__getitem__)
    return torch.fx.GraphModule(graph, plain), functools.partial(_flat, places)


def _made(value: Any) -> Made | None:
    """How a value is made of tensors inside of it; None of one that is none, or plain."""
    if not isinstance(value, torch.Tensor) or type(value) in PLAIN_TENSORS:
        return None
    cls = type(value)
    if not hasattr(cls, "__tensor_flatten__") or not hasattr(cls, "__tensor_unflatten__"):
        return None
    names, about = value.__tensor_flatten__()
    parts = tuple((name, _made(getattr(value, name))) for name in names)
    sizes = [int(size) for size in value.shape], [int(size) for size in value.stride()]
    return Made(cls, parts, about, tuple(sizes[0]), tuple(sizes[1]))


def _leaves(value: Any, made: Made) -> Iterator[Any]:
    for name, inner in made.parts:
        part = getattr(value, name, None)
        yield from [part] if inner is None else _leaves(part, inner)


def _flat(places: dict[int, Made], values: Sequence[Any]) -> list[Any]:
    """The arguments of a call, those that wrap others as what is in them."""
    flat: list[Any] = []
    for place, value in enumerate(values):
        flat += [value] if place not in places else _leaves(value, places[place])
    return flat


# ---- the values of inputs


def keep_small_inputs(record: RecordedGraph, args: Sequence[Any]) -> None:
    """Before a call: puts indices and small non-parameter values on disk, for a crash that needs them."""
    store = record.folder / "inputs"
    args = args if record.plain is None else record.plain(args)
    shutil.rmtree(store, ignore_errors=True)
    if record.inputs is None or len(args) != len(record.facts.placeholders):
        return
    settings = record.facts.settings
    static = set(settings.compile_kwargs.get("static_input_idxs", ()))
    if settings.direction == "backward":
        static = set()  # there it names saved activations too
    wanted: list[torch.Tensor] = []
    left = TOTAL_BYTES
    for position, value in enumerate(args):
        if not isinstance(value, torch.Tensor) or value.is_meta:
            continue
        floating = value.is_floating_point() or value.is_complex()
        size = values_nbytes(value)
        if floating and (position in static or isinstance(value, torch.nn.Parameter) or size > FLOAT_BYTES):
            continue
        if size <= min(INTEGER_BYTES, left):
            wanted.append(value)
            left -= size
    if wanted:
        record.update(inputs=keep_values(record.inputs, args, wanted, store).to_json())


def keep_inputs(record: RecordedGraph, inputs: Sequence[Any], most: int = KEPT_BYTES) -> None:
    """After a failure: keeps the values of all inputs that are still there, smallest first, up to `most` bytes."""
    inputs = inputs if record.plain is None or not inputs else record.plain(inputs)
    if record.whole or record.inputs is None or len(inputs) != len(record.facts.placeholders):
        return
    wanted: list[torch.Tensor] = []
    store = record.folder / "inputs"
    total = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())  # of earlier calls
    for tensor in sorted((v for v in inputs if isinstance(v, torch.Tensor)), key=values_nbytes):
        total += values_nbytes(tensor)
        if total > most:
            break
        wanted.append(tensor)
    kept = keep_values(record.inputs, inputs, wanted, store)
    # Only a guard that is missing lets such a call through to what was compiled for another.
    parted = shares_memory(kept) and not shares_memory(record.inputs)
    record.update(inputs=kept.to_json(), settings=replace(record.facts.settings, parted=parted))


def keep_everything(record: RecordedGraph, inputs: Sequence[Any]) -> None:
    """Before the call that failed once: keeps every value that it sees, and the state of the random numbers."""
    keep_inputs(record, inputs, SECOND_LOOK_BYTES)
    settings = record.facts.settings
    numbers = base64.b64encode(zlib.compress(bytes(torch.get_rng_state().tolist()))).decode()
    state = replace(settings.state or AmbientState(), rng=numbers)
    record.update(settings=replace(settings, state=state))
    record.whole = True


def keep_values(
    description: InputsDescription, values: Sequence[Any], wanted: Sequence[torch.Tensor], store: Path
) -> InputsDescription:
    """Writes the storages of `wanted` into the tensor store and notes their hashes in the description."""
    description = _as_called(description, values)
    if not wanted:
        return description
    writer = ContentStoreWriter(store)
    chosen = {id(t) for t in wanted}
    specs = list(description.inputs)
    for position, (spec, value) in enumerate(zip(specs, values)):
        if id(value) in chosen and isinstance(spec, TensorSpec):
            kept = values_in_memory(value)
            specs[position] = replace(spec, storage=None if kept is None else writer.write_storage(kept))
    return replace(description, inputs=tuple(specs))


def _as_called(description: InputsDescription, values: Sequence[Any]) -> InputsDescription:
    """The description with what may differ in this very call: dynamic sizes, and who shares memory with whom."""
    specs = list(description.inputs)
    if all(isinstance(v, torch.Tensor) for spec, v in zip(specs, values) if isinstance(spec, TensorSpec)):
        specs = with_aliases(values, specs)
    sizes: dict[str, int] = {}  # of symbols
    for position, (spec, value) in enumerate(zip(specs, values)):
        if isinstance(spec, TensorSpec) and isinstance(value, torch.Tensor):
            # What is compiled for a tensor without memory is compiled for a strided one.
            if (form := form_of(value)) in REBUILT_FORMS:
                specs[position] = spec = replace(spec, layout=form)
            dynamic = spec.shape_expr is not None
            if value.dim() != len(spec.shape) or not (
                dynamic or (spec.alias_of is not None and spec.layout == "strided")
            ):
                continue
            spec = replace(
                spec, storage_offset=int(value.storage_offset()), storage_nbytes=values_nbytes(value)
            )
            if dynamic:
                shape = tuple(int(size) for size in value.shape)
                spec = replace(spec, shape=shape, stride=tuple(int(s) for s in value.stride()))
                sizes.update(zip(spec.shape_expr or (), shape))
            specs[position] = spec
        elif isinstance(spec, ScalarSpec) and spec.expr is not None and isinstance(value, int):
            specs[position] = replace(spec, value=value)
            sizes[spec.expr] = value
    symbols = {
        name: replace(symbol, hint=sizes[name]) if name in sizes else symbol
        for name, symbol in description.symbols.items()
    }
    return replace(description, inputs=tuple(specs), symbols=symbols)


# ---- settings


def _settings_as_source() -> tuple[dict[str, dict[str, str]], dict[str, Any]]:
    written: dict[str, dict[str, str]] = {}
    objects: dict[str, Any] = {}
    for module, values in changed_settings().items():
        texts, needed = as_source(values)
        if texts:
            written[module] = texts
        objects.update(needed)
    return written, objects


def as_source(values: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Each value as a Python expression; callables by name, with the objects those names stand for.

    >>> as_source({"max_autotune": True})
    ({'max_autotune': 'True'}, {})
    """
    texts: dict[str, str] = {}
    objects: dict[str, Any] = {}
    for key, value in values.items():
        if callable(value) and not isinstance(value, type):
            name = "setting_" + "".join(c if c.isalnum() else "_" for c in key)
            objects[name], texts[key] = value, name
        else:
            text = repr(value)
            try:
                ast.literal_eval(text)
            except (ValueError, SyntaxError):
                continue
            texts[key] = text
    return texts, objects
