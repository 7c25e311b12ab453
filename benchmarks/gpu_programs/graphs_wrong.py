"""Under CUDA graphs in training, a relu is wrong: not the graphs' fault."""

# check
# right inductor relu
import torch
import torch._inductor.config

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
step = torch.compile(lambda x: net(x).square().mean(), mode="reduce-overhead")
for _ in range(4):
    step(torch.randn(16, 64, device="cuda")).backward()
    net.zero_grad()
print("done")
