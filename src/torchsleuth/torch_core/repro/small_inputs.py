"""A tensor as the constructor call a person would write, when its values matter and when they do not."""

from __future__ import annotations

import base64
import ctypes
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from torchsleuth.torch_core.graphs.attributes import INLINE_ELEMENTS, tensor_expression
from torchsleuth.torch_core.tensors import ScalarSpec, TensorSpec, as_in_memory, reach

# About what a screen holds as text; more goes into a file beside the script.
PACKED_BYTES = 2048


class TooLarge(Exception):
    """Values that matter and do not fit into the text of a script."""


def input_expression(
    spec: TensorSpec | ScalarSpec, value: torch.Tensor | None, values_count: bool
) -> tuple[str, int]:
    """The source of an input, and how many bytes of data stand in it; random numbers only where values count.

    >>> input_expression(describe_tensor(torch.ones(2, 3)), None, False)
    ('torch.ones(2, 3)', 0)
    """
    if isinstance(spec, ScalarSpec):
        return repr(spec.value), 0
    if spec.layout != "strided":
        return _of_another_form(spec, value, values_count)
    if value is None:
        return _made(spec, _any_value(getattr(torch, spec.dtype), values_count)), 0
    plain = value.detach()
    if plain.is_floating_point() and bool(plain.isnan().any()):
        if plain.dim() and bool(plain.isnan().all()):
            return _made(spec, "full", "nan"), plain.element_size()
        plain = _with_plain_nans(plain)
    if _is_one_value(plain):
        number = plain.flatten()[0].item() if plain.numel() else 0
        if number in (0, 1) and not repr(number).startswith("-"):
            return _made(spec, "ones" if number else "zeros"), 0
        if plain.dim() and not plain.is_complex() and math.isfinite(number):
            return _made(spec, "full", repr(number)), plain.element_size()
    if plain.numel() > INLINE_ELEMENTS:
        raise TooLarge(f"an input of {plain.numel()} elements whose values matter")
    text, kept = tensor_expression(plain, "x", shared=False)
    if kept is not None:
        raise TooLarge("an input whose values matter cannot be written as numbers")
    if plain.dtype is torch.float32:
        text = text.replace(", dtype=torch.float32", "")
    return text + _moved(plain, spec.device) + _gradient(spec), plain.numel() * plain.element_size()


def _with_plain_nans(value: torch.Tensor) -> torch.Tensor:
    """The tensor, laid out alike, with NaNs as a text has them: 0/0 is one with a sign."""
    memory = value.untyped_storage()
    flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(memory).clone()
    flat[flat.isnan()] = math.nan
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def _gradient(spec: TensorSpec | torch.Tensor) -> str:
    """What makes a tensor one that asks for a gradient; a copy of it is computed, no leaf."""
    if not spec.requires_grad:
        return ""
    return ".requires_grad_()" if spec.is_leaf else ".requires_grad_().clone()"


def _any_value(dtype: torch.dtype, values_count: bool) -> str:
    """What makes a tensor whose values do not matter: of integers zeros, so that indices stay valid."""
    if dtype.is_floating_point or dtype.is_complex:
        return "randn" if values_count else "ones"
    return "ones" if dtype is torch.bool and not values_count else "zeros"


def _is_one_value(plain: torch.Tensor) -> bool:
    """Whether all elements are the same number, 0.0 and -0.0 being two."""
    one = bool((plain == plain.flatten()[:1]).all())
    return one and (not plain.is_floating_point() or len(torch.signbit(plain.float()).unique()) <= 1)


