"""The compiled function raises the program's own error, which the program handles."""

import torch


class TooLarge(ValueError):
    pass


@torch.compile
def checked(x):
    y = x.sin()
    if x.shape[0] > 3:
        raise TooLarge(f"{x.shape[0]} rows")
    return y


for n in (2, 5, 2):
    try:
        print(checked(torch.zeros(n)).tolist())
    except TooLarge as error:
        print("refused", error)
