"""`--pure`: a test runs until it is about to start a process or to compile, and is left to `make test` there.

So nothing is listed or marked, and nothing can be listed wrongly: what `make quick` runs to the end has compiled
nothing and started nothing. Python's audit events tell of processes, the hook on frames and on Inductor of compiles.
"""

from __future__ import annotations

import sys

import pytest

# What Python says before it makes a process; a test that replaces this one's own program ends it, too.
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")


class Pure:
    """The plugin: which test is under way, and those that were left."""

    def __init__(self) -> None:
        self.item: pytest.Item | None = None
        self.left: dict[str, str] = {}
        sys.addaudithook(self._on_event)

    def leave(self, why: str) -> None:
        """Ends the test that is under way: it is skipped, whatever comes of it."""
        if self.item is not None:
            self.left.setdefault(self.item.nodeid, why)
            pytest.skip(why)

    def _on_event(self, event: str, _arguments: object) -> None:
        if event in STARTS:
            self.leave("starts a process")

    def pytest_collection_finish(self) -> None:
        from torchsleuth.torch_internals import hooks

        hooks.hook_frame_captures(lambda _frame: self.leave("compiles"))
        hooks.hook_inner_compiles(lambda _call: self.leave("compiles"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.item = item
        try:
            return (yield)
        finally:
            self.item = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        why = self.left.get(item.nodeid) or (call.excinfo and why_left(call.excinfo.value))
        if why and report.when != "teardown":
            # Also where the end that it was given was caught, by a thread or by what must not fail.
            report.outcome = "skipped"
            report.longrepr = (str(item.path), None, why)
        return report


def why_left(error: BaseException | None) -> str | None:
    """What a fixture that was left once fails with for every later test, because it made another error of its end."""
    while error is not None and not isinstance(error, pytest.skip.Exception):
        error = error.__cause__ or error.__context__
    return None if error is None else str(error)
