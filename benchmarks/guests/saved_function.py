"""A function is compiled ahead of time after another compile, saved, loaded, called."""

import torch

print(torch.compile(lambda x: x.sin())(torch.zeros(3)).tolist())


def scaled(x, y):
    return x.cos() * 2 + y


made = torch.compile(scaled, fullgraph=True).aot_compile(((torch.ones(3), torch.ones(3)), {}))
print(made(torch.zeros(3), torch.zeros(3)).tolist())
made.save_compiled_function("scaled.bin")
torch._dynamo.reset()
with open("scaled.bin", "rb") as file:
    again = torch.compiler.load_compiled_function(file)
print(again(torch.zeros(3), torch.ones(3)).tolist())
