"""An autograd function of the program's own, with tensors saved and one it does not differentiate."""

import torch


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low):
        ctx.save_for_backward(x)
        ctx.low = low
        return x.clamp(min=low)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x > ctx.low) * 10, None


x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
out = torch.compile(lambda t: Clamp.apply(t * 2, 0.5).sum())(x)
out.backward()
print(out.item(), x.grad.tolist())
