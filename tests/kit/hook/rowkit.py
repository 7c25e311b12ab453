"""One compiler fault per part of the compiler, for the tests of triage: SLEUTH_TEST_ROW names some.

Each is put into every Python process, as a bug of the installed torch would be.
"""

import functools

from faultkit import after_import


def bad_decomposition() -> None:
    import torch
    from torch._inductor import decomposition

    aten = torch.ops.aten
    decomposition.decompositions[aten.silu.default] = lambda x: x * torch.sigmoid(x) + 0.5
    decomposition.fast_random_decomps.cache_clear()


def wrap_lowering(name: str, wrong_when) -> None:
    import torch
    from torch._inductor.lowering import lowerings

    op = getattr(torch.ops.aten, name).default
    original = lowerings[op]

    @functools.wraps(original)
    def faulty(x, *args, **kwargs):
        out = original(x, *args, **kwargs)
        return lowerings[torch.ops.aten.add.Tensor](out, 1.0) if wrong_when(x) else out

    lowerings[op] = faulty


def without_casts() -> None:
    from torch._inductor import config

    wrap_lowering("sin", lambda x: not config.emulate_precision_casts)


def with_symbols() -> None:
    wrap_lowering("cumsum", lambda x: any(getattr(s, "free_symbols", None) for s in x.get_size()))


def two_flags() -> None:
    from torch._inductor import config

    wrap_lowering(
        "sin", lambda x: config.cpp.min_chunk_size == 256 and config.cpp.max_horizontal_fusion_size == 8
    )


def wrap_code(name: str, change) -> None:
    from torch._inductor.codegen import cpp

    for overrides in (cpp.CppOverrides, cpp.CppVecOverrides):
        original = getattr(overrides, name)
        setattr(overrides, name, staticmethod(functools.partial(_changed, original, change)))


def _changed(original, change, *args, **kwargs):
    return change(original(*args, **kwargs))


def wrong_code() -> None:
    wrap_code("sin", lambda code: f"({code}) + decltype({code})(1)")


def code_that_does_not_compile() -> None:
    wrap_code("cos", lambda code: f"no_such_function({code})")


def wrong_vector_code() -> None:
    from torch._inductor.codegen import cpp

    original = cpp.CppVecOverrides.sin
    cpp.CppVecOverrides.sin = staticmethod(lambda x: f"({original(x)}) + decltype({original(x)})(1)")


def wrong_when_fused() -> None:
    """The second operator of a kernel forgets the first: shows only where two are in one loop."""
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import lowerings

    aten = torch.ops.aten
    original = lowerings[aten.cos.default]

    @functools.wraps(original)
    def faulty(x):
        inlined = isinstance(getattr(getattr(x, "data", None), "data", None), ir.Pointwise)
        return original(lowerings[aten.add.Tensor](x, 1.0) if inlined else x)

    lowerings[aten.cos.default] = faulty


ROWS = {
    "bad_decomposition": ("torch._inductor.decomposition", bad_decomposition),
    "without_casts": ("torch._inductor.graph", without_casts),
    "with_symbols": ("torch._inductor.graph", with_symbols),
    "two_flags": ("torch._inductor.graph", two_flags),
    "wrong_code": ("torch._inductor.codegen.cpp", wrong_code),
    "code_that_does_not_compile": ("torch._inductor.codegen.cpp", code_that_does_not_compile),
    "wrong_vector_code": ("torch._inductor.codegen.cpp", wrong_vector_code),
    "wrong_when_fused": ("torch._inductor.graph", wrong_when_fused),
}


def install(name: str) -> None:
    module, fault = ROWS[name]
    after_import(module, fault)
