"""Module.compile, a compiled module's state, its copy, and pickled weights."""

import copy
import io

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x).relu()


torch.manual_seed(0)
net = Net()
net.compile()
wrapped = torch.compile(Net())
wrapped.load_state_dict({f"_orig_mod.{key}": value for key, value in net.state_dict().items()})
other = copy.deepcopy(wrapped)
buffer = io.BytesIO()
torch.save(net.state_dict(), buffer)
print(len(buffer.getvalue()) > 0, list(wrapped.state_dict()))
print([model(torch.ones(1, 2)).sum().item().hex() for model in (net, wrapped, other)])
