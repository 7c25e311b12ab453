"""Small programs of which it is known how often their graphs break and how often they are compiled again.

Each is a function that gets `compile` (torch.compile with some backend) and uses it. The numbers were worked out by
hand: `breaks` are lines at which capture stops, each once; `recompiles` are compiles of a piece of code that was
compiled before.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Compile = Callable[..., Callable[..., Any]]


@dataclass(frozen=True)
class Program:
    """A program and what is true of it."""

    run: Callable[[Compile], object]
    breaks: int
    recompiles: int

    @property
    def name(self) -> str:
        return self.run.__name__


PROGRAMS: list[Program] = []


def program(
    breaks: int = 0, recompiles: int = 0
) -> Callable[[Callable[[Compile], object]], Callable[..., object]]:
    def add(run: Callable[[Compile], object]) -> Callable[[Compile], object]:
        PROGRAMS.append(Program(run, breaks, recompiles))
        return run

    return add


X = torch.linspace(-1, 2, 16).reshape(4, 4)


# ---- graph breaks


@program()
def straight(compile):
    compile(lambda x: x.sin() + 1)(X)


@program(breaks=1)
def one_print(compile):
    def f(x):
        y = x.sin()
        print(end="")
        return y.cos()

    compile(f)(X)


@program(breaks=2)
def two_prints_in_one_line(compile):
    def f(x):
        y = x.sin(); print(end=""); y = y.cos(); print(end=""); return y.tan()  # fmt: skip # noqa: E702

    compile(f)(X)


@program(breaks=3)
def prints_in_three_lines(compile):
    def f(x):
        x = x.sin()
        print(end="")
        x = x.cos()
        print(end="")
        x = x.tan()
        print(end="")
        return x + 1

    compile(f)(X)


@program(breaks=1)
def branch_on_data(compile):
    def f(x):
        y = x.sin()
        if y.sum() > 0:
            return y + 1
        return y * 2

    compile(f)(X)


@program(breaks=2)
def print_then_branch(compile):
    """As the example of torch's guide to troubleshooting."""

    def f(a, b):
        a = a / (a.abs() + 1)
        print(end="")
        if b.sum() < 0:
            b = b * -1
        return a * b

    compile(f)(X, -X.abs())


@program(breaks=1)
def both_branches_taken(compile):
    def f(x):
        y = x.sin()
        if y.sum() > 0:
            y = y + 1
        else:
            y = y * 2
        return y.cos()

    compiled = compile(f)
    compiled(torch.ones(4)), compiled(-torch.ones(4))


@program(breaks=1)
def number_of_tensor(compile):
    def f(x):
        n = x.sum().item()
        return x * n

    compile(f)(X)


@program(breaks=2)
def two_numbers_in_one_line(compile):
    compile(lambda x: x * (x.sum().item() + x.max().item()))(X)


@program(breaks=1)
def list_of_tensor(compile):
    compile(lambda x: x * x.int().flatten().tolist()[0])(X)


@program(breaks=1)
def boolean_mask(compile):
    compile(lambda x: x[x > 0].sum())(X)


@program(breaks=1)
def c_function(compile):
    def f(x):
        y = x.sin()
        now = time.time()
        return y + now

    compile(f)(X)


@program(breaks=1)
def disabled_function(compile):
    @torch.compiler.disable
    def inner(x):
        return x + 1

    compile(lambda x: inner(x.sin()).cos())(X)


@program(breaks=1)
def disabled_function_that_calls_another(compile):
    def inner(x):
        return x.cos()

    @torch.compiler.disable(recursive=False)
    def outer(x):
        return inner(x.tan())

    compile(lambda x: outer(x.sin()) + 1)(X)


