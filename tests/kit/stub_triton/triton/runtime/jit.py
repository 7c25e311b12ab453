import inspect


class JITFunction:
    def __init__(self, fn, do_not_specialize=None, noinline=None):
        self.fn, self.do_not_specialize, self.noinline = fn, do_not_specialize, noinline
        self.arg_names = list(inspect.signature(fn).parameters)
        self.src = inspect.getsource(fn)
        self.__name__, self.__qualname__, self.__module__ = fn.__name__, fn.__qualname__, fn.__module__
        self.__globals__ = fn.__globals__

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            given = {**dict(zip(self.arg_names, args)), **kwargs}
            assert len(grid(given) if callable(grid) else grid) == 3
            self.fn(**given)

        return launch

    def __call__(self, *args, **kwargs):
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")
