"""Tensors on disk: each storage once, under the hash of its bytes, and a small JSON file per tensor.

`storages/<sha256>.safetensors` holds the bytes (any safetensors reader opens it), `tensors/<name>.json` the
dtype, sizes, strides and offset. Two names that viewed one storage share it again when read; nothing is
pickled.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, BinaryIO

import torch

from torchsleuth.core.protocol.files import write_whole
from torchsleuth.script_runtime.inputs import InputsDamaged, read_storage, storage_bytes, view_storage
from torchsleuth.torch_core.tensors.specs import TensorSpec, describe_tensor, tensor_spec
from torchsleuth.torch_internals.modes import outside_all_modes

__all__ = ["ContentStoreReader", "ContentStoreWriter", "InputsDamaged"]

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
        """The description of a tensor, without writing it; `storage` is its content hash where known."""
        return replace(describe_tensor(tensor), storage=storage)

    def write_storage(self, storage: torch.UntypedStorage) -> str:
        """Keep a storage's bytes, unless they are there already; answers their hash."""
        with outside_all_modes(), torch.no_grad():
            on_cpu = storage if storage.device.type == "cpu" else storage.cpu()
        data = storage_bytes(on_cpu)
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / "storages" / f"{digest}.safetensors"
        if not path.exists():
            _write_private(path, lambda file: _write_safetensors(file, data))
        return digest

    def write_tensor(self, name: str, tensor: torch.Tensor) -> TensorSpec:
        """Keep a tensor under a name such as `"layers/0/weight"`; answers its description."""
        spec = self.compute_tensor_metadata(tensor)
        spec = replace(spec, storage=self.write_storage(tensor.untyped_storage()))
        text = json.dumps(asdict(spec), indent=1).encode()
        _write_private(_tensor_file(self.folder, name), text)
        return spec


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
