"""Custom operators that do what they say, and some that do not. Defined with the low-level API, which checks nothing."""

import torch

_library = torch.library.Library("sleuthmade", "FRAGMENT")
_kept = [_library]


def made(schema, real, fake=None):
    """Defines `sleuthmade::<schema>` once and returns its overload."""
    name = schema.partition("(")[0]
    if not hasattr(torch.ops.sleuthmade, name):
        _library.define(schema)
        _library.impl(name, real, "CompositeExplicitAutograd")
        if fake is not None:
            torch.library.register_fake(f"sleuthmade::{name}", fake, lib=_library)
    return getattr(torch.ops.sleuthmade, name).default


def _poke(x, index, value):
    x.view(-1)[index] = value
    return x.clone()


double = made("double(Tensor x) -> Tensor", lambda x: x * 2, lambda x: torch.empty_like(x))
wrong_shape = made(
    "wrong_shape(Tensor x) -> Tensor", lambda x: x.t().contiguous(), lambda x: torch.empty_like(x)
)
wrong_stride = made(
    "wrong_stride(Tensor x) -> Tensor", lambda x: x.t().contiguous().t(), lambda x: torch.empty_like(x)
)
wrong_dtype = made("wrong_dtype(Tensor x) -> Tensor", lambda x: x.double(), lambda x: torch.empty_like(x))
wrong_offset = made(
    "wrong_offset(Tensor x) -> Tensor", lambda x: torch.cat([x, x])[len(x) :], lambda x: torch.empty_like(x)
)
too_many = made(
    "too_many(Tensor x) -> Tensor[]",
    lambda x: [x + 1, x + 2, x + 3],
    lambda x: [torch.empty_like(x) for _ in "ab"],
)
hidden_view = made(
    "hidden_view(Tensor x) -> Tensor", lambda x: x.view(-1), lambda x: torch.empty_like(x).view(-1)
)
hidden_change = made(
    "hidden_change(Tensor x) -> Tensor", lambda x: x.add_(1) * 2, lambda x: torch.empty_like(x)
)
twins = made(
    "twins(Tensor x) -> (Tensor, Tensor)",
    lambda x: (y := x + 1, y.view(-1)),
    lambda x: (x + 1, (x + 1).view(-1)),
)
twin_list = made(
    "twin_list(Tensor x) -> Tensor[]", lambda x: [y := x + 1, y.t()], lambda x: [x + 1, (x + 1).t()]
)
declared_change = made("declared_change(Tensor(a!) x) -> ()", lambda x: (x.add_(1), None)[1], lambda x: None)
declared_view = made("declared_view(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1), lambda x: x.view(-1))
values_only = made(
    "values_only(Tensor x) -> Tensor",
    lambda x: x[x > 0],
    lambda x: x.new_empty([torch.library.get_ctx().new_dynamic_size()]),
)
poke = made(
    "poke(Tensor x, int index, float value) -> Tensor", _poke, lambda x, index, value: torch.empty_like(x)
)
strided = made(
    "strided(Tensor x, int[] size, int[] real, int[] fake) -> Tensor",
    lambda x, size, real, fake: torch.empty_strided(size, real),
    lambda x, size, real, fake: torch.empty_strided(size, fake),
)
sized = made(
    "sized(Tensor x, int[] real, int[] fake) -> Tensor",
    lambda x, real, fake: torch.zeros(real),
    lambda x, real, fake: torch.zeros(fake),
)
