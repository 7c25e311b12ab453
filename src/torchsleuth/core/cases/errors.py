"""Everything that can be wrong with a case folder, one class per mistake.

Each error renders one sentence: what was seen, why it stops here, what to type next.  The command line
prints the sentence and leaves with `exit_status`; nothing else has to know the classes.
"""

import errno
from collections.abc import Sequence
from pathlib import Path


class SleuthError(Exception):
    """A mistake that a person can put right; `str()` of it is the sentence to show."""

    exit_status = 2


class CaseError(SleuthError):
    """Something is wrong with a case or with the folder of cases."""


class CaseNotFound(CaseError):
    """No case answers to the given name."""

    def __init__(self, wanted: str, cases_dir: Path, known: Sequence[str] = ()) -> None:
        here = f"it holds {_some(known)}" if known else "there are none yet"
        super().__init__(
            f"No case {wanted!r} in {cases_dir} ({here}); see them with `torchsleuth list`, "
            "or name another folder with --cases DIR."
        )


class AmbiguousCase(CaseError):
    """A prefix that several cases share."""

    def __init__(self, wanted: str, matches: Sequence[str]) -> None:
        super().__init__(
            f"{wanted!r} fits {len(matches)} cases ({_some(matches)}); give more digits of the id."
        )


class DamagedCase(CaseError):
    """A case.json that cannot be read as one."""

    def __init__(self, path: Path | str, why: str) -> None:
        self.path, self.why = Path(path), why
        super().__init__(
            f"The case in {path} cannot be read: {why}; its other files are untouched, "
            "record the failure again with `torchsleuth run`."
        )


class NewerSchema(CaseError):
    """A case written by a later torchsleuth."""

    def __init__(self, path: Path | str, found: int, known: int) -> None:
        self.path = Path(path)
        super().__init__(
            f"The case in {path} has schema {found} and this torchsleuth reads up to {known}; "
            "upgrade with `pip install -U torchsleuth`."
        )


class CaseInUse(CaseError):
    """Another torchsleuth works on the case."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        super().__init__(
            f"Another torchsleuth is working on the case in {path}, and what it finds will be there; try again later."
        )


class NotWritable(CaseError):
    """The folder of cases, or a case in it, may not be written."""

    def __init__(self, path: Path | str, why: str) -> None:
        self.path, self.why = Path(path), why
        super().__init__(
            f"Cannot write to {path} ({why}); make it writable, or name another folder with --cases DIR."
        )


class DiskFull(CaseError):
    """No room for the case."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        super().__init__(
            f"No room left on the disk of {path}, so the case was not written; free some space there, "
            "or name another folder with --cases DIR."
        )


def error_of_oserror(path: Path, failure: OSError) -> CaseError:
    """The sentence for a failed write: `raise error_of_oserror(folder, e) from e`."""
    if failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(path)
    return NotWritable(path, failure.strerror or str(failure))


def _some(names: Sequence[str], at_most: int = 5) -> str:
    rest = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")
