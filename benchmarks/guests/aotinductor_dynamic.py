"""AOTInductor for any number of rows; the package's weights are replaced afterwards."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (x * self.weight).cumsum(0) / x.shape[0]


rows = torch.export.Dim("rows", min=2, max=100)
program = torch.export.export(Net(), (torch.ones(4, 3),), dynamic_shapes=({0: rows},))
path = torch._inductor.aoti_compile_and_package(program, package_path="net.pt2")
model = torch._inductor.aoti_load_package(path)
print(model(torch.ones(9, 3)).sum().item().hex(), model(torch.ones(2, 3)).shape)
model.load_constants({"weight": torch.zeros(3)}, check_full_update=True)
print(model(torch.ones(5, 3)).sum().item().hex())
