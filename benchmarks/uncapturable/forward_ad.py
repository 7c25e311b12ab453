import torch
import torch.autograd.forward_ad as fwAD


class Tangent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())

    def forward(self, x, v):
        with fwAD.dual_level():
            dual = fwAD.make_dual(x, v)
            out = self.net(dual)
            value, tangent = fwAD.unpack_dual(out)
        return value * 2, tangent


torch.manual_seed(0)
torch.compile(Tangent(), fullgraph=True)(torch.randn(2, 4), torch.ones(2, 4))
