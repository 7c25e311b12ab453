"""Work on a side stream, pinned memory, and a compiled function between CPU and GPU."""
# gpu

import torch

f = torch.compile(lambda x, y: (x * 2).sum() + y.cuda(non_blocking=True).sum())
host = torch.arange(64.0).pin_memory()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    device = host.to("cuda", non_blocking=True)
    out = f(device, host)
torch.cuda.current_stream().wait_stream(stream)
print(out.item(), torch.cuda.memory_allocated() > 0)
