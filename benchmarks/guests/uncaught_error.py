"""An error that nobody catches: the traceback is the program's."""
# status 1
# no kernel

import torch


def plain(x):
    return x.reshape(7, 7)


@torch.compile(backend="eager")
def f(x):
    return x + 1


print(f(torch.ones(3)).tolist())
plain(torch.ones(3))
