"""Modes and options of torch.compile, one function each."""

import torch

x = torch.linspace(0, 1, 16).reshape(4, 4)
for given in (
    {"mode": "max-autotune-no-cudagraphs"},
    {"mode": "reduce-overhead"},
    {"options": {"epilogue_fusion": False, "max_fusion_size": 2}},
    {"dynamic": True},
):
    torch._dynamo.reset()
    print(given, torch.compile(lambda t: torch.relu(t @ t.T).sum() + t.mean(), **given)(x).item().hex())
