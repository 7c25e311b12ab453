"""What the inputs of a graph look like, as plain data that goes to JSON and back; and tensors kept on disk.

A tensor is described by what its compiled code may depend on: dtype, sizes, strides, offset, device, and which other
inputs share its memory. Where sizes were symbolic, the expression stands beside the number. What cannot be rebuilt
faithfully is refused, never approximated.

In a store each storage is kept once, under the hash of its bytes: `storages/<sha256>.safetensors` (any safetensors
reader opens it), and `tensors/<name>.json` has dtype, sizes, strides and offset. Two names that viewed one storage
share it again when read; nothing is pickled.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

import torch

from torchsleuth.core.protocol.codec import Document
from torchsleuth.core.protocol.files import write_whole
from torchsleuth.script_runtime.inputs import InputsDamaged, read_storage, storage_bytes, view_storage
from torchsleuth.torch_internals.modes import outside_all_modes
from torchsleuth.torch_internals.tensors import (
    base_symbols,
    expression_of,
    form_of,
    hint_of,
    is_fake,
    values_in_memory,
    values_nbytes,
)

SCHEMA = 1
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_SCALAR_KINDS: dict[type, str] = {int: "int", float: "float", bool: "bool", type(None): "none", str: "str"}
_SYMBOL_KINDS: dict[type, str] = {
    torch.SymInt: "symint",
    torch.SymFloat: "symfloat",
    torch.SymBool: "symbool",
}


# Ways to keep values that a script can make again; in `TensorSpec.layout`.
REBUILT_FORMS = ("strided", "conj", "neg", "zero", "mkldnn")


class Unsupported(Exception):
    """An input that cannot be rebuilt faithfully, and why, in one plain sentence."""


class StorageWriter(Protocol):
    """Something that keeps a storage's bytes and answers their content hash."""

    def write_storage(self, storage: torch.UntypedStorage) -> str: ...


