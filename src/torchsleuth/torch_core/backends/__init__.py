"""Backends for finding out which part of torch.compile is at fault: `torch.compile(f, backend="sleuth_aot_eager")`."""
