"""What a node's result looks like, in a few characters: `f32[8, 32]`, `Sym(2*s0)`, `(f32[3], i64[3])`.

Read from the metadata of the trace (`val` after AOTAutograd, `example_value` after Dynamo). Symbolic sizes
are shown, never compared or evaluated, so that reading a graph adds no guard to it.
"""

import torch

_SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
# More than a comment at the end of a line can hold.
_MOST_PARTS = 4


def brief(node: torch.fx.Node) -> str:
    """The short form of a node's result, or `""` where the graph does not say.

    >>> brief(node)
    'f32[2]'
    """
    meta = node.meta
    if "val" in meta:
        return _describe(meta["val"])
    return _describe(meta["example_value"]) if "example_value" in meta else ""


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        dtype = _SHORT.get(value.dtype) or str(value.dtype).removeprefix("torch.")
        device = value.device.type
        sizes = ", ".join(map(str, value.shape))
        return f"{dtype}[{sizes}]" if device == "cpu" else f"{dtype}[{sizes}] {value.device}"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"Sym({value})"
    if isinstance(value, list | tuple):
        parts = [_describe(part) for part in value[:_MOST_PARTS]] + ["..."] * (len(value) > _MOST_PARTS)
        return f"({', '.join(parts)})"
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    return ""
