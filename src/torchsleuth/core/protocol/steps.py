"""What the search host hands to the front once a case is small: scripts, and how they are to be verified."""

from __future__ import annotations

from dataclasses import dataclass

# In a case: the script that shows the failure, and the folder of those that may become it.
REPRO = "repro.py"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class ScriptToVerify:
    """A script under checkpoints/: its form (function, ..., exact), the data files beside it, the bytes in them.

    One that `needs_inputs` finds the case's kept values only in its final place; one of `random` inputs is for where
    eager refuses the plain ones.
    """

    form: str
    files: tuple[str, ...] = ()
    input_bytes: int | None = None
    needs_inputs: bool = False
    random: bool = False

    @property
    def name(self) -> str:
        return f"{CHECKPOINTS}/{self.form}{'_random' if self.random else ''}.py"


@dataclass(frozen=True)
class Verification:
    """The scripts of a search, the most readable first, and how they are to be run: how often, how many at once.

    A failure that does not come `always` holds where it came at all and nothing else did. With `in_eager` a script has
    to pass without the compiler.
    """

    scripts: tuple[ScriptToVerify, ...]
    times: int = 3
    at_once: int = 3
    always: bool = True
    in_eager: bool = True
