"""Weights as a subclass that holds 8-bit integers and a scale; a relu's code does not compile."""

# right inductor relu
import torch
import torch._inductor.config

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "compile_error"


class Int8(torch.Tensor):
    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data, scale):
        self.data_, self.scale_ = data, scale

    def __tensor_flatten__(self):
        return ["data_", "scale_"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Int8(inner["data_"], inner["scale_"])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            x, w, bias = (*args, None)[:3]
            y = (x @ w.data_.to(x.dtype).t()) * w.scale_
            return y if bias is None else y + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Int8(args[0].data_, args[0].scale_)
        plain = [
            each.data_.to(each.scale_.dtype) * each.scale_[:, None] if isinstance(each, Int8) else each
            for each in args
        ]
        return func(*plain, **(kwargs or {}))


def quantised(linear):
    scale = linear.weight.abs().amax(1) / 127
    data = (linear.weight / scale[:, None]).round().to(torch.int8)
    linear.weight = torch.nn.Parameter(Int8(data, scale.detach()), requires_grad=False)
    return linear


torch.manual_seed(0)
net = torch.nn.Sequential(
    quantised(torch.nn.Linear(64, 64).cuda()), torch.nn.ReLU(), torch.nn.Linear(64, 8).cuda()
)
with torch.no_grad():
    print(torch.compile(net)(torch.randn(16, 64, device="cuda")).sum().item())
