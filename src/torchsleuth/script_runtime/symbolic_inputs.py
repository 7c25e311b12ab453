"""Fake inputs with symbolic sizes, rebuilt from a description, so that a graph compiles dynamic again.

One backed symbol is made per base symbol of the description; sizes such as `2*s0` are computed from those,
and symbolic number inputs share them. Fakes share memory where the real inputs do: compilers look at that.
The text of this file is pasted into repro scripts: standard library and torch only.
"""

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

# The functions that sympy's printer leaves in a size's expression.
SYMBOLIC_FUNCTIONS = {
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Where": torch.sym_ite,
    "ToFloat": torch.sym_float,
    "TruncToInt": torch.sym_int,
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "PowByNatural": operator.pow,
}


def symbolic_inputs(description: dict, real: list) -> tuple[list, FakeTensorMode]:
    """Fake inputs for the JSON form of an `InputsDescription`, and the mode to trace under.

    Plain numbers and strings come from `real`. A description without symbols gives fakes of fixed size.

    Use: `fakes, mode = symbolic_inputs(description, load_inputs(description))`.
    """
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    names = {name: _symbolic_base(env, name, **about) for name, about in description["symbols"].items()}
    fakes: list[Any] = []
    memory: dict[int, torch.UntypedStorage] = {}
    tensors = [spec for spec in description["inputs"] if spec["kind"] == "tensor"]
    for spec, value in zip(description["inputs"], real):
        if spec["kind"] == "symint":
            fakes.append(symbolic_number(spec["expr"], names, spec["value"]))
        elif spec["kind"] == "tensor" and spec.get("same_as") is not None:
            fakes.append(fakes[spec["same_as"]])
        elif spec["kind"] == "tensor":
            group = spec.get("alias_of")
            with mode:
                if group is not None and group not in memory:
                    sharing = [each for each in tensors if each["alias_of"] == group]
                    memory[group] = _symbolic_memory(sharing, names)
                fakes.append(_symbolic_tensor(spec, names, memory.get(group)))
        else:
            fakes.append(value)
    return fakes, mode


@contextmanager
def symbolic_tracing(mode: FakeTensorMode) -> Iterator[None]:
    """What a trace of these fakes must run under: without Python's dispatcher C++ kernels fix the sizes.

    Use: `with symbolic_tracing(mode): traced = make_fx(graph)(*fakes)`.
    """
    with mode, enable_python_dispatcher(), torch.no_grad():
        yield


def _symbolic_base(env: ShapeEnv, name: str, hint: int | None, lower: int | None, upper: int | None) -> Any:
    """2.11..2.15: `create_symbol` and `create_symintnode` take these arguments alike."""
    if hint is None:
        return env.create_unbacked_symint()
    source = ConstantSource(f"__symbol_{name}")
    symbol = env.create_symbol(
        hint,
        source,
        dynamic_dim=DimDynamic.DYNAMIC,
        positive=True if lower is not None and lower >= 0 else None,
        do_not_specialize_zero_one=lower is None or lower < 2,
    )
    if symbol.is_Symbol and (lower is not None or upper is not None):
        known = env.var_to_range[symbol]
        env.constrain_symbol_range(
            symbol, known.lower if lower is None else lower, known.upper if upper is None else upper
        )
    return env.create_symintnode(symbol, hint=hint, source=source)


def symbolic_number(expression: str | None, names: dict, otherwise: Any) -> Any:
    """What an expression comes to with these names: `symbolic_number("2*s0", {"s0": 3}, None) == 6`."""
    if expression is None:
        return otherwise
    try:
        return eval(expression, {"__builtins__": {}}, {**SYMBOLIC_FUNCTIONS, **names})
    except (NameError, SyntaxError, TypeError) as error:
        raise ValueError(f"The symbolic size {expression} cannot be computed here: {error}.") from error


def _symbolic_form(spec: dict, names: dict) -> tuple[list, list, Any]:
    """Sizes, strides and offset of a tensor, numbers or symbols."""

    def numbers(expressions: list | None, otherwise: list) -> list:
        return [
            symbolic_number(e, names, o) for e, o in zip(expressions or [None] * len(otherwise), otherwise)
        ]

    shape = numbers(spec["shape_expr"], spec["shape"])
    stride = numbers(spec["stride_expr"], spec["stride"])
    offset = symbolic_number(spec["offset_expr"], names, spec["storage_offset"])
    # A number of its own, as in a capture: one object would be taken for the size that it is equal to.
    return shape, stride, offset + 0


def _symbolic_memory(specs: list, names: dict) -> torch.UntypedStorage:
    """Memory for all of these tensors."""
    reach: Any = 0
    for spec in specs:
        shape, stride, offset = _symbolic_form(spec, names)
        last = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride))
        reach = torch.sym_max(reach, last * getattr(torch, spec["dtype"]).itemsize)
    return torch.empty(reach, dtype=torch.uint8, device=specs[0]["device"]).untyped_storage()


def _symbolic_tensor(spec: dict, names: dict, memory: torch.UntypedStorage | None = None) -> torch.Tensor:
    shape, stride, offset = _symbolic_form(spec, names)
    dtype = getattr(torch, spec["dtype"])
    if memory is not None:
        fake = torch.empty(0, dtype=dtype, device=spec["device"]).set_(memory, offset, shape, stride)
    elif spec["offset_expr"] is None and spec["storage_offset"] == 0:
        fake = torch.empty_strided(shape, stride, dtype=dtype, device=spec["device"])
    else:
        reach = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride))
        base = torch.empty(reach, dtype=dtype, device=spec["device"])
        fake = base.as_strided(shape, stride, offset)
    if spec.get("layout") == "conj":
        fake = fake.conj()
    elif spec.get("layout") == "neg":
        fake = torch._neg_view(fake)
    if spec["is_parameter"]:
        return torch.nn.Parameter(fake, requires_grad=spec["requires_grad"])
    return fake.requires_grad_(spec["requires_grad"])
