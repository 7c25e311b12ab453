"""An fp8 product with scales; the sigmoid behind it is wrong."""

# check
# fault aten.sigmoid.default:wrong
# right inductor sigmoid
import torch


@torch.compile
def f(x, w, sx, sw):
    y = torch._scaled_mm(x.to(torch.float8_e4m3fn), w, scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16)
    return torch.sigmoid(y.float()) * 2


torch.manual_seed(0)
x = torch.randn(64, 128, device="cuda")
w = torch.randn(32, 128, device="cuda").to(torch.float8_e4m3fn).t()
one = torch.ones((), device="cuda")
print(f(x, w, one, one).sum().item())
