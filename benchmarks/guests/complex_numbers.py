"""Complex numbers and a Fourier transform."""

import torch

f = torch.compile(lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.exp(torch.tensor(1j)), n=8))
x = torch.linspace(0, 1, 8, requires_grad=True)
out = f(x)
out.square().sum().backward()
print(out.dtype, [round(value, 4) for value in out.tolist()], [round(value, 4) for value in x.grad.tolist()])
