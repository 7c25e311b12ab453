"""The documentation builds, says what is there, and its examples run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchsleuth
from made import make
from program_runs import run_typed
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.cases.model import Rung, Triage
from torchsleuth.front.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_the_pages_build_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "html"]
    built = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert built.returncode == 0, built.stderr
    assert "torchsleuth run train.py" in words_of(tmp_path / "index.html")
    assert "howto/it-crashes.html" in (tmp_path / "index.html").read_text()
    assert "torchsleuth sweep models/" in words_of(tmp_path / "commands.html")


def words_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text())


def test_every_command_in_the_pages_is_a_verb():
    for page in PAGES:
        for verb in re.findall(
            r"^\$ torchsleuth ([a-z]+)\b|`torchsleuth ([a-z]+) ", page.read_text(), re.MULTILINE
        ):
            assert "".join(verb) in VERBS, (page.name, verb)


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_every_file_of_ours_that_is_named_is_there(page):
    source = ROOT / "src" / "torchsleuth"
    named = re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*(?:/|/[a-z_0-9]+\.py))`", (ROOT / page).read_text())
    assert len(named) > 5
    assert [path for path in named if not any((at / path).exists() for at in (source, ROOT))] == []


def test_every_public_name_is_in_the_reference():
    reference = (ROOT / "docs" / "api.md").read_text()
    missing = [name for name in torchsleuth.__all__ if f"torchsleuth.{name}" not in reference]
    assert missing == ["__version__"]


def test_the_version_is_the_same_everywhere():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert newest and cited and newest[1] == cited[1] == torchsleuth.__version__


def blocks():
    """The Python of the guides, which is complete there."""
    for page in sorted((ROOT / "docs" / "howto").glob("*.md")):
        for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            yield pytest.param(text, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("text", list(blocks()))
def test_the_python_of_a_guide_runs(text, tmp_path):
    script = tmp_path / "test_guide.py"
    script.write_text(text)
    ran = run_typed(f"{'pytest -q' if 'def test_' in text else 'python'} {script.name}", tmp_path)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell):
    source = complete(f"{shell}_source")
    assert "_TORCHSLEUTH_COMPLETE" in source


def test_the_tab_key_offers_verbs_and_options():
    offered = complete("bash_complete", COMP_WORDS="torchsleuth sw", COMP_CWORD="1")
    assert offered.splitlines() == ["plain,sweep"]
    options = complete("bash_complete", COMP_WORDS="torchsleuth sweep --b", COMP_CWORD="2")
    assert options.splitlines() == ["plain,--backends", "plain,--budget"]


def complete(what: str, **env: str) -> str:
    program = "import sys; sys.argv[0] = 'torchsleuth'; from torchsleuth.front.cli.main import entry; entry()"
    env = {**os.environ, "_TORCHSLEUTH_COMPLETE": what, **env}
    if what == "bash_source" and not Path("/bin/bash").exists():
        pytest.skip("no bash here")
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True).stdout


def test_what_json_prints_is_what_the_schemas_say(tmp_path):
    sys.path.insert(0, str(ROOT / "docs"))
    import schemas

    assert json.loads(schemas.FILE.read_text()) == schemas.schemas(), "python docs/schemas.py"
    jsonschema = pytest.importorskip("jsonschema")
    write_case(tmp_path / "cases", make(triage=Triage("inductor", rungs=(Rung("eager", "passes", 0.2),))), {})
    (tmp_path / "program.py").write_text(
        "import torch\ndef f(x):\n    print(x.sum().item())\n    return x\n"
        "g = torch.compile(f, backend='eager')\nfor n in (2, 3, 4):\n    g(torch.ones(n))\n"
    )
    for verb, words in (
        ("show", "last"),
        ("explain", "--no-try program.py"),
        ("recompiles", "--no-try program.py"),
    ):
        ran = run_typed(f"torchsleuth {verb} --json --cases cases {words}", tmp_path)
        document = json.loads(ran.stdout[ran.stdout.index("{") :].partition("\ntorchsleuth: ")[0])
        jsonschema.validate(document, {**schemas.schemas(), "$ref": f"#/$defs/{verb}"})
