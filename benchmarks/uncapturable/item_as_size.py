import torch


def pad(batch, lengths):
    longest = int(lengths.max())
    if longest > 100:
        raise ValueError("too long")
    rows = [torch.nn.functional.pad(row, (0, longest - row.shape[0])) for row in batch]
    return torch.stack(rows)


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(6, 3)

    def forward(self, batch, lengths):
        return self.proj(pad(batch, lengths))


encoder = Encoder()
compiled = torch.compile(encoder, fullgraph=True)
compiled([torch.ones(4), torch.ones(6)], torch.tensor([4, 6]))
