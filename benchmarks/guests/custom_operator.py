"""An operator of the program's own with its fake kernel and gradient; another that changes its argument."""

import torch


@torch.library.custom_op("guests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: grad * 2)


@torch.library.custom_op("guests::count_", mutates_args={"x"})
def count_(x: torch.Tensor) -> None:
    x.add_(1)


@torch.compile(fullgraph=True)
def f(x, counter):
    count_(counter)
    return twice(x.sin()).sum()


x, counter = torch.ones(3, requires_grad=True), torch.zeros(2)
for _ in range(2):
    f(x, counter).backward()
print(x.grad.tolist(), counter.tolist())
