"""The function prints and branches on values: several graphs, in order with what is printed."""

import torch


@torch.compile
def steps(x):
    y = x + 1
    print("first", float(y.sum()))
    if y.sum() > 5:
        y = y * 2
    print("second", y.tolist())
    for value in y.tolist():
        y = y + value
    return y


for n in (2, 5):
    print(steps(torch.ones(n)))
