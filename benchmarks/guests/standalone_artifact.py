"""A graph is compiled by itself, saved and loaded."""

import torch
from torch._inductor import CompiledArtifact, standalone_compile
from torch.fx.experimental.proxy_tensor import make_fx

x = torch.linspace(0, 1, 6)
graph = make_fx(lambda t: [t.sin() + t, t.sum()], tracing_mode="fake")(x)
artifact = standalone_compile(graph, [x], dynamic_shapes="from_example_inputs")
print([value.sum().item().hex() for value in artifact(x)])
artifact.save(path="artifact.bin", format="binary")
loaded = CompiledArtifact.load(path="artifact.bin", format="binary")
print([value.sum().item().hex() for value in loaded(x)])
