"""`torchsleuth mcp` asked by a real client, and the magic of notebooks in a real shell."""

import asyncio
import json
import sys

import pytest

from made import make
from program_runs import environment
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.cases.model import Triage
from torchsleuth.front.cli.main import main


def asked(tmp_path, *options, tool="list_cases", **arguments):
    """What a client is told of the tools, and what one of them answers."""
    mcp = pytest.importorskip("mcp", reason="needs the extra: pip install 'torchsleuth[mcp]'")
    command = ["-m", "torchsleuth", "mcp", "--cases", str(tmp_path / "cases"), *options]
    parameters = mcp.StdioServerParameters(command=sys.executable, args=command, env=environment(tmp_path))

    async def talk():
        async with mcp.stdio_client(parameters) as (read, write), mcp.ClientSession(read, write) as session:
            await session.initialize()
            names = {each.name for each in (await session.list_tools()).tools}
            said = await session.call_tool(tool, arguments)
            return names, said.content[0].text

    return asyncio.run(asyncio.wait_for(talk(), 120))


def test_a_client_sees_the_cases_and_nothing_that_executes_code(tmp_path):
    write_case(tmp_path / "cases", make(triage=Triage("inductor", user_line="model.py:35")), {})
    names, said = asked(tmp_path, tool="show_case", case="last")
    assert names == {"list_cases", "show_case", "report_case"}
    assert json.loads(said)["triage"]["user_line"] == "model.py:35"


def test_what_executes_code_is_there_where_it_was_asked_for_and_no_word_becomes_an_option(tmp_path):
    names, said = asked(tmp_path, "--execute", tool="run_program", script="--help")
    assert {"run_program", "explain_program", "verify_case"} <= names
    assert "there is no script '--help' here" in said


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["mcp"]) == 2
    assert "pip install 'torchsleuth[mcp]'" in capsys.readouterr().err


def test_a_cell_is_a_program_of_its_own(tmp_path, monkeypatch, capfd):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "torchsleuth")
    shell.run_cell_magic("torchsleuth", "", "print('from the cell', 6 * 7)")
    shell.run_line_magic("torchsleuth", "list")
    said = capfd.readouterr().out
    assert "from the cell 42" in said and "no cases in" in said
