"""What a tensor is to torch: whether it has values, whose memory it lies on, and what its symbolic sizes know.

Of symbolic numbers only stored facts are read; none is compared or evaluated, so no guard is added to the user's trace.

Versions: alike in 2.11..2.15, but that 2.13 renamed `var_to_val` to `backed_var_to_val`; an unbacked hint is None or
raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import mmap
import os
import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchsleuth.script_runtime.inputs import as_computed
from torchsleuth.script_runtime.symbolic_inputs import symbolic_number


def is_fake(value: object) -> bool:
    """Whether the value is a fake tensor of a trace: it has a shape but no data.

    >>> is_fake(torch.ones(2))
    False
    """
    return isinstance(value, FakeTensor)


def has_no_values(value: torch.Tensor) -> bool:
    """Whether a tensor has no values of its own (fake or functional tensors of a trace)."""
    return is_fake(value) or torch._is_functional_tensor(value)


def has_own_memory(value: torch.Tensor) -> bool:
    """Whether a tensor's memory can be read as it is: not sparse or lazy, not wrapped by vmap, grad or the like, and
    none that is made of others.

    >>> has_own_memory(torch.ones(2))
    True
    """
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
    return form_of(value) == "strided" and not wrapped and not is_traceable_wrapper_subclass(value)


def unwrapped(value: torch.Tensor) -> torch.Tensor:
    """The tensor below what vmap, grad and the like wrap it in, which has memory and numbers to be read.

    >>> unwrapped(torch.ones(2))
    tensor([1., 1.])
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


@contextlib.contextmanager
def transforms_ended() -> Iterator[None]:
    """Ends the transforms of torch.func that are begun inside and left by an error: a graph that Dynamo captured of a
    vmap begins and ends it in nodes of its own, and what is begun and not ended breaks whatever runs next.

    >>> with transforms_ended():
    ...     pass
    """
    functorch = torch._C._functorch
    depth = functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        if functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def detached_leaf(value: torch.Tensor) -> torch.Tensor:
    """The tensor without its history, differentiable as before; itself inside a transform of torch.func, which allows
    no new leaves.

    >>> detached_leaf(torch.ones(2, requires_grad=True) * 2).is_leaf
    True
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return value
    return value.detach().requires_grad_(value.requires_grad)


def with_memory(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or zeros of its form where it is one of those that stand for zeros and have no memory.

    >>> with_memory(torch._efficientzerotensor((2,)))
    tensor([0., 0.])
    """
    if not value._is_zerotensor():
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.zero_().requires_grad_(value.requires_grad)


def form_of(tensor: torch.Tensor) -> str:
    """How a tensor keeps its values: "strided", lazily as "conj" or "neg" of its memory, without memory as "zero" or
    "mkldnn"; else by the name of its layout, or "quantised" or "nested".

    >>> form_of(torch.ones(2)), form_of(torch.ones(2, dtype=torch.complex64).conj())
    ('strided', 'conj')
    """
    if tensor.is_nested or tensor.is_quantized:
        return "nested" if tensor.is_nested else "quantised"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.").removeprefix("_")
    lazy = [name for name, is_so in (("conj", tensor.is_conj()), ("neg", tensor.is_neg())) if is_so]
    return "zero" if tensor._is_zerotensor() else " ".join(lazy) or "strided"


