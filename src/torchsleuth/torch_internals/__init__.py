"""The one door to PyTorch's private parts: every `torch._*` import of the project lives in here.

One small function per need. What differs between torch versions is written next to the function
it concerns, so that a new release is looked at in one place.
"""
