"""Not every failure under torch.compile is the compiler's: this index is out of range without it, too.

$ torchsleuth run 08_your_own_bug.py
$ torchsleuth show last
error      IndexError: index out of range in self
your line  08_your_own_bug.py:17: return table(words).sum()
at fault   the program itself: it fails without the compiler, too
"""

import torch

table = torch.nn.Embedding(10, 4)


@torch.compile(backend="eager")
def model(words):
    return table(words).sum()


model(torch.tensor([3, 10]))
