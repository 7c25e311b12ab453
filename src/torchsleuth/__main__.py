"""`python -m torchsleuth` is the same as `torchsleuth`."""

from torchsleuth.cli.main import entry

entry()
