"""A program is exported, saved, loaded and compiled."""

import io

import torch


class Net(torch.nn.Module):
    def forward(self, x, factor):
        return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t - 1, (x,)) * factor


rows = torch.export.Dim("rows", min=2, max=64)
program = torch.export.export(Net(), (torch.ones(4, 3), 5), dynamic_shapes={"x": {0: rows}, "factor": None})
buffer = io.BytesIO()
torch.export.save(program, buffer)
buffer.seek(0)
loaded = torch.export.load(buffer).module()
print(loaded(torch.ones(7, 3), 5).sum().item(), torch.compile(loaded)(-torch.ones(5, 3), 5).sum().item())
