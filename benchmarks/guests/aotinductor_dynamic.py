"""AOTInductor for any number of rows; the package's weights are replaced afterwards."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # Up to eight elements are written into the code, and nothing is left to replace.
        self.weight = torch.nn.Parameter(torch.arange(1.0, 17.0))

    def forward(self, x):
        return (x * self.weight).cumsum(0) / x.shape[0]


rows = torch.export.Dim("rows", min=2, max=100)
program = torch.export.export(Net(), (torch.ones(4, 16),), dynamic_shapes=({0: rows},))
path = torch._inductor.aoti_compile_and_package(program, package_path="net.pt2")
model = torch._inductor.aoti_load_package(path)
print(model(torch.ones(9, 16)).sum().item().hex(), model(torch.ones(2, 16)).shape)
model.load_constants({"weight": torch.zeros(16)}, check_full_update=True)
print(model(torch.ones(5, 16)).sum().item().hex())
