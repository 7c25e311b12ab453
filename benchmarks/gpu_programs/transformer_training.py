"""A transformer trains; its relu is wrong, so forward and backward are: one cause."""

# check
# right inductor relu
import torch
import torch._inductor.config
from torch import nn

torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 32)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) / 32**0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.second(x))))


torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(1000, 128), *(Block(128) for _ in range(8)), nn.Linear(128, 1000)).cuda()
step = torch.compile(net)
ids = torch.randint(0, 1000, (4, 64), device="cuda")
loss = nn.functional.cross_entropy(step(ids).flatten(0, 1), ids.flatten())
loss.backward()
print(loss.item())
