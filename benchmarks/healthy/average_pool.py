"""Average pooling whose windows all lie inside, with gradients."""

import torch
import torch.nn.functional as F


def pooled(x):
    return F.avg_pool2d(x, 3, 2, padding=1).square().sum()


torch.manual_seed(0)
torch.compile(pooled)(torch.randn(2, 3, 9, 9, requires_grad=True)).backward()
