"""Named tuples, data classes and nested dictionaries go in and come out."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch

Pair = namedtuple("Pair", "left right")


@dataclass
class Box:
    value: torch.Tensor
    label: str = "box"


@torch.compile
def f(pair, boxes):
    total = {key: box.value + pair.left for key, box in boxes.items()}
    return Pair(total, [Box(pair.right * 2, "made"), None, 3])


out = f(Pair(torch.ones(2), torch.zeros(2)), OrderedDict(b=Box(torch.ones(2)), a=Box(torch.zeros(2))))
print(out)