def values_in_memory(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory from which a tensor can be made again, a dense copy of it where it has none; None of a ZeroTensor.

    >>> values_in_memory(torch.ones(2).to_mkldnn()).nbytes()
    8
    """
    form = form_of(tensor)
    if form == "zero":
        return None
    return (tensor.detach().to_dense() if form == "mkldnn" else tensor).untyped_storage()


def values_nbytes(tensor: torch.Tensor) -> int:
    """How many bytes `values_in_memory` would have, without a copy."""
    form = form_of(tensor)
    if form == "zero":
        return 0
    return tensor.numel() * tensor.element_size() if form == "mkldnn" else tensor.untyped_storage().nbytes()


def storage_of(tensor: torch.Tensor) -> int | None:
    """A number that two tensors have in common where they share memory; None where a tensor has no storage."""
    if not torch._C._has_storage(tensor):
        return None
    return tensor.untyped_storage()._cdata


def expression_of(number: Any) -> str:
    """`"2*s0"`; for a plain number its own digits.

    >>> expression_of(3)
    '3'
    """
    return str(number.node.expr) if _is_symbolic(number) else str(number)


def hint_of(number: Any) -> Any:
    """The example value behind a symbolic number; None where only running the program gives one."""
    if not _is_symbolic(number):
        return number
    known = number.node.constant
    if known is not None:
        return known
    try:
        hint = number.node.hint
    except Exception:
        return None
    return None if hint is None else number.node.pytype(hint)


def base_symbols(number: Any) -> Iterator[tuple[str, int | None, int | None, int | None]]:
    """(name, hint, lower, upper) of each symbol in the expression; None for an unknown hint or no bound."""
    if not _is_symbolic(number):
        return
    env = number.node.shape_env
    values = getattr(env, "backed_var_to_val", None) or env.var_to_val
    for symbol in sorted(number.node.expr.free_symbols, key=str):
        span = env.var_to_range.get(symbol)
        hint = values.get(symbol)
        lower, upper = (None, None) if span is None else (_finite(span.lower), _finite(span.upper))
        yield str(symbol), None if hint is None else int(hint), lower, upper


def _is_symbolic(number: object) -> bool:
    return isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)


def _finite(bound: Any) -> int | None:
    # Bounds near the edge of int64 are how "no bound" is stored for sizes; newer ones are sympy infinities.
    if not getattr(bound, "is_Integer", isinstance(bound, int)):
        return None
    value = int(bound)
    return value if abs(value) < 2**62 else None


def number_of(expression: str, hints: Mapping[str, int]) -> int | None:
    """What a size's expression comes to for these numbers; None where a symbol in it has none.

    >>> number_of("2*s0 + 1", {"s0": 3})
    7
    """
    try:
        return int(symbolic_number(expression, dict(hints), None))
    except (ValueError, ArithmeticError):
        return None


def identity_of(device: torch.device) -> str:
    """A name for a device that no other has, whatever number a process knows it by: `identity_of(x.device)`."""
    if device.type != "cuda":
        return str(device)
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", device))


# ---- values on their way to another process


class CannotHand(Exception):
    """Values that another process cannot be given, and why."""


class CannotOpen(Exception):
    """Memory of a device that another process shared cannot be opened here."""


class _Handle(ctypes.Structure):
    _fields_ = [("content", ctypes.c_ubyte * 64)]


@dataclass(frozen=True)
class _Memory:
    """A storage as it is named to whoever reads: where its bytes lie among those that were copied, and on which device
    they are to lie; or by what handle that device gives them to other processes, and how far behind its beginning."""

    offset: int
    size: int
    device: str
    handle: bytes | None = None


@dataclass(frozen=True)
class _Placed:
    memory: _Memory


@functools.cache
def _driver() -> Any:
    """CUDA's driver; None where there is none, or another one."""
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, _Handle, ctypes.c_uint]
        return driver
    return None


def _shared(storage: torch.UntypedStorage) -> _Memory | None:
    """The storage by a handle of its device, which copies nothing; None where there is no such handle."""
    if storage.device.type != "cuda" or not storage.nbytes() or torch.version.hip or not _driver():
        return None
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
    with torch.cuda.device(storage.device):
        refused = _driver().cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(storage.data_ptr())
        ) or _driver().cuIpcGetMemHandle(ctypes.byref(handle), base)
    if refused:  # memory that can grow has none, say
        return None
    return _Memory(storage.data_ptr() - base.value, storage.nbytes(), str(storage.device), bytes(handle))


