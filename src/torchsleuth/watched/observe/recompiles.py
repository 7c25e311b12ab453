"""The collector of recompilations: which compiled versions did not fit, which guards said no, and limits reached."""

from __future__ import annotations

import dataclasses
import re
from types import ModuleType
from typing import Any

from torchsleuth.torch_internals import module_names
from torchsleuth.watched.observe.events import EventWriter, harmless
from torchsleuth.watched.observe.frames import frame_under_way, wanted
from torchsleuth.watched.startup import after_import
from torchsleuth.watched.watch_settings import Settings


def install(settings: Settings, events: EventWriter) -> None:
    """Waits for Dynamo, then writes a `recompile` event for each recompilation and a `limit` event at a limit."""

    def put_in(_module: ModuleType) -> None:
        from torchsleuth.torch_internals.frames import hook_frame_compiles

        hook_frame_compiles(lambda seen: note_recompile(seen, events, settings.only))

    after_import(module_names.FRAME_CAPTURE, put_in)


def note_recompile(seen: Any, events: Any, only: str | None) -> Any:
    """Writes why a frame is compiled once more, and lets it be."""
    if not seen.entries:
        return seen.compile()
    from torchsleuth.torch_internals.frames import original_function
    from torchsleuth.torch_internals.guard_failures import refused_entries

    function = seen.code.co_name
    with harmless(events):
        function, file, line = original_function(seen.code)
        if wanted(function, only):
            refused = refused_entries(seen.entries, seen.frame, seen.backend)
            events.write(
                "recompile",
                frame=frame_under_way(),
                id=seen.compile_id,
                function=function,
                file=file,
                line=line,
                code=seen.code.co_name,
                arguments=list(seen.code.co_varnames[: seen.code.co_argcount]),
                refused=[dataclasses.asdict(entry) for entry in refused],
            )
    try:
        return seen.compile()
    except Exception as error:
        text = f"{getattr(error, 'gb_type', '')} {error} {error.__cause__}"
        limit = re.search(r"(?:Limit type: |exceeding the )(\w*recompile_limit)", text)
        if limit is not None and wanted(function, only):
            value = re.search(r"currently set to (\d+)", text)
            events.write(
                "limit",
                frame=frame_under_way(),
                function=function,
                limit=limit[1],
                value=int(value[1]) if value else None,
            )
        raise
