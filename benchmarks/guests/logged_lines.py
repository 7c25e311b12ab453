"""Logging handlers of the program's own, and torch's log settings."""
# no kernel

import logging
import os
import sys

# Without the time, which is another in each run.
os.environ["TORCH_LOGS_FORMAT"] = "%(levelname)s %(message)s"

import torch

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
torch._logging.set_logs(graph_breaks=True, recompiles=True)
log = logging.getLogger("guest")


@torch.compile(backend="aot_eager")
def f(x):
    return x.sin() * 2


for n in (2, 3, 4):
    log.info("%s", f(torch.zeros(n)).tolist())
