"""Nearest-neighbour upsampling to twice the size."""

import torch
import torch.nn.functional as F


def enlarge(image):
    return F.interpolate(image, scale_factor=2.0, mode="nearest")


torch.compile(enlarge)(torch.arange(12, dtype=torch.float64).reshape(1, 1, 3, 4))
