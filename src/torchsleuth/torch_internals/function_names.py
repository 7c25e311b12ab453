"""The modules whose functions graphs call, best spelling first.

Dynamo writes `torch._C._nn.linear` where the user wrote `F.linear`: they are one object, and the public
spelling survives releases better. C functions often carry no usable `__module__`, so torch's C modules are
searched last.

Versions: what a bare `import torch` loads is the same in 2.11..2.15.
"""

import sys

# Loaded by `import torch`, so that printed source need not import them.
_COME_WITH_TORCH = (
    "torch._C",
    "torch.amp",
    "torch.autograd",
    "torch.fft",
    "torch.func",
    "torch.linalg",
    "torch.nn",
    "torch.special",
    "torch.utils.checkpoint",
)
# The public ones, in the order in which a name is preferred.
_PUBLIC = (
    "operator",
    "math",
    "torch",
    "torch.nn.functional",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "torch.nested",
    "torch.sparse",
    "torch.func",
    "torch.autograd",
    "torch.amp",
    "torch.nn",
    "torch.nn.init",
    "torch.utils.checkpoint",
)


def comes_with_torch(module: str) -> bool:
    """Whether a bare `import torch` loads the module.

    >>> comes_with_torch("torch.nn.functional"), comes_with_torch("torch._dynamo.utils")
    (True, False)
    """
    if module == "torch.nn.attention.flex_attention":
        return False
    return module == "torch" or any(
        module == known or module.startswith(f"{known}.") for known in _COME_WITH_TORCH
    )


def modules_by_preference() -> list[str]:
    """Names of loaded modules to look a function up in, most readable spelling first.

    >>> modules_by_preference()[:3]
    ['operator', 'math', 'torch']
    """
    loaded = list(sys.modules)  # other threads may be importing
    c_modules = sorted(name for name in loaded if name == "torch._C" or name.startswith("torch._C."))
    numpy_like = ["torch._numpy"] if "torch._numpy" in sys.modules else []
    return [*(name for name in _PUBLIC if name in sys.modules), *c_modules, *numpy_like]