@dataclass(frozen=True)
class TensorSpec:
    """One tensor; `alias_of` numbers the inputs of one storage, `same_as` is an earlier, identical input."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int = 0
    device: str = "cpu"
    requires_grad: bool = False
    is_parameter: bool = False
    is_leaf: bool = True
    layout: str = "strided"
    shape_expr: tuple[str, ...] | None = None
    stride_expr: tuple[str, ...] | None = None
    offset_expr: str | None = None
    storage: str | None = None
    storage_nbytes: int = 0
    alias_of: int | None = None
    same_as: int | None = None
    kind: str = "tensor"


@dataclass(frozen=True)
class ScalarSpec:
    """A number, string or None; symbolic ones carry their expression and `value` is the hint."""

    kind: str
    value: Any = None
    expr: str | None = None


@dataclass(frozen=True)
class SymbolSpec:
    """One base symbol of the sizes: an example value and its bounds (None: unknown, or no bound)."""

    hint: int | None
    lower: int | None = None
    upper: int | None = None


@dataclass(frozen=True)
class InputsDescription:
    """All inputs of a graph, in order, with the symbols their sizes are made of."""

    inputs: tuple[TensorSpec | ScalarSpec, ...]
    symbols: Mapping[str, SymbolSpec] = field(default_factory=dict)

    def to_json(self) -> Document:
        """Plain data that `json.dumps` takes and every JSON reader understands.

        >>> describe_inputs([3]).to_json()["inputs"]
        [{'kind': 'int', 'value': 3, 'expr': None}]
        """
        return {
            "schema": SCHEMA,
            "inputs": [plain(vars(spec)) for spec in self.inputs],
            "symbols": {name: asdict(symbol) for name, symbol in self.symbols.items()},
        }

    @classmethod
    def from_json(cls, data: Document) -> "InputsDescription":
        """The description that `to_json` wrote.

        >>> described = describe_inputs([torch.ones(2)])
        >>> InputsDescription.from_json(described.to_json()) == described
        True
        """
        if data.get("schema") != SCHEMA:
            raise Unsupported(
                f"The inputs are of schema {data.get('schema')!r}; this version reads {SCHEMA}."
            )
        return cls(
            tuple(_spec(item) for item in data["inputs"]),
            {name: SymbolSpec(**symbol) for name, symbol in data["symbols"].items()},
        )


def describe_inputs(
    values: Sequence[object], fakes: Sequence[object] | None = None, store: StorageWriter | None = None
) -> InputsDescription:
    """Describe real or fake inputs; `fakes` adds the symbolic sizes to real ones, `store` keeps the values.

    >>> describe_inputs([torch.ones(2, 3)]).inputs[0].shape
    (2, 3)
    """
    symbols: dict[str, SymbolSpec] = {}
    specs: list[TensorSpec | ScalarSpec] = []
    hashes: dict[object, str] = {}
    for position, value in enumerate(values):
        fake = fakes[position] if fakes is not None and position < len(fakes) else None
        if not isinstance(value, torch.Tensor):
            specs.append(describe_scalar(value, fake, symbols))
            continue
        spec = describe_tensor(value, fake, symbols)
        if store is not None and not is_fake(value) and value.device.type != "meta":
            memory, kept = memory_of(value), values_in_memory(value)
            if memory not in hashes and kept is not None:
                hashes[memory] = store.write_storage(kept)
            spec = replace(spec, storage=hashes.get(memory))
        specs.append(spec)
    return InputsDescription(tuple(with_aliases(values, specs)), symbols)


def describe_tensor(
    tensor: torch.Tensor, fake: object = None, symbols: dict[str, SymbolSpec] | None = None
) -> TensorSpec:
    """Describe one tensor, with the symbolic sizes of `fake` or its own; `symbols` gains their symbols.

    >>> describe_tensor(torch.ones(2)).dtype
    'float32'
    """
    _refuse(tensor)
    symbolic = fake if isinstance(fake, torch.Tensor) and fake.dim() == tensor.dim() else tensor
    sizes, strides, offset = tuple(symbolic.shape), symbolic.stride(), symbolic.storage_offset()
    real = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    numbers = [hint_of(number) for number in real]
    if any(number is None for number in numbers):
        raise Unsupported(
            f"An input of shape {tuple(map(str, tensor.shape))} has a size known only at run time."
        )
    for number, value in zip((*sizes, *strides, offset), numbers):
        _collect(number, value, {} if symbols is None else symbols)
    rank = tensor.dim()
    nbytes = hint_of(values_nbytes(tensor))
    return TensorSpec(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(numbers[:rank]),
        stride=tuple(numbers[rank : 2 * rank]),
        storage_offset=numbers[-1],
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
        is_parameter=isinstance(tensor, torch.nn.Parameter),
        is_leaf=tensor.is_leaf,
        layout=form_of(tensor),
        shape_expr=_expressions(sizes),
        stride_expr=_expressions(strides),
        offset_expr=expression_of(offset) if isinstance(offset, torch.SymInt) else None,
        storage_nbytes=0 if nbytes is None else nbytes,
    )


def describe_scalar(value: object, fake: object, symbols: dict[str, SymbolSpec]) -> ScalarSpec:
    """Describe a number, string or None, with the expression of `fake` where that is symbolic."""
    symbol = value if type(value) in _SYMBOL_KINDS else fake if type(fake) in _SYMBOL_KINDS else None
    if symbol is not None:
        number = hint_of(value)
        _collect(symbol, number, symbols)
        return ScalarSpec(_SYMBOL_KINDS[type(symbol)], number, expression_of(symbol))
    if type(value) not in _SCALAR_KINDS:
        raise Unsupported(f"An input is a {type(value).__qualname__}, which cannot be written down.")
    return ScalarSpec(_SCALAR_KINDS[type(value)], value)


def tensor_spec(data: Document) -> TensorSpec:
    """The description of a tensor from its JSON form.

    >>> tensor_spec({"dtype": "float32", "shape": [2], "stride": [1]}).shape
    (2,)
    """
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}
    return TensorSpec(**values)


def as_in_memory(spec: Document) -> Document:
    """The JSON form of a tensor as that of the strided memory it is made from, which a search holds as its value.

    >>> as_in_memory({"layout": "mkldnn", "shape": [2, 3], "stride": [1, 0]})["stride"]
    [3, 1]
    """
    if spec.get("layout") != "mkldnn":
        return {**spec, "layout": "strided"}
    shape = list(spec["shape"])
    stride = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    return {**spec, "layout": "strided", "stride": stride, "storage_offset": 0}


def _refuse(tensor: torch.Tensor) -> None:
    name = f"An input of shape {tuple(map(str, tensor.shape))}"
    if type(tensor) not in _PLAIN_CLASSES and not is_fake(tensor):
        raise Unsupported(f"{name} is a {type(tensor).__name__}, a tensor subclass that cannot be rebuilt.")
    if (form := form_of(tensor)) not in REBUILT_FORMS:
        raise Unsupported(f"{name} is {form}, which cannot be rebuilt.")


def _collect(number: object, value: object, symbols: dict[str, SymbolSpec]) -> None:
    """Note the symbols of a size; a size that is one bare symbol tells its value in this very call."""
    for name, hint, lower, upper in base_symbols(number):
        known = symbols.get(name, SymbolSpec(hint, lower, upper))
        if expression_of(number) == name and isinstance(value, int):
            known = replace(known, hint=value)
        symbols[name] = known


def _expressions(numbers: Sequence[object]) -> tuple[str, ...] | None:
    if any(isinstance(number, torch.SymInt) for number in numbers):
        return tuple(expression_of(number) for number in numbers)
    return None


def with_aliases(
    values: Sequence[object], specs: Sequence[TensorSpec | ScalarSpec]
) -> list[TensorSpec | ScalarSpec]:
    """The descriptions of values with who shares memory with whom in them, whoever did before.

    >>> whole = torch.ones(4)
    >>> halves = [whole[:2], whole[2:]]
    >>> [spec.alias_of for spec in with_aliases(halves, [describe_tensor(half) for half in halves])]
    [0, 0]
    """
    groups: dict[object, list[int]] = {}
    first: dict[int, int] = {}
    same: dict[int, int] = {}
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            groups.setdefault(memory_of(value), []).append(position)
            if first.setdefault(id(value), position) != position:
                same[position] = first[id(value)]
    shared = [members for members in groups.values() if len(members) > 1]
    group = {position: number for number, members in enumerate(shared) for position in members}
    return [
        replace(s, alias_of=group.get(i), same_as=same.get(i)) if isinstance(s, TensorSpec) else s
        for i, s in enumerate(specs)
    ]


def shares_memory(description: InputsDescription) -> bool:
    """Whether any two of the inputs lie in one storage.

    >>> shares_memory(describe_inputs([torch.ones(2), torch.ones(2)]))
    False
    """
    return any(isinstance(spec, TensorSpec) and spec.alias_of is not None for spec in description.inputs)


def reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first to the last one of a tensor.

    >>> reach((2, 3), (4, 1))
    7
    """
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))


