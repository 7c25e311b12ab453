"""A stress network: the energy that a small network predicts from invariants, and its gradient."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 12), nn.Softplus(), nn.Linear(12, 12), nn.Softplus(), nn.Linear(12, 1))


def energy(deformation):
    right = deformation.T @ deformation
    invariants = torch.stack([right.diagonal().sum() - 3.0, (right * right).sum() - 3.0])
    return net(invariants).sum()


def response(deformation):
    return torch.func.grad_and_value(energy)(deformation)


with torch.no_grad():
    torch.compile(response)(torch.eye(3) + 0.1 * torch.randn(3, 3))
