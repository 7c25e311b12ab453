"""The model is nobody else's business: the repro has neither its weights nor its data, and says what it has.

$ torchsleuth run 09_cannot_share.py
$ torchsleuth show last
at fault   backend, sleuth_relu_compile_error torch.relu
minified   1 call: torch.relu
values     0 inputs kept by value, 3 by spec
"""

import torch

weights = torch.nn.Linear(64, 64)  # a trade secret
customers = torch.randn(32, 64)  # and these are people


@torch.compile(backend="sleuth_relu_compile_error")
def score(x):
    return torch.relu(weights(x)).softmax(-1)


score(customers)
