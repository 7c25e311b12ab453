"""A stress network: the gradient and Hessian of an energy that a small network predicts from invariants."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 12), nn.Softplus(), nn.Linear(12, 12), nn.Softplus(), nn.Linear(12, 1))


def energy(deformation):
    right = deformation.T @ deformation
    invariants = torch.stack([right.diagonal().sum() - 3.0, (right * right).sum() - 3.0])
    return net(invariants).sum()


def response(deformation):
    return torch.func.grad(energy)(deformation), torch.func.hessian(energy)(deformation)


with torch.no_grad():
    torch.compile(response)(torch.eye(3) + 0.1 * torch.randn(3, 3))
