"""AOTInductor writes a package; it is loaded and run, and its weights are listed."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, scale=None):
        return {"y": torch.tanh(self.layer(x)), "s": scale * 2}


torch.manual_seed(0)
x, scale = torch.ones(2, 4), torch.tensor(3.0)
path = torch._inductor.aoti_compile_and_package(
    torch.export.export(Net().eval(), (x,), {"scale": scale}), package_path="net.pt2"
)
model = torch._inductor.aoti_load_package(path)
for _ in range(3):
    out = model(x, scale=scale)
print(out["y"].sum().item().hex(), out["s"].item(), sorted(model.get_constant_fqns()))
