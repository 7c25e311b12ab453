"""Files of a trial that runs on another machine, without a cluster."""

from __future__ import annotations

import pytest

from faulty import trial
from torchsleuth.core.protocol.trials import AnalysisWishes, Question
from torchsleuth.search.workers.cluster import bring_back, files_in, in_folder

WRITTEN = {
    "store/storages/new.safetensors": "store/storages/new.safetensors",
    "trace": "steps.txt",
    "told": "told.jsonl",
    "values/index.json": "kept/index.json",
}


def asked(home):
    analysis = AnalysisWishes(str(home / "told.jsonl"), str(home / "kept"))
    return trial(
        "pass",
        store=str(home / "store"),
        trace=str(home / "steps.txt"),
        fill=7,
        analysis=analysis,
    )


def test_what_a_trial_writes_elsewhere_lies_here_afterwards_and_what_it_was_given_does_not_come_back(
    tmp_path,
):
    home, room = tmp_path / "home", tmp_path / "room"
    there = in_folder(asked(home), room)
    paths = {there.store, there.trace, there.analysis.told, there.analysis.values}
    assert all(path.startswith(str(room)) for path in paths) and there.fill == 7
    for name in ("store/storages/given.safetensors", *WRITTEN):
        (room / name).parent.mkdir(parents=True, exist_ok=True)
        (room / name).write_text(name)
    files = files_in(room, {"given": None})
    assert files.keys() == WRITTEN.keys()
    bring_back(asked(home), files)
    assert {name: (home / place).read_text() for name, place in WRITTEN.items()} == {n: n for n in WRITTEN}


@pytest.mark.parametrize("name", ["store/../../elsewhere", "else/where", "/etc/x", "trace/../x", "values//x"])
def test_a_node_writes_nowhere_else(tmp_path, name):
    with pytest.raises(ValueError):
        bring_back(asked(tmp_path / "home"), {name: b"evil"})
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_the_name_of_a_program_stays_and_what_names_no_file_gets_none(tmp_path):
    program = trial("pass", question=Question.PROGRAM, store="/home/me/train.py")
    assert in_folder(program, tmp_path) == program
    assert in_folder(trial("pass"), tmp_path) == trial("pass")
