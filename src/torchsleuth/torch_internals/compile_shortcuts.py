"""A compile without the work that comes to nothing: the generated code is the same to the letter, in less time.

Two things take a fifth of the function calls of a compile for a CPU. The rules for dtypes are one object that is made
anew for every operation. Where a loop's length is a multiple of the vector's, there is no rest, yet code for it is
generated and dropped.
Differs between torch versions: the names below are those of 2.11 on; where one is missing, that work is done.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def without_idle_work() -> Iterator[None]:
    """Inside, Inductor generates the code that it would, sooner: `with without_idle_work(): torch.compile(f)(x)`."""
    with _rules_made_once(), _no_code_for_nothing():
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = vars(owner).get(name) if owner is not None else None
    if original is None:
        yield
        return
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _rules_made_once() -> contextlib.AbstractContextManager[None]:
    module = importlib.import_module("torch._inductor.dtype_propagation")

    def make(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def once(rules: Any) -> None:
            if not vars(rules):  # there is one object of this class, and all it holds is made here
                original(rules)

        return once

    return _replaced(getattr(module, "DtypePropagationOpsHandler", None), "__init__", make)


def _no_code_for_nothing() -> contextlib.AbstractContextManager[None]:
    scheduler = importlib.import_module("torch._inductor.scheduler")
    kernels = importlib.import_module("torch._inductor.codegen.cpp")
    virtualized = importlib.import_module("torch._inductor.virtualized")
    of_vectors = getattr(kernels, "CppVecKernel", ())

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def codegen(node: Any, index_vars: Any) -> None:
            kernel = virtualized.V.kernel
            rests = [getattr(kernel, name, None) for name in ("tail_size", "outer_tail_size")]
            if isinstance(kernel, of_vectors) and 0 in rests:
                return
            original(node, index_vars)

        return codegen

    return _replaced(getattr(scheduler, "SchedulerNode", None), "codegen", make)
