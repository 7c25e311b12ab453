"""What `compare` needs to know of a tensor or an operator that public torch does not tell.

One function per question. All of them exist unchanged in torch 2.11 to 2.15. Dynamo and Inductor are
imported only when asked about: importing them takes a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor


def is_fake(value: object) -> bool:
    """Whether `value` is a tensor without data (a FakeTensor)."""
    return isinstance(value, FakeTensor)


def is_functional_op(target: object) -> bool:
    """Whether `target` is an operator whose schema neither writes to nor aliases its inputs."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return False
    return all(a.alias_info is None for a in schema.arguments) and all(
        r.alias_info is None for r in schema.returns
    )


def written_arguments(target: object) -> tuple[int, ...]:
    """Positions of the arguments an operator writes to, `()` when it has no schema."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return ()
    return tuple(
        i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )


@contextlib.contextmanager
def inductor_draws_like_eager() -> Iterator[None]:
    """While active, graphs compiled by Inductor call eager's random ops in eager's order.

    It is read at compile time: compile inside the context.
    """
    import torch._inductor.config as inductor_config

    with inductor_config.patch(fallback_random=True):
        yield


def torch_own_same(ref: Any, res: Any, fp64_ref: Any = None, **options: Any) -> bool:
    """PyTorch's own comparison, the baseline of `benchmarks/compare.py`."""
    from torch._dynamo.utils import same

    return bool(same(ref, res, fp64_ref, log_error=lambda *_: None, **options))


def forget_compiled() -> None:
    """Drop every compiled graph of this process, so that the next one starts fresh."""
    import torch._dynamo

    torch._dynamo.reset()