def memory_of(tensor: torch.Tensor) -> object:
    """Something equal for tensors that lie in one storage."""
    if form_of(tensor) in ("zero", "mkldnn"):
        return ("none", id(tensor))
    if is_fake(tensor) or tensor.device.type == "meta":
        return ("storage", tensor.untyped_storage()._cdata)
    return tensor.untyped_storage().data_ptr() or ("empty", id(tensor))


def plain(value: Any) -> Any:
    """A value as JSON has it, which has no tuples and no infinite numbers.

    >>> plain({"shape": (2, math.inf)})
    {'shape': [2, 'inf']}
    """
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _spec(item: Document) -> TensorSpec | ScalarSpec:
    if item["kind"] == "tensor":
        return tensor_spec(item)
    value = item["value"]
    if item["kind"] in ("float", "symfloat") and isinstance(value, str):
        value = float(value)
    return ScalarSpec(item["kind"], value, item["expr"])


# Bytes before the data, so that a memory-mapped storage is aligned for vector loads.
_ALIGNMENT = 64


class ContentStoreWriter:
    """Writes tensors into a folder.

    >>> ContentStoreWriter("inputs").write_tensor("weight", torch.ones(2)).shape
    (2,)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def compute_tensor_metadata(self, tensor: torch.Tensor, storage: str | None = None) -> TensorSpec:
        """The description of a tensor, without writing it, with the hash of its content: as one read back has it.

        `storage` is that hash where it is known.
        """
        held = tensor.untyped_storage()
        return replace(describe_tensor(tensor), storage=storage or _hash_of(_on_cpu(held)))

    def write_storage(self, storage: torch.UntypedStorage) -> str:
        """Keep a storage's bytes, unless they are there already; answers their hash."""
        on_cpu = _on_cpu(storage)
        data, digest = storage_bytes(on_cpu), _hash_of(on_cpu)
        path = self.folder / "storages" / f"{digest}.safetensors"
        if not path.exists():
            _write_private(path, lambda file: _write_safetensors(file, data))
        return digest

    def write_tensor(self, name: str, tensor: torch.Tensor) -> TensorSpec:
        """Keep a tensor under a name such as `"layers/0/weight"`; answers its description."""
        spec = self.compute_tensor_metadata(tensor, self.write_storage(tensor.untyped_storage()))
        text = json.dumps(asdict(spec), indent=1).encode()
        _write_private(_tensor_file(self.folder, name), text)
        return spec


