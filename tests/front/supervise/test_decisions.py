"""The same questions, in the same order, as when they were last decided on; nothing is compiled and nothing started.

A decision that is changed on purpose is written down anew: `make goldens`, then look at what git says of the texts.
"""

import difflib
import tarfile

import pytest

from roads import PROGRAMS, Decisions, NewQuestion, goldens_of, walk


@pytest.mark.parametrize("name", [name for name in PROGRAMS if goldens_of(name)[1].exists()])
def test_the_road_asks_what_it_asked(name, tmp_path):
    text, archive = goldens_of(name)
    folder = tmp_path.resolve() / name
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    about = PROGRAMS[name]
    about.place(folder)
    decisions = Decisions(folder, live=False)
    try:
        walk(decisions, about.program(folder), about.watch)
    except NewQuestion:
        pass  # the last line
    finally:
        decisions.close()
    changed = list(
        difflib.unified_diff(text.read_text().splitlines(), decisions.text.splitlines(), lineterm="", n=1)
    )
    assert not changed, "\n".join(["what is asked has changed", *changed[:30], "on purpose? make goldens"])
