import torch


def histogram(labels):
    values, counts = torch.unique(labels, return_counts=True)
    return values, counts.float() / counts.sum()


def loss(logits, labels):
    values, weights = histogram(labels)
    places = {float(value): place for place, value in enumerate(values)}
    return logits.sum() * len(places) + weights.sum()


torch.compile(loss, fullgraph=True)(torch.randn(4, 6), torch.tensor([0, 1, 1, 5]))
