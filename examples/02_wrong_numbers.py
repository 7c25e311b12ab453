"""Nothing raises, but the numbers are wrong. (The bug is planted: a backend whose relu is another.)

$ torchsleuth run --check-accuracy 02_wrong_numbers.py
$ torchsleuth show last
error      wrong result: outputs[0]
your line  02_wrong_numbers.py:17: return torch.relu(x.sin()).sum(dim=-1)
at fault   backend, sleuth_relu_accuracy_error torch.relu
minified   1 call: torch.relu
repro      repro.py; verified: failed the same way in 3 of 3 fresh processes
"""

import torch


@torch.compile(backend="sleuth_relu_accuracy_error")
def model(x):
    return torch.relu(x.sin()).sum(dim=-1)


print("looks fine:", model(torch.linspace(-1, 1, 64).reshape(8, 8)).shape)
