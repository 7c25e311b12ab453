"""Worker processes load what a compiled model eats."""

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index


def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    forward = torch.compile(net.forward)
    for values, index in DataLoader(Squares(), batch_size=5, num_workers=2):
        print(index.tolist(), forward(values).sum().item().hex())


if __name__ == "__main__":
    main()