def _on_cpu(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    with outside_all_modes(), torch.no_grad():
        return storage if storage.device.type == "cpu" else storage.cpu()


def _hash_of(storage: torch.UntypedStorage) -> str:
    return hashlib.sha256(storage_bytes(storage)).hexdigest()


class ContentStoreReader:
    """Reads what a `ContentStoreWriter` wrote; storages are read once and shared by the tensors in them.

    >>> _ = ContentStoreWriter("inputs").write_tensor("weight", torch.ones(2))
    >>> ContentStoreReader("inputs").read_tensor("weight")
    tensor([1., 1.])
    """

    def __init__(self, folder: str | os.PathLike[str], *, cache: bool = True) -> None:
        self.folder = Path(folder)
        self._storages: dict[tuple[str, str], torch.UntypedStorage] | None = {} if cache else None

    def read_tensor_metadata(self, name: str) -> TensorSpec:
        """The description of a kept tensor; its bytes are not touched."""
        path = _tensor_file(self.folder, name)
        try:
            return tensor_spec(json.loads(path.read_text()))
        except FileNotFoundError:
            raise InputsDamaged(f"The store {self.folder.name} has no tensor named {name!r}.") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputsDamaged(f"The description of tensor {name!r} is damaged: {error}.") from error

    def read_tensor(self, name: str, device: str | torch.device | None = None) -> torch.Tensor:
        """The tensor kept under a name, on its own device or on the given one."""
        spec = self.read_tensor_metadata(name)
        if spec.storage is None:
            raise InputsDamaged(f"The description of tensor {name!r} names no storage.")
        where = str(device or spec.device)
        return view_storage({**asdict(spec), "device": where}, self._storage(spec.storage, where))

    def _storage(self, digest: str, device: str) -> torch.UntypedStorage:
        known = None if self._storages is None else self._storages.get((digest, device))
        if known is None:
            known = read_storage(str(self.folder / "storages" / f"{digest}.safetensors"), digest)
            if device != "cpu":
                known = (
                    torch.empty(0, dtype=torch.uint8, device="cpu").set_(known).to(device).untyped_storage()
                )
            if self._storages is not None:
                self._storages[digest, device] = known
        return known


def _tensor_file(folder: Path, name: str) -> Path:
    parts = name.split("/")
    if any(part in ("", ".", "..") or os.sep in part or "\0" in part for part in parts):
        raise ValueError(f"{name!r} is no name for a tensor: use words separated by single slashes.")
    return folder.joinpath("tensors", *parts[:-1], f"{parts[-1]}.json")


# Five lines instead of a dependency, which would align the data to 8 bytes only; the tests read them with the library.
def _write_safetensors(file: IO[bytes], data: memoryview) -> None:
    entry = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    header = json.dumps({"storage": entry}).encode()
    header += b" " * (-(len(header) + 8) % _ALIGNMENT)
    file.write(struct.pack("<Q", len(header)) + header)
    file.write(data)


def _write_private(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, mode=0o600)
