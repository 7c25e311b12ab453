"""Tensors survive the store with their bits, their layout and their sharing."""

import json
import os
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsleuth.torch_core.tensors import ContentStoreReader, ContentStoreWriter, InputsDamaged

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def raw(tensor):
    return tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).tolist()


def form(tensor):
    return (
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.requires_grad,
        isinstance(tensor, torch.nn.Parameter),
    )


@st.composite
def views(draw):
    """A random strided view, overlapping or not, over random bytes."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    stride = [draw(st.integers(0, 4)) for _ in shape]
    offset = draw(st.integers(0, 3))
    reach = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride) if size)
    size = reach * dtype.itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        content = bytes(byte % 2 for byte in content)
    flat = torch.tensor(list(content), dtype=torch.uint8).view(dtype)
    return flat.as_strided(shape, stride, offset)


@settings(max_examples=100, deadline=None)
@given(views())
def test_any_strided_tensor_is_read_back_exactly(tmp_path_factory, tensor):
    folder = tmp_path_factory.mktemp("store")
    ContentStoreWriter(folder).write_tensor("x", tensor)
    again = ContentStoreReader(folder).read_tensor("x")
    assert form(again) == form(tensor)
    assert raw(again) == raw(tensor)


def test_views_of_one_storage_share_it_again_and_it_is_written_once(tmp_path):
    base = torch.arange(12.0)
    writer = ContentStoreWriter(tmp_path)
    writer.write_tensor("base", base)
    writer.write_tensor("layers/0/view", base[2:8].view(2, 3).t())
    assert len(list((tmp_path / "storages").iterdir())) == 1
    reader = ContentStoreReader(tmp_path)
    read_base, view = reader.read_tensor("base"), reader.read_tensor("layers/0/view")
    read_base[2] = -1
    assert view[0, 0] == -1


def test_a_parameter_comes_back_as_a_parameter(tmp_path):
    writer = ContentStoreWriter(tmp_path)
    writer.write_tensor("w", torch.nn.Parameter(torch.ones(2)))
    writer.write_tensor("frozen", torch.nn.Parameter(torch.ones(2), requires_grad=False))
    reader = ContentStoreReader(tmp_path)
    assert isinstance(reader.read_tensor("w"), torch.nn.Parameter) and reader.read_tensor("w").requires_grad
    assert isinstance(reader.read_tensor("frozen"), torch.nn.Parameter)
    assert not reader.read_tensor("frozen").requires_grad


def test_other_tools_read_the_storage_files(tmp_path):
    from safetensors.torch import load_file

    spec = ContentStoreWriter(tmp_path).write_tensor("x", torch.arange(5, dtype=torch.int16))
    loaded = load_file(tmp_path / "storages" / f"{spec.storage}.safetensors")["storage"]
    assert loaded.view(torch.int16).tolist() == [0, 1, 2, 3, 4]


def test_metadata_is_known_without_reading_the_bytes(tmp_path):
    writer = ContentStoreWriter(tmp_path)
    tensor = torch.ones(2, 3).t()
    written = writer.write_tensor("x", tensor)
    (tmp_path / "storages" / f"{written.storage}.safetensors").unlink()
    spec = ContentStoreReader(tmp_path).read_tensor_metadata("x")
    assert spec == writer.compute_tensor_metadata(tensor)
    assert writer.compute_tensor_metadata(tensor + 1).storage != spec.storage  # a run that gave other numbers
    assert (spec.shape, spec.stride, spec.storage_nbytes) == ((3, 2), (1, 3), 24)


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "longer", "huge header", "gone"])
def test_a_damaged_file_gives_one_clear_error(tmp_path, damage):
    spec = ContentStoreWriter(tmp_path).write_tensor("x", torch.arange(100))
    path = tmp_path / "storages" / f"{spec.storage}.safetensors"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {
                "cut": data[:-9],
                "empty": b"",
                "flip": data[:-1] + bytes([data[-1] ^ 1]),
                "longer": data + b"more",
                "huge header": b"\xff" * 7 + data[7:],
            }[damage]
        )
    with pytest.raises(InputsDamaged, match=path.name) as error:
        ContentStoreReader(tmp_path).read_tensor("x")
    assert "\n" not in str(error.value)


def test_damaged_metadata_and_unknown_names_give_one_clear_error(tmp_path):
    ContentStoreWriter(tmp_path).write_tensor("x", torch.ones(1))
    reader = ContentStoreReader(tmp_path)
    with pytest.raises(InputsDamaged, match="no tensor named 'y'"):
        reader.read_tensor("y")
    (tmp_path / "tensors" / "x.json").write_text(json.dumps([1, 2]))
    with pytest.raises(InputsDamaged, match="damaged"):
        reader.read_tensor("x")


@pytest.mark.parametrize("name", ["", "../x", "/x", "a//b", "a/../b"])
def test_a_name_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(ValueError, match="no name for a tensor"):
        ContentStoreWriter(tmp_path).write_tensor(name, torch.ones(1))


def test_a_crash_while_writing_leaves_no_half_file(tmp_path, monkeypatch):
    import torchsleuth.torch_core.tensors as store

    def breaks(file, data):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_write_safetensors", breaks)
    with pytest.raises(KeyboardInterrupt):
        ContentStoreWriter(tmp_path).write_tensor("x", torch.ones(1))
    assert list((tmp_path / "storages").iterdir()) == []


def test_nothing_is_pickled(tmp_path):
    ContentStoreWriter(tmp_path).write_tensor("x", torch.ones(3))
    names = sorted(path.suffix for path in tmp_path.rglob("*") if path.is_file())
    assert names == [".json", ".safetensors"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_tensor_comes_back_on_its_device(tmp_path):
    tensor = torch.arange(6.0, device="cuda").view(2, 3).t()
    ContentStoreWriter(tmp_path).write_tensor("x", tensor)
    reader = ContentStoreReader(tmp_path)
    again = reader.read_tensor("x")
    assert again.device == tensor.device and again.stride() == tensor.stride() and torch.equal(again, tensor)
    assert reader.read_tensor("x", device="cpu").device.type == "cpu"


@pytest.mark.parametrize(
    "header",
    [
        {"storage": {"data_offsets": [0, 10**15]}},
        {"storage": {"data_offsets": [0, -1]}},
        {"storage": {"data_offsets": [-8, 0]}},
        {"storage": {"data_offsets": [0, "8"]}},
        {"storage": {"data_offsets": [0]}},
        {"storage": []},
        [],
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(tmp_path, header):
    spec = ContentStoreWriter(tmp_path).write_tensor("x", torch.ones(2))
    text = json.dumps(header).encode()
    path = tmp_path / "storages" / f"{spec.storage}.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(InputsDamaged):
        ContentStoreReader(tmp_path).read_tensor("x")


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_storage_is_not_waited_for(tmp_path):
    spec = ContentStoreWriter(tmp_path).write_tensor("x", torch.ones(2))
    path = tmp_path / "storages" / f"{spec.storage}.safetensors"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputsDamaged):
        ContentStoreReader(tmp_path).read_tensor("x")
