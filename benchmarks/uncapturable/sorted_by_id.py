import torch


def dedupe(parts):
    seen = {}
    for part in sorted([part + 0 for part in parts], key=id):
        seen[part.shape] = part
    return torch.cat(list(seen.values()))


x = torch.randn(3)
torch.compile(dedupe, fullgraph=True)([x, x, torch.ones(2)])