class _Packer(pickle.Pickler):
    """Leaves out the bytes of tensors; tensors that share memory share it again."""

    def __init__(self, file: io.BytesIO, shares: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.shares = shares
        self.size = 0
        self.found: dict[int, tuple[torch.UntypedStorage, _Memory]] = {}

    def reducer_override(self, value: Any) -> Any:
        plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        if type(value) not in plain or value.is_meta or form_of(value) != "strided" or value.is_quantized:
            return NotImplemented
        storage = value.untyped_storage()
        if storage._cdata not in self.found:
            memory = _shared(storage) if self.shares else None
            if memory is None:
                memory = _Memory(self.size, storage.nbytes(), str(storage.device))
                self.size += -(-memory.size // _ALIGNED) * _ALIGNED
            self.found[storage._cdata] = storage, memory
        where = (value.storage_offset(), tuple(value.shape), value.stride())
        kind = "computed" if value.requires_grad and not value.is_leaf else type(value).__name__
        placed = _Placed(self.found[storage._cdata][1])
        return _tensor_of, (placed, value.dtype, where, kind, value.requires_grad)

    def persistent_id(self, value: Any) -> Any:
        return value.memory if type(value) is _Placed else None


def _tensor_of(
    storage: torch.UntypedStorage, dtype: torch.dtype, where: tuple[Any, ...], kind: str, wants_gradient: bool
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *where)
    if kind == "computed":
        return as_computed(tensor)
    if kind != "Tensor":
        tensor = getattr(torch.nn, kind)(tensor)
    return tensor.requires_grad_(wants_gradient)


_ALIGNED = 512
_HEAD = struct.Struct("<QQ")


def hand_over(value: object, file: int, most: int, shares: bool = True) -> None:
    """Writes a value with its tensors to memory that another process reads, at most so many bytes; raises `CannotHand`.
    Memory of a device is not copied where it can be shared: whoever asks waits until it was read.

    >>> descriptor = os.memfd_create("values")
    >>> hand_over([torch.ones(2), 3], descriptor, 1 << 20)
    >>> with taken(descriptor) as values:
    ...     values
    [tensor([1., 1.]), 3]
    """
    text = io.BytesIO()
    packer = _Packer(text, shares)
    try:
        packer.dump(value)
    except Exception as error:
        why = f"it holds what no other process can be given ({type(error).__name__}: {error})"
        raise CannotHand(why) from error
    begin = -(-(_HEAD.size + text.tell()) // _ALIGNED) * _ALIGNED
    if begin + packer.size > most:
        megabytes = f"{packer.size >> 20} MB, of {most >> 20} that may be copied"
        raise CannotHand(f"its values are too large for another process to be given: {megabytes}")
    try:  # what is not there when it is written to ends the program
        os.posix_fallocate(file, 0, begin + packer.size)
    except OSError as error:
        raise CannotHand(f"there is no memory to copy its values to: {error.strerror}") from error
    for device in {memory.device for _, memory in packer.found.values() if memory.handle}:
        torch.cuda.synchronize(device)
    with mmap.mmap(file, begin + packer.size) as room:
        room[: _HEAD.size] = _HEAD.pack(text.tell(), begin)
        room[_HEAD.size : _HEAD.size + text.tell()] = text.getbuffer()
        for storage, memory in packer.found.values():
            if memory.size and memory.handle is None:
                source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                _octets(room, begin, memory).copy_(source)
                _let_go(room, begin, memory)


def _octets(room: mmap.mmap, begin: int, memory: _Memory) -> torch.Tensor:
    return torch.frombuffer(room, dtype=torch.uint8, count=memory.size, offset=begin + memory.offset)


def _let_go(room: mmap.mmap, begin: int, memory: _Memory) -> None:
    """What was read or written stays where it lies, and does not count as this process's memory any more."""
    first = -(-(begin + memory.offset) // mmap.PAGESIZE) * mmap.PAGESIZE
    length = begin + memory.offset + memory.size - first
    if length >= mmap.PAGESIZE and hasattr(mmap, "MADV_DONTNEED"):
        room.madvise(mmap.MADV_DONTNEED, first, length // mmap.PAGESIZE * mmap.PAGESIZE)


@contextlib.contextmanager
def taken(file: int) -> Iterator[Any]:
    """What `hand_over` wrote, to be read inside; what was copied is this process's own. Raises `CannotOpen`."""
    room = mmap.mmap(
        file, os.fstat(file).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
    )
    length, begin = _HEAD.unpack_from(room)
    storages: dict[_Memory, torch.UntypedStorage] = {}
    opened: dict[bytes, int] = {}

    def found(memory: _Memory) -> torch.UntypedStorage:
        if not memory.size:
            return torch.UntypedStorage(0, device=memory.device)
        if memory not in storages:
            storages[memory] = _copied(memory) if memory.handle is None else _opened(memory, memory.handle)
        return storages[memory]

    def _copied(memory: _Memory) -> torch.UntypedStorage:
        octets = _octets(room, begin, memory)
        if memory.device == "cpu":
            return octets.untyped_storage()
        octets = octets.to(memory.device)
        _let_go(room, begin, memory)
        return octets.untyped_storage()

    def _opened(memory: _Memory, handle: bytes) -> torch.UntypedStorage:
        if handle not in opened:
            address = ctypes.c_uint64()
            with torch.cuda.device(memory.device):
                torch.cuda.current_stream().synchronize()
                refused = _driver().cuIpcOpenMemHandle_v2(
                    ctypes.byref(address), _Handle.from_buffer_copy(handle), 1
                )
            if refused:
                raise CannotOpen(f"memory of {memory.device} cannot be shared (error {refused} of CUDA)")
            opened[handle] = address.value
        device = torch.device(memory.device)
        return torch._C._construct_storage_from_data_pointer(
            opened[handle] + memory.offset, device, memory.size
        )

    unpickler = pickle.Unpickler(io.BytesIO(room[_HEAD.size : _HEAD.size + length]))
    unpickler.persistent_load = found  # type: ignore[method-assign]
    try:
        yield unpickler.load()
    finally:
        if opened:
            torch.cuda.synchronize()
        for address in opened.values():
            _driver().cuIpcCloseMemHandle(ctypes.c_uint64(address))
