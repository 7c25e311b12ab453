"""Each example prints what its first lines say."""

import ast
import os
import shlex
from pathlib import Path

import pytest

from program_runs import environment, run_typed
from torchsleuth.front.cli.main import VERBS

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def told(path: Path) -> tuple[list[str], list[str]]:
    """The commands that an example says to type, and the lines that are to come of them."""
    lines = [line.strip() for line in (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("$ "))
    block = lines[first:]
    return [line[2:] for line in block if line[:2] == "$ "], [line for line in block if line[:2] != "$ "]


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path, tmp_path):
    commands, lines = told(path)
    assert commands and lines
    verbs = [words[1] for words in map(shlex.split, commands) if words[0] == "torchsleuth"]
    if set(verbs) - set(VERBS):
        pytest.skip(f"there is no verb {verbs} yet")
    if path.stem.endswith("gpu") and __import__("torch").cuda.is_available():
        pytest.skip("it says what comes without a device")
    for each in FOLDER.glob("*.py"):  # whatever is left behind is left in a folder of the test
        (tmp_path / each.name).write_text(each.read_text())
    env = {**environment(tmp_path), "COLUMNS": "200"}
    said = "\n".join(run_typed(command, tmp_path, env, 800).stdout for command in commands)
    plain = " ".join(said.split())
    for line in lines:
        # What a fact is called and where it stands is the terminal's business.
        fact = line.partition("  ")[2].strip() or line
        assert " ".join(fact.split()) in plain, (line, said)


def test_every_example_is_in_the_list():
    listed = (FOLDER / "README.md").read_text()
    assert EXAMPLES and all(f"`{path.name}`" in listed for path in EXAMPLES)
    assert os.path.basename(EXAMPLES[-1]).startswith(f"{len(EXAMPLES):02}")
