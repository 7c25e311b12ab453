"""CUDA graphs: the same function several times, outputs kept by the program."""
# gpu

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).cuda()
forward = torch.compile(net, mode="reduce-overhead")
x = torch.randn(8, 16, device="cuda")
with torch.no_grad():
    for i in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        out = forward(x * i).clone()
        print(out.sum().item().hex())
