"""Rebuild a graph's inputs from their description: kept values from files, other values from a seed.

Each storage is made once and the tensors are laid over it, so strides, offsets and sharing come out as described.
Random values come from integer arithmetic alone, which is the same on every machine.
Pasted into scripts: standard library and torch only, public but for tensors that only private names make.
"""

import ctypes
import hashlib
import json
import math
import os
import struct
from typing import Any

import torch


class InputsDamaged(Exception):
    """A file with input values is missing, cut off or changed."""


def load_inputs(description: dict, folder: str | None = None, seed: int = 0) -> list:
    """The inputs that the JSON form of an `InputsDescription` describes, as real tensors and numbers.

    >>> load_inputs(describe_inputs([torch.ones(2)]).to_json())[0].shape
    torch.Size([2])
    """
    specs = description["inputs"]
    storages: dict[Any, torch.UntypedStorage] = {}
    made: list[Any] = []
    for position, spec in enumerate(specs):
        if spec["kind"] != "tensor":
            value = spec["value"]
            made.append(float(value) if spec["kind"] in ("float", "symfloat") else value)
        elif spec["same_as"] is not None:
            made.append(made[spec["same_as"]])
        else:
            group = position if spec["alias_of"] is None else f"group {spec['alias_of']}"
            if group not in storages:
                shared = [] if spec["alias_of"] is None else [s for s in specs if s["kind"] == "tensor"]
                members = [spec, *(s for s in shared if s["alias_of"] == spec["alias_of"])]
                storages[group] = _inputs_storage(spec, members, folder, seed * 1_000_003 + position)
            made.append(view_storage(spec, storages[group]))
    return made


def read_storage(path: str, digest: str) -> torch.UntypedStorage:
    """The one tensor of a safetensors file, its bytes checked: `read_storage("storages/ab.safetensors", "ab12...")`."""
    try:
        # Nothing is allocated on the word of a header alone; a pipe would be waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            size = os.fstat(file.fileno()).st_size
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError("its header is longer than the file")
            start, end = json.loads(file.read(length))["storage"]["data_offsets"]
            if (start, end) != (0, size - 8 - length):
                raise ValueError("its length does not fit its header")
            flat = torch.empty(end, dtype=torch.uint8, device="cpu")
            view = storage_bytes(flat.untyped_storage())
            file.readinto(view or bytearray())
        if hashlib.sha256(view).hexdigest() != digest:
            raise ValueError("its bytes do not fit its name")
    except FileNotFoundError:
        raise InputsDamaged("The tensor file {1} is not in {0}.".format(*os.path.split(path))) from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, struct.error) as error:
        said = f"The tensor file {os.path.basename(path)} is damaged: {error}."
        raise InputsDamaged(f"{said} Record the case again, or copy the file from where it came.") from error
    return flat.untyped_storage()


def storage_bytes(storage: torch.UntypedStorage) -> memoryview:
    """The memory of a CPU storage, without a copy; the storage must outlive the view.

    >>> kept = torch.ones(1, dtype=torch.uint8).untyped_storage()
    >>> bytes(storage_bytes(kept))
    b'\\x01'
    """
    if storage.nbytes() == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def view_storage(spec: dict, storage: torch.UntypedStorage) -> torch.Tensor:
    """The described tensor, laid over a storage on its device.

    `view_storage(spec, storage).stride() == tuple(spec["stride"])`.
    """
    form = spec.get("layout", "strided")
    kind = {"dtype": getattr(torch, spec["dtype"]), "device": spec["device"]}
    tensor = torch.empty(0, **kind)
    if form == "zero":
        tensor = torch._efficientzerotensor(spec["shape"], **kind)
    elif form == "mkldnn":
        tensor = tensor.set_(storage).view(spec["shape"]).to_mkldnn()
    else:
        tensor.set_(storage, spec["storage_offset"], spec["shape"], spec["stride"])
        tensor = {"conj": torch.conj, "neg": torch._neg_view}.get(form, lambda it: it)(tensor)
    if spec["is_parameter"]:
        return torch.nn.Parameter(tensor, requires_grad=spec["requires_grad"])
    computed = spec["requires_grad"] and not spec.get("is_leaf", True)
    return as_computed(tensor) if computed else tensor.requires_grad_(spec["requires_grad"])


def as_computed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in its own memory, as the result of an earlier computation: unlike a leaf it may be changed in place.

    >>> as_computed(torch.ones(2)).is_leaf
    False
    """
    try:
        with torch.enable_grad():
            tensor.sub_(torch.zeros((), dtype=tensor.dtype, device=tensor.device, requires_grad=True))
    except RuntimeError:  # an expanded tensor cannot be written, by the graph neither
        return tensor.requires_grad_()
    tensor.retain_grad()
    return tensor


def _inputs_storage(spec: dict, members: list, folder: str | None, seed: int) -> torch.UntypedStorage:
    if spec["storage"] is not None and folder is not None:
        path = os.path.join(folder, "storages", f"{spec['storage']}.safetensors")
        kept = read_storage(path, spec["storage"])
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(kept).to(spec["device"]).untyped_storage()
    dtype = getattr(torch, spec["dtype"])
    count = -(-max(_inputs_extent(member) for member in members) // dtype.itemsize)
    return _inputs_values(count, dtype, seed).to(spec["device"]).untyped_storage()


def _inputs_extent(spec: dict) -> int:
    """Bytes of storage that a tensor reaches into."""
    if spec.get("layout") == "mkldnn":
        return math.prod(spec["shape"]) * getattr(torch, spec["dtype"]).itemsize
    last = sum((size - 1) * stride for size, stride in zip(spec["shape"], spec["stride"]))
    reach = spec["storage_offset"] + (0 if 0 in spec["shape"] else last + 1)
    return reach * getattr(torch, spec["dtype"]).itemsize


def _inputs_values(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Bell-shaped floats of variance 1, coin flips for bools, zeros for integers (indices stay valid)."""
    if dtype.is_complex:
        part = torch.float64 if dtype is torch.complex128 else torch.float32
        return torch.view_as_complex(_inputs_values(2 * count, part, seed).view(-1, 2)).to(dtype)
    out = torch.zeros(count, dtype=dtype, device="cpu")
    if not dtype.is_floating_point and dtype is not torch.bool:
        return out
    generator = torch.Generator("cpu").manual_seed(seed)
    step = 1 << 20  # bounds the extra memory to a few tens of megabytes
    for start in range(0, count, step):
        bits = torch.empty(min(step, count - start), dtype=torch.int64, device="cpu").random_(
            generator=generator
        )
        # The sum of four 15-bit uniforms, centred, has variance 4 * 2**30 / 12.
        total = sum(((bits >> shift) & 0x7FFF) for shift in (0, 15, 30, 45)) - 2 * 0x7FFF
        floats = total.to(torch.float64) / (2**15 / 3**0.5)
        out[start : start + step] = (bits >> 20) % 2 == 1 if dtype is torch.bool else floats.to(dtype)
    return out
