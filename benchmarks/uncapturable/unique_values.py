import torch


def histogram(labels):
    values, counts = torch.unique(labels, return_counts=True)
    return values, counts.float() / counts.sum()


def loss(logits, labels):
    values, weights = histogram(labels)
    chosen = logits[:, values]
    return (chosen * weights).sum()


torch.compile(loss, fullgraph=True)(torch.randn(4, 6), torch.tensor([0, 1, 1, 5]))
