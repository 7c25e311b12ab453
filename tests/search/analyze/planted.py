"""Wrong lowerings and wrong code in this process, taken back afterwards, and models with every kind of kernel."""

import contextlib
import functools

import torch
from torch._inductor.codegen import cpp
from torch._inductor.lowering import lowerings

aten = torch.ops.aten


@contextlib.contextmanager
def wrong_lowering(op, change=None):
    """Inside, Inductor lowers `op` to what `change` makes of its result; one is added where nothing is said."""
    original = lowerings[op]
    change = change or (lambda out: lowerings[aten.add.Tensor](out, 1.0))

    @functools.wraps(original)
    def faulty(*args, **kwargs):
        return change(original(*args, **kwargs))

    lowerings[op] = faulty
    try:
        yield
    finally:
        lowerings[op] = original


@contextlib.contextmanager
def wrong_code(name, text="({code}) + decltype({code})(1)"):
    """Inside, generated C++ for `ops.name` is wrong; what is lowered is right."""
    originals = [(each, each.__dict__.get(name)) for each in (cpp.CppOverrides, cpp.CppVecOverrides)]
    for overrides, _ in originals:
        original = getattr(overrides, name)

        def faulty(*args, _original=original, **kwargs):
            return text.format(code=_original(*args, **kwargs))

        setattr(overrides, name, staticmethod(faulty))
    try:
        yield
    finally:
        for overrides, original in originals:
            setattr(overrides, name, original)
