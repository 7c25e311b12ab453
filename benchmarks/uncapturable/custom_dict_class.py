import torch


class Registry:
    def __init__(self):
        self.items = {}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        import inspect

        frame = inspect.currentframe()
        return frame.f_lineno


registry = Registry()


def apply(x):
    return x.exp() * registry.scale


torch.compile(apply, fullgraph=True)(torch.zeros(2))
