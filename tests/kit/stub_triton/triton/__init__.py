"""Stands in for Triton where texts of kernels are tested: its decorators keep what they are given.

A kernel is called as Python: its body works on whole tensors, and the grid is only looked at.
"""

from triton.runtime.autotuner import Autotuner, Config, Heuristics
from triton.runtime.jit import JITFunction

__all__ = ["Config", "JITFunction", "autotune", "cdiv", "heuristics", "jit"]


def jit(fn=None, **options):
    return JITFunction(fn, **options) if fn is not None else lambda fn: JITFunction(fn, **options)


def autotune(configs, key, **options):
    return lambda fn: Autotuner(fn, configs, key, **options)


def heuristics(values):
    return lambda fn: Heuristics(fn, values)


def cdiv(x, y):
    return -(-x // y)
