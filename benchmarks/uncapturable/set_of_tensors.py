import torch


def dedupe(parts):
    seen = set()
    kept = []
    for part in parts:
        key = part.data_ptr()
        if key not in seen:
            seen.add(key)
            kept.append(part)
    return torch.cat(kept)


x = torch.randn(3)
torch.compile(dedupe, fullgraph=True)([x, x, torch.ones(2)])
