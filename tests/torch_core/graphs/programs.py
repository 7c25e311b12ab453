"""Small programs that between them use what real graphs hold; each gives its function and inputs."""

import functools
import math

import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    """Linear layers with a shared weight, a buffer, autocast and dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.arange(4.0))
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        x = torch.relu(self.first(x)) + self.shift
        with torch.autocast("cpu", torch.bfloat16):
            x = self.second(x)
        return self.drop(x).float()


@torch.library.custom_op("sleuthtests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: grad * 2)


@torch.library.custom_op("sleuthtests::fill_twice", mutates_args=("out",))
def fill_twice(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


@fill_twice.register_fake
def _(x, out):
    return None


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] ** 2 * grad


def mutates_and_aliases(x):
    flat = x.view(-1)
    flat.add_(1)
    x[0, 1] = math.nan
    return {"turned": x.t(), "both": (flat, x.to(torch.float64))}


def literals(x):
    left, right = x.split([1, 2], 1)
    with torch.no_grad():
        low = torch.clamp(left, -math.inf, math.nan)
    cut = x[..., None, ::2]
    image = x.view(1, 1, *x.shape).to("cpu", memory_format=torch.channels_last)
    return cut, low, right, torch.finfo(x.dtype).max * x, image, x.new_zeros(3, dtype=torch.complex64)


def control_flow(x):
    return torch.cond(
        x.sum() > 0, lambda a: a.sin(), lambda a: a.cos() + torch.tensor([1.0, 2.0]).sum(), (x,)
    )


def loops(x):
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))[1]


def scans(x):
    return scan(lambda carry, row: (carry + row, carry * 1), torch.zeros(3), x)[1]


def attends(q):
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + i - j)


def checkpoints(x, y):
    return checkpoint(lambda a, b: torch.sin(a @ b), x, y, use_reentrant=False)


def writes_out(x):
    out = torch.empty_like(x)
    fill_twice(x, out)
    return out + 1


def large_constants(x):
    return x * torch.tensor([float(number) for number in range(80)])[:3] + torch.tensor([0.5, -0.0, math.inf])


def sizes(x, y):
    both = torch.cat([x, x], 0)
    return (both * y).sum(1) + both.shape[0] * 3, min(x.shape[0], 7)


def grows_everything(x):
    x = x.clone()
    x[:, 0] = 1
    x[x > 0] = 2.5
    x += 1
    return x, ~(x > 1), -x, x @ x.t(), x // 2, 2**x


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() + 1


def _rows(*shape, grad=False):
    torch.manual_seed(1)
    return torch.randn(*shape).requires_grad_(grad)


# name -> (function, inputs, options of capture)
PROGRAMS = {
    "net": lambda: (Net(), [_rows(2, 4)], {"backward": True}),
    "net dynamic": lambda: (Net(), [_rows(3, 4)], {"backward": True, "dynamic": True}),
    "cond": lambda: (control_flow, [_rows(3, 4)], {}),
    "cond dynamic": lambda: (control_flow, [_rows(3, 4)], {"dynamic": True}),
    "while_loop": lambda: (loops, [_rows(3, 4)], {}),
    "scan": lambda: (scans, [_rows(5, 3)], {}),
    "flex attention": lambda: (attends, [_rows(1, 2, 128, 16)], {}),
    "checkpoint": lambda: (checkpoints, [_rows(3, 3, grad=True), _rows(3, 3)], {"backward": True}),
    "vmap": lambda: (lambda x: torch.vmap(lambda a: a.sin() + a.sum())(x), [_rows(5, 3)], {}),
    "grad": lambda: (lambda x: torch.func.grad(lambda a: a.sin().sum())(x), [_rows(5)], {}),
    "custom op": lambda: (lambda x: twice(x) + 1, [_rows(5, grad=True)], {"backward": True}),
    "mutating custom op": lambda: (writes_out, [_rows(5)], {}),
    "autograd function": lambda: (Cube.apply, [_rows(5, grad=True)], {"backward": True}),
    "nested region": lambda: (lambda x: region(region(x)), [_rows(5, grad=True)], {"backward": True}),
    "mutation": lambda: (mutates_and_aliases, [_rows(2, 3)], {}),
    "literals": lambda: (literals, [_rows(2, 3)], {}),
    "large constants": lambda: (large_constants, [_rows(3)], {}),
    "sizes": lambda: (sizes, [_rows(4, 6), _rows(8, 6)], {"dynamic": True}),
    "operators": lambda: (grows_everything, [_rows(3, 3)], {"dynamic": True}),
    "batch norm": lambda: (
        torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()),
        [_rows(2, 3, 8, 8)],
        {"backward": True},
    ),
    "random": lambda: (lambda x: torch.rand(3) + torch.randint(0, 5, (3,)) + x, [_rows(3)], {}),
}


@functools.cache
def graphs_of(name):
    """The captured graphs of a program, once per test session."""
    from captured import capture

    fn, inputs, options = PROGRAMS[name]()
    return capture(fn, *inputs, **options)
