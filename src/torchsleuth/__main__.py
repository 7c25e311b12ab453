"""`python -m torchsleuth` is the same as `torchsleuth`: it does not look for modules in the current folder.

Someone may have put a `click.py` there, beside the case that is looked at. The program that is run finds its own folder
as it does without us: it is another process.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from torchsleuth.front.cli.main import entry

entry()
