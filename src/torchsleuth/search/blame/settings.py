"""Which settings matter: those of the user without which nothing fails, and those that make the failure vanish.

Both answers are sets, because some bugs need two settings at once. A set is found whole first and then made smaller,
so that a pair costs no more than the settings it was picked from.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsleuth.core.change_table import CAUTIOUS, together
from torchsleuth.core.changes import Change
from torchsleuth.search.blame.runner import Runner
from torchsleuth.search.minify.contract import State
from torchsleuth.search.minify.subsets import smallest
from torchsleuth.torch_internals.configuration import default_setting


def switchable(state: State, settings: Sequence[Change] = CAUTIOUS) -> list[Change]:
    """Those settings that this torch has and that do not stand at their cautious value already."""
    given, options = state.settings.config, state.settings.options
    found = []
    for each in settings:
        ((module, values),) = each.config.items()
        ((key, value),) = values.items()
        default = default_setting(module, key)
        now = options.get(key) or given.get(module, {}).get(key)
        if default is not None and value != (repr(default[0]) if now is None else now):
            found.append(each)
    return found


def cautious_fix(runner: Runner, state: State, settings: Sequence[Change]) -> list[Change]:
    """The fewest cautious values that make the failure vanish, all of which together do."""

    def cautious(some: Sequence[Change]) -> Change:
        keys = [key for each in some for key in each.keys]
        return together(some, f"with cautious {', '.join(keys)}")

    return runner.smallest_cure(state, settings, cautious)


def settings_of(state: State) -> list[tuple[str, str]]:
    """The settings that are not torch's defaults, as (module, key); options of torch.compile under "options"."""
    found = [(module, key) for module, values in state.settings.config.items() for key in values]
    known = {key for _, key in found}
    return found + [("options", key) for key in state.settings.options if key not in known]


def only_settings(state: State, kept: Sequence[tuple[str, str]]) -> State:
    """The state with no other settings than these."""
    names = set(kept)
    keys = {key for _, key in kept}
    config = {
        module: {key: text for key, text in values.items() if (module, key) in names}
        for module, values in state.settings.config.items()
    }
    options = {key: text for key, text in state.settings.options.items() if key in keys}
    return state.setting(config=config, options=options)


def needed_settings(runner: Runner, state: State) -> list[tuple[str, str]]:
    """The fewest of the user's settings under which it still fails; none where it fails with torch's defaults."""

    def enough(sets: Sequence[Sequence[tuple[str, str]]]) -> list[bool]:
        return [runner.one(only_settings(state, s), Change(_only(s))).fails for s in sets]

    mine = settings_of(state)
    if not mine or enough([[]])[0]:
        return []
    return smallest(mine, enough)


def _only(kept: Sequence[tuple[str, str]]) -> str:
    names = ", ".join(key for _, key in kept)
    return f"with no other setting than {names}" if names else "with torch's default settings"
