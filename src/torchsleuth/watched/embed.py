"""Source text for what the user's program defined and a standalone script needs: backends, passes, ops.

A live object is traced back to the statement that made it.  What an installed package holds is imported; of
the user's own files only the slice that the object needs is pasted; a closure is rebuilt from its source and
the values in its cells.  What cannot be rebuilt faithfully is refused with the reason, never approximated.
An instance of a class is rebuilt from its class and its attributes. Runs in the user's process, on live objects.
"""

import contextlib
import functools
import linecache
import os
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence

from torchsleuth.core.cases.record import Embedded
from torchsleuth.watched.embed_origin import has_source, installed, third_party
from torchsleuth.watched.embed_paste import Paste
from torchsleuth.watched.embed_slice import CannotEmbed, registers, source_file

__all__ = ["CannotEmbed", "Embedded", "embed"]


def embed(
    objects: Mapping[str, object],
    custom_ops: Sequence[str] = (),
    modules: Iterable[types.ModuleType] | None = None,
    loaded_libraries: Iterable[str] = (),
) -> Embedded:
    """Source that binds each name to an object like the given one: `embed({"backend": my_backend}).source`.

    `custom_ops` are registered by the same text, so that a file that both need is pasted once.
    """
    from torchsleuth.watched.value_source import ValueSource

    paste = Paste()
    values = ValueSource(paste)
    paste.write_value = lambda value, hint: (
        None if isinstance(value, type) else values.expression(value, hint)
    )
    for name, value in objects.items():
        try:
            paste.bind(name, value)
            if values.replaced:
                raise CannotEmbed(values.replaced[0])
        except CannotEmbed as reason:
            raise CannotEmbed(f"{name!r} ({_title(value)}) cannot be put into a script: {reason}") from None
    for op in sorted({op.partition(".")[0] for op in custom_ops}):
        _register(paste, op, modules, tuple(loaded_libraries))
    return paste.finish()


def _register(
    paste: Paste, op: str, modules: Iterable[types.ModuleType] | None, libraries: Sequence[str]
) -> None:
    """Adds the statements of the user's files that register an op, or the import or library that does."""
    space = op.partition("::")[0]
    every = [m for m in list(sys.modules.values() if modules is None else modules) if has_source(m)]
    found = False
    for module in every:
        text = "" if installed(module.__dict__) else "".join(linecache.getlines(str(module.__file__)))
        if space in text and registers(source_file(str(module.__file__)), op, module.__dict__):
            paste.want(module.__dict__).ops.add(op)
            found = True
    if found:
        return
    if (package := _package_of(op, len(sys.modules))) is not None:
        paste.simple(package)
    elif libraries:
        paste.imports["import torch"] = None
        for path in sorted(map(str, libraries)):
            paste.head[f"torch.ops.load_library({path!r})"] = None
            paste.notes[f"loads the shared library {os.path.basename(path)}, which must be there"] = None
    else:
        raise CannotEmbed(
            f"no file of the program registers the custom op {op} in a way that can be read off its source; "
            "register it at the top level of a file, with its name written out."
        )


@functools.lru_cache(maxsize=256)
def _package_of(op: str, loaded: int) -> types.ModuleType | None:
    """The installed module that registers an op; looked for once as long as no further modules are loaded."""
    space = op.partition("::")[0]
    if space in sys.modules and third_party(sys.modules[space]):
        return sys.modules[space]
    library = re.compile(rf"{re.escape(op)}\b|Library\(\s*[\"']{re.escape(space)}[\"']")
    for module in list(sys.modules.values()):
        if has_source(module) and third_party(module):
            with (
                contextlib.suppress(OSError),
                open(str(module.__file__), encoding="utf-8", errors="replace") as file,
            ):
                if library.search(file.read()):
                    return module
    return None


def _title(value: object) -> str:
    return str(getattr(value, "__qualname__", None) or type(value).__name__)
