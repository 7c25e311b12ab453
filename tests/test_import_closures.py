"""What a process can load: everything that the modules it starts with import, and what those import in turn.

Imports inside functions count, those for type checkers alone do not. A process holds no room of another process, and
what it holds stays small enough to be read.
"""

import grimp
import pytest

# Process -> the modules it starts with; the rooms of other processes; how many modules there may be at most.
PROCESSES = {
    "watched": (("watched.install",), ("front", "search", "child"), 80),
    "host": (("search.host.main",), ("front", "watched"), 120),
    "front": (("front.cli.main", "front.cli.run"), ("search", "child", "watched"), 80),
    "script": (("script_runtime.runner",), ("front", "search", "child", "watched", "core", "torch_core"), 9),
}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Module -> those it imports and the packages it lies in, without the package's own name."""
    graph = grimp.build_graph("torchsleuth", exclude_type_checking_imports=True, cache_dir=None)
    found = {}
    for name in graph.modules:
        above = {name.rpartition(".")[0]} if "." in name else set()
        found[short(name)] = {short(each) for each in graph.find_modules_directly_imported_by(name) | above}
    return found


def short(name: str) -> str:
    return name.removeprefix("torchsleuth").removeprefix(".")


def closure_of(starts: tuple[str, ...], imports: dict[str, set[str]]) -> set[str]:
    """The modules that are loaded; packages hold nothing but a docstring and are not counted."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports[name]
    packages = {name.rpartition(".")[0] for name in imports}
    return found - packages


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_holds_no_room_of_another_and_not_more_modules_than_can_be_read(process, imports):
    starts, foreign, most = PROCESSES[process]
    found = closure_of(starts, imports)
    in_foreign_rooms = {name for name in found if name.startswith(tuple(f"{room}." for room in foreign))}
    assert not in_foreign_rooms
    assert len(found) <= most, "\n".join(sorted(found))
