import json

from click.testing import CliRunner

from torchsleuth.front.cli.doctor import backends_verb
from torchsleuth.torch_core.backends.catalog import CATALOG


def answer(*arguments):
    return CliRunner().invoke(
        backends_verb, list(arguments), standalone_mode=False, help_option_names=["-h", "--help"]
    )


def test_every_backend_is_listed_with_one_line():
    lines = answer().output.splitlines()
    for each in CATALOG:
        assert sum(line.split()[0] == each.name and each.line in line for line in lines) == 1


def test_json_is_one_document_with_names_descriptions_and_options(tmp_path):
    result = answer("--json", "--cases", str(tmp_path))
    document = json.loads(result.output)
    assert [each["name"] for each in document] == [each.name for each in CATALOG]
    assert all(set(each) == {"name", "description", "options"} for each in document)
    crossref = next(each for each in document if each["name"].endswith("crossref"))
    assert [option["name"] for option in crossref["options"]] == ["ops"]
    assert result.return_value == 0
