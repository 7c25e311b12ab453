"""DistributedDataParallel on two gloo ranks under torchrun."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist


def train():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.GELU()))
    step = torch.nn.parallel.DistributedDataParallel(net)
    for i in range(3):
        step(torch.full((2, 4), float(dist.get_rank() + i))).sum().backward()
    if dist.get_rank() == 0:
        print(next(net.parameters()).grad.sum().item().hex(), flush=True)
    dist.destroy_process_group()


if "RANK" in os.environ:
    train()
else:
    os.environ["OMP_NUM_THREADS"] = "1"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    sys.exit(subprocess.run([sys.executable, *launcher, "--standalone", __file__]).returncode)