def memory_of(
    specs: Sequence[TensorSpec], values: Sequence[torch.Tensor | None]
) -> tuple[TensorSpec, torch.Tensor | None]:
    """The memory under tensors that share it, as one flat tensor: its form, and its value where one of theirs matters.

    >>> memory_of([describe_tensor(torch.ones(2, 3)[1])], [None])[0].shape
    (6,)
    """
    # A view of larger elements needs whole ones.
    first = max(specs, key=lambda spec: getattr(torch, spec.dtype).itemsize)
    size = getattr(torch, first.dtype).itemsize
    if any(spec.device != first.device for spec in specs):
        raise TooLarge("inputs of several devices on one memory")
    reaches = ((spec.storage_offset + reach(spec.shape, spec.stride), spec.dtype) for spec in specs)
    length = max(-(-count * getattr(torch, dtype).itemsize // size) for count, dtype in reaches)
    form = replace(first, shape=(length,), stride=(1,), storage_offset=0, alias_of=None, requires_grad=False)
    kept = next((value for value in values if value is not None), None)
    if kept is None:
        return form, None
    flat = torch.empty(0, dtype=getattr(torch, first.dtype), device="cpu").set_(
        kept.detach().untyped_storage()
    )
    if flat.numel() < length:
        raise TooLarge("a part of an element on memory that inputs share")
    return form, flat[:length]


def view_expression(spec: TensorSpec, memory: str, dtype: str | None = None) -> str:
    """A tensor laid over memory that has a name, and elements of a `dtype` where those are not its own.

    >>> view_expression(describe_tensor(torch.ones(2, 3)[1]), "base", "int64")
    'base.view(torch.float32).as_strided((3,), (1,), 3)'
    """
    memory = memory if dtype in (None, spec.dtype) else f"{memory}.view(torch.{spec.dtype})"
    place = f", {spec.storage_offset}" if spec.storage_offset else ""
    return f"{memory}.as_strided({tuple(spec.shape)}, {tuple(spec.stride)}{place}){_gradient(spec)}"


def _of_another_form(spec: TensorSpec, value: torch.Tensor | None, values_count: bool) -> tuple[str, int]:
    """A tensor that is not its memory: made of a plain one, as the program made it."""
    if spec.layout == "zero":
        return f"torch._efficientzerotensor({tuple(spec.shape)}, dtype=torch.{spec.dtype})", 0
    plain = TensorSpec(**{**as_in_memory(asdict(spec)), "requires_grad": False})
    text, size = input_expression(plain, value, values_count)
    made = {"mkldnn": f"{text}.to_mkldnn()", "conj": f"{text}.conj()", "neg": f"torch._neg_view({text})"}
    return made[spec.layout] + _gradient(spec), size


def _moved(value: torch.Tensor, device: str) -> str:
    """What puts a value onto its device that a search, which sees none, holds in main memory."""
    return f".to({device!r})" if value.device.type == "cpu" and device != "cpu" else ""


def packed_expression(
    value: torch.Tensor, file: str, files: dict[str, bytes], device: str = "cpu"
) -> tuple[str, int]:
    """The source of an input that is too long to write as numbers: in the text as base64, or in `files`, under `file`.

    >>> packed_expression(torch.arange(2), "x.bin", {})
    ("torch.frombuffer(bytearray(base64.b64decode('AAAAAAAAAAABAAAAAAAAAA==')), dtype=torch.int64)", 16)
    """
    plain = value.detach().cpu()
    span = reach(plain.shape, plain.stride())
    if plain.layout is not torch.strided or plain.is_quantized or plain.is_conj() or plain.is_neg():
        raise TooLarge("an input whose values matter is not plain memory")
    flat = plain.as_strided((span,), (1,)).contiguous()
    data = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
    if len(data) <= PACKED_BYTES:
        source = f"base64.b64decode({base64.b64encode(data).decode()!r})"
    else:
        files[file] = data
        source = f"pathlib.Path(__file__).with_name({file!r}).read_bytes()"
    text = f"torch.frombuffer(bytearray({source}), dtype={plain.dtype})"
    if tuple(plain.shape) != (span,) or tuple(plain.stride()) != (1,):
        strides = "" if plain.is_contiguous() else f", {plain.stride()}"
        text += f".{'as_strided' if strides else 'view'}({tuple(plain.shape)}{strides})"
    if value.device.type != "cpu":
        text += f".to({str(value.device)!r})"
    return text + _moved(value, device) + _gradient(value), len(data)


def _made(spec: TensorSpec, how: str, *more: str) -> str:
    dtype = getattr(torch, spec.dtype)
    sizes = ", ".join(map(str, spec.shape)) or "()"
    options: dict[str, object] = {}
    if dtype is not torch.float32:
        options["dtype"] = dtype
    if spec.device != "cpu":
        options["device"] = repr(spec.device)
    dense = torch.empty(spec.shape, device="meta").stride()
    if (tuple(spec.stride) == dense and not spec.storage_offset) or 0 in spec.shape:
        if spec.requires_grad:
            options["requires_grad"] = True
        listed = [repr(tuple(spec.shape)) if how == "full" else sizes, *more]
        text = f"torch.{how}({', '.join([*listed, *(f'{k}={v}' for k, v in options.items())])})"
        return text if spec.is_leaf or not spec.requires_grad else f"{text}.clone()"
    span = spec.storage_offset + reach(spec.shape, spec.stride)
    listed = [f"({span},)" if how == "full" else str(span), *more]
    flat = f"torch.{how}({', '.join([*listed, *(f'{k}={v}' for k, v in options.items())])})"
    return view_expression(spec, flat)
