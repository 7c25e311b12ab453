"""Python imports this at start-up when `torchsleuth run` put its folder on PYTHONPATH.

It steps aside first (so that the user's own sitecustomize runs as if this one were not there) and then,
in watched or overridden processes only, asks to be told when the compiler is imported.
"""

import os
import sys


def _step_aside() -> None:
    """Runs the sitecustomize that Python would have found without us."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "sitecustomize":
            raise
        if ours is not None:  # the import that runs us looks for what it imports
            sys.modules["sitecustomize"] = ours


def _watch() -> None:
    if not (os.environ.get("TORCHSLEUTH_WATCH") or os.environ.get("TORCHSLEUTH_OVERRIDES")):
        return
    try:
        from torchsleuth.watched import install
    except ImportError:
        # The program runs in another environment than torchsleuth: take the package from where it lies.
        home = os.environ.get("TORCHSLEUTH_HOME")
        if not home:
            return
        sys.path.append(home)
        try:
            from torchsleuth.watched import install
        finally:
            sys.path.remove(home)
    install.watch_this_process()


try:
    _step_aside()
finally:
    try:
        _watch()
    except Exception as error:  # the user's program comes first
        sys.stderr.write(f"torchsleuth: not watching this process: {type(error).__name__}: {error}\n")
