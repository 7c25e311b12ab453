"""An input is a DTensor over a fake group of two; a relu's code does not compile."""

# right inductor relu
import torch
import torch._inductor.config
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "compile_error"
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cuda", (2,))


@torch.compile
def f(x, w):
    return torch.relu(x @ w + 1)


x = DTensor.from_local(torch.randn(16, 32, device="cuda"), mesh, [Shard(0)], run_check=False)
w = DTensor.from_local(torch.randn(32, 8, device="cuda"), mesh, [Replicate()], run_check=False)
print(f(x, w).to_local().sum().item())
