"""`mcp`: the verbs as tools of an MCP server on standard input and output, for editors and agents.

Each tool is a run of the command line with `--json`, in a process of its own: what it answers is what a person would
get, with the same care about secrets. What executes code, programs and cases, is offered only where the person said
`--execute`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.front.cli.options import cases_option


class NoServer(SleuthError):
    """The package that speaks the protocol is missing."""


@click.command("mcp")
@click.option(
    "--execute", is_flag=True, help="Also offer what executes code: run, explain, recompiles, minify, verify."
)
@cases_option
def mcp_verb(execute: bool, cases_dir: str) -> int:
    """Serve the cases here, and on request the verbs, to an editor or an agent, over standard input and output.

    Without --execute nothing is run: cases are listed, shown and reported. Needs the extra torchsleuth[mcp].

    \b
    torchsleuth mcp
    torchsleuth mcp --execute --cases /shared/cases
    """
    if importlib.util.find_spec("mcp") is None:
        raise NoServer("the MCP package is not installed here: pip install 'torchsleuth[mcp]'")
    server(str(cases_dir), execute).run("stdio")
    return 0


def server(cases_dir: str, execute: bool) -> Any:
    """The server with its tools: `server("torchsleuth-cases", execute=False).run("stdio")`."""
    from mcp.server import MCPServer

    found = MCPServer("torchsleuth")
    for tool in _tools(cases_dir, execute):
        found.tool()(tool)
    return found


def _tools(cases_dir: str, execute: bool) -> list[Callable[..., Awaitable[str]]]:
    async def ask(verb: str, *words: str) -> str:
        """The JSON document, or the sentence why there is none. `--` keeps what is given from being an option."""
        command = [sys.executable, "-m", "torchsleuth", verb, "--json", "--cases", cases_dir, *words]
        pipe = asyncio.subprocess.PIPE
        ran = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            out, err = await ran.communicate()
        finally:  # whoever asked may have gone
            if ran.returncode is None:
                ran.terminate()
        return out.decode(errors="replace") or err.decode(errors="replace")[-4000:]

    async def list_cases() -> str:
        """All recorded failures of torch.compile, newest first, as JSON."""
        return await ask("list")

    async def show_case(case: str = "last") -> str:
        """All that is known about one case, as JSON: what failed, which line, which part of torch, what works."""
        return await ask("show", "--", case)

    async def report_case(case: str = "last") -> str:
        """Write report.html and issue.md of a case; says where they are."""
        return await ask("report", "--", case)

    async def run_program(
        script: str, arguments: list[str] | None = None, check_accuracy: bool = False
    ) -> str:
        """Run a Python script under watch; every failure of torch.compile becomes a case. Executes the script."""
        options = ["--check-accuracy"] if check_accuracy else []
        return await ask("run", *options, "--", script, *(arguments or []))

    async def explain_program(script: str, arguments: list[str] | None = None) -> str:
        """Run a Python script and say where its graphs break, why, and which lines to paste were tried."""
        return await ask("explain", "--", script, *(arguments or []))

    async def recompiles_of_program(script: str, arguments: list[str] | None = None) -> str:
        """Run a Python script and say what is compiled again, which guards failed, and what was tried against it."""
        return await ask("recompiles", "--", script, *(arguments or []))

    async def minify_case(case: str = "last", seconds: float = 300) -> str:
        """Make the failing graph of a case as small as possible. Executes the case."""
        return await ask("minify", "--budget", str(seconds), "--", case)

    async def verify_case(case: str = "last") -> str:
        """Run the repro of a case in fresh processes. Executes the case."""
        return await ask("verify", "--", case)

    reading: list[Callable[..., Awaitable[str]]] = [list_cases, show_case, report_case]
    executing: list[Callable[..., Awaitable[str]]] = [
        run_program,
        explain_program,
        recompiles_of_program,
        minify_case,
        verify_case,
    ]
    return [*reading, *(executing if execute else [])]