@program(breaks=1)
def asked_for(compile):
    def f(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    compile(f)(X)


@program(breaks=1)
def print_in_loop(compile):
    def f(x):
        for _ in range(3):
            x = x.sin()
            print(end="")
        return x

    compile(f)(X)


@program()
def loop_without_break(compile):
    def f(x):
        for i in range(3):
            x = x.sin() + i
        return x

    compile(f)(X)


@program(breaks=1)
def print_in_inlined_function(compile):
    def inner(x):
        y = x.cos()
        print(end="")
        return y.tan()

    compile(lambda x: inner(x.sin()) + 1)(X)


@program(breaks=1)
def inlined_at_two_places(compile):
    def inner(x):
        y = x.cos()
        print(end="")
        return y.tan()

    def f(x):
        y = inner(x.sin())
        return inner(y * 2) + 1

    compile(f)(X)


@program(breaks=1)
def three_functions_deep(compile):
    def third(x):
        print(end="")
        return x.tan()

    def second(x):
        return third(x.cos()) + 2

    compile(lambda x: second(x.sin()) + 1)(X)


@program(breaks=1)
def closure(compile):
    scale = 3

    def f(x):
        def inner(y):
            return y * scale

        y = inner(x)
        print(end="")
        return inner(y)

    compile(f)(X)


@program()
def generator_inside(compile):
    def values(x):
        yield x.sin()
        yield x.cos()

    compile(lambda x: sum(values(x)))(X)


@program(breaks=1)
def generator_itself(compile):
    def values(x):
        yield x.sin()

    list(compile(values)(X))


@program()
def dict_keyed_by_tensor(compile):
    compile(lambda x: x + {x: 1}[x])(X)


@program(breaks=1)
def method_of_own_class(compile):
    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            y = x * self.by
            print(end="")
            return y + 1

    scale = Scale(3)
    compile(lambda x: scale(x.sin()).cos())(X)


@program(breaks=1)
def own_context_manager(compile):
    @contextlib.contextmanager
    def around():
        print(end="")
        yield

    def f(x):
        with around():
            y = x.sin()
        return y.cos()

    compile(f)(X)


@program(breaks=1)
def print_in_no_grad(compile):
    def f(x):
        with torch.no_grad():
            y = x.sin()
            print(end="")
            y = y.cos()
        return y

    compile(f)(X)


@program(breaks=1)
def in_place_on_input(compile):
    def f(x):
        x.add_(1)
        print(end="")
        x.mul_(2)
        return x

    compile(f)(X.clone())


@program(breaks=1)
def deep_copy(compile):
    compile(lambda x: copy.deepcopy(x.sin()) + 1)(X)


@program()
def exception_caught(compile):
    def f(x):
        try:
            raise ValueError("no")
        except ValueError:
            return x + 1

    compile(f)(X)


@program()
def numpy_inside(compile):
    compile(lambda x: torch.from_numpy(np.tanh(x.numpy())) + 1)(X)


@program(breaks=2)
def two_functions(compile):
    def f(x):
        y = x.sin()
        print(end="")
        return y.cos()

    def g(x):
        y = x.tan()
        print(end="")
        return y + 1

    compile(f)(X), compile(g)(X)


@program(breaks=1)
def module_in_module(compile):
    class Inner(torch.nn.Module):
        def forward(self, x):
            y = x.sin()
            print(end="")
            return y + 1

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(self.inner(x.cos()))

    compile(Outer())(X)


@program(breaks=1, recompiles=2)
def break_and_new_shape(compile):
    def f(x):
        y = x.sin()
        print(end="")
        return y.cos()

    compiled = compile(f)
    for size in (
        3,
        4,
        5,
    ):  # the second is compiled anew with a size that may vary, before and after the break
        compiled(torch.ones(size))


# ---- recompilations


@program()
def same_shape(compile):
    compiled = compile(lambda x: x.sin())
    compiled(X), compiled(X + 1)


@program(recompiles=1)
def shape_that_varies(compile):
    compiled = compile(lambda x: x.sin())
    for size in (2, 3, 4, 5):
        compiled(torch.ones(size))


@program(recompiles=3)
def shape_kept_static(compile):
    compiled = compile(lambda x: x.sin(), dynamic=False)
    for size in (2, 3, 4, 5):
        compiled(torch.ones(size))


@program()
def shape_dynamic_from_the_start(compile):
    compiled = compile(lambda x: x.sin(), dynamic=True)
    for size in (2, 3, 4, 5):
        compiled(torch.ones(size))


@program(recompiles=1)
def size_one(compile):
    compiled = compile(lambda x: x.sin())
    compiled(torch.ones(4)), compiled(torch.ones(1))


@program(recompiles=1)
def dtype(compile):
    compiled = compile(lambda x: x.sin())
    compiled(X), compiled(X.double())


@program(recompiles=1)
def stride(compile):
    compiled = compile(lambda x: x.sin())
    compiled(X), compiled(X.t())


@program(recompiles=1)
def rank(compile):
    compiled = compile(lambda x: x.sin())
    compiled(X), compiled(X[0])


@program(recompiles=1)
def requires_grad(compile):
    compiled = compile(lambda x: x.sin())
    compiled(X), compiled(X.clone().requires_grad_())


@program(recompiles=1)
def grad_mode(compile):
    compiled = compile(lambda x: x.sin())
    compiled(X)
    with torch.no_grad():
        compiled(X)


@program(recompiles=1)
def int_argument(compile):
    compiled = compile(lambda x, n: x * n)
    for n in (2, 3, 4):
        compiled(X, n)


@program(recompiles=1)
def float_argument(compile):
    compiled = compile(lambda x, n: x * n)
    for n in (0.5, 1.5, 2.5):
        compiled(X, n)


@program(recompiles=2)
def string_argument(compile):
    compiled = compile(lambda x, how: x + len(how))
    for how in ("a", "bb", "ccc"):
        compiled(X, how)


@program(recompiles=2)
def module_attribute(compile):
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.by = 2

        def forward(self, x):
            return x * self.by

    model = Scale()
    compiled = compile(model)
    for model.by in (2, 3, 4):
        compiled(X)


@program(recompiles=1)
def length_of_list(compile):
    compiled = compile(lambda xs: sum(x.sin() for x in xs))
    compiled([X]), compiled([X, X + 1])


@program(recompiles=1)
def keys_of_dict(compile):
    compiled = compile(lambda d: sum(x.sin() for x in d.values()))
    compiled({"a": X}), compiled({"b": X})


@program(recompiles=1)
def function_argument(compile):
    compiled = compile(lambda x, f: f(x))
    compiled(X, lambda x: x + 1), compiled(X, lambda x: x + 2)


@program(recompiles=7)
def more_values_than_the_limit(compile):
    compiled = compile(lambda x, how: x + len(how))
    for n in range(10):
        compiled(X, "a" * n)


@program(recompiles=2)
def two_functions_of_varying_shape(compile):
    first, second = compile(lambda x: x.sin()), compile(lambda x: x.cos())
    for size in (2, 3, 4):
        first(torch.ones(size)), second(torch.ones(size))


@program(recompiles=1)
def after_a_reset(compile):
    compiled = compile(lambda x: x.sin())
    compiled(torch.ones(2)), compiled(torch.ones(3))
    torch.compiler.reset()
    compiled(torch.ones(4))
