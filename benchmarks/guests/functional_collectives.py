"""A compiled collective in a group of one."""

import os

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@torch.compile
def summed(x):
    return collectives.all_reduce(x.sin(), "sum", dist.group.WORLD) + 1


print(summed(torch.zeros(3)).tolist(), os.getpid() > 0)
dist.destroy_process_group()
