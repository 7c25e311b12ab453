"""What was compiled is saved as one blob, the caches are cleared, and the blob is loaded."""

import torch


@torch.compile
def wave(x):
    return (x * 3).sin().sum()


def once():
    x = torch.linspace(0, 1, 8, requires_grad=True)
    wave(x).backward()
    return x.grad.sum().item().hex()


print(once())
blob, info = torch.compiler.save_cache_artifacts()
print(sorted(info.artifacts))
torch._dynamo.reset()
torch.compiler.load_cache_artifacts(blob)
print(once())
