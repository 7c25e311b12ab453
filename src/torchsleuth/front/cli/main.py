"""The command line: one module per verb, imported when the verb is used, so that `--help` answers at once.

Every verb has `--json` and `--cases`. A mistake of the person's becomes one sentence and the exit status its
error names; a mistake of ours becomes status 4 and says so.
"""

from __future__ import annotations

import atexit
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

import click

from torchsleuth._version import __version__
from torchsleuth.core.cases.errors import SleuthError
from torchsleuth.front.cli.output import (
    AskedToEnd,
    end_when_asked,
    fill_standard_streams,
    flush_or_forget,
    our_fault,
    say,
)

# Verb -> the module here that holds it, and the line `--help` shows without importing that module.
VERBS = {
    "run": ("run", "Run a program under watch; every failure becomes a case."),
    "show": ("look", "One case: what failed, where, and what is known about it."),
    "explain": ("explain", "Where graphs break, why, what it costs and what to write instead."),
    "recompiles": ("explain", "What is compiled again, which guards failed, and what fixes it."),
    "profile": ("explain", "Where compile time goes: by phase, by function, by graph."),
    "list": ("look", "The cases here, newest first."),
    "triage": (
        "triage",
        "Which part of the compiler, which operator and which line of the program are at fault.",
    ),
    "workaround": ("triage", "What makes the program pass: tried, verified, mildest first."),
    "analyze": ("analyze", "Where a wrong result begins: the first kernel and node that are off."),
    "minify": ("minify", "The smallest graph, or program, that fails the same way."),
    "verify": ("verify", "Run a repro in fresh processes and compare how it fails."),
    "replay": ("verify", "Run one recorded frame again, in a fresh process."),
    "report": ("look", "report.html to look at and attach, issue.md to file."),
    "pack": ("look", "One file to share, with the list of what is in it."),
    "unpack": ("look", "A packed case among the cases here."),
    "sweep": ("sweep", "Many programs under many settings: failures in buckets, one of each made small."),
    "bisect": ("bisect", "The torch release that brought or fixed the failure."),
    "trace": ("trace", "What the capture did, frame by frame; every graph at every stage."),
    "mcp": ("agent", "The verbs for editors and agents, as an MCP server."),
    "backends": ("doctor", "The debugging backends."),
    "calibrate": (
        "doctor",
        "Measure the rounding noise of healthy graphs on this machine, for later verdicts.",
    ),
    "doctor": ("doctor", "What torchsleuth can use on this machine, and what is missing."),
}


# Those that most people need come first.
FIRST = 5


class _Verbs(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module = importlib.import_module(f"torchsleuth.front.cli.{VERBS[name][0]}")
        command: click.Command = getattr(module, f"{name}_verb")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in VERBS and not word.startswith("-"):
            near = difflib.get_close_matches(word, VERBS, 1)
            meant = f"run {word}" if word.endswith(".py") else near[0] if near else ""
            raise click.UsageError(
                f"there is no verb {word!r}" + (f"; did you mean: torchsleuth {meant}" if meant else ""), ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [(name, line) for name, (_, line) in VERBS.items()]
        for title, shown in (("Verbs", lines[:FIRST]), ("More verbs", lines[FIRST:])):
            with formatter.section(title):
                formatter.write_dl(shown)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="torchsleuth")
def torchsleuth() -> None:
    """Find out why a program breaks under torch.compile.

    \b
    torchsleuth run train.py        run it; a failure becomes a case
    torchsleuth show last           what is known about the last one
    torchsleuth verify last         does its repro still fail the same way?
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status: `main(["list", "--json"])`."""
    try:
        result = torchsleuth.main(args=arguments, prog_name="torchsleuth", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SleuthError as error:
        say(str(error))
        return error.exit_status
    except click.exceptions.Abort:
        say("stopped")
        return 130
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        say(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx is not None:
            say(f"see: {error.ctx.command_path} --help")
        return 2
    except AskedToEnd as asked:
        say("stopped")
        return 128 + asked.number
    except BrokenPipeError:  # whoever read has seen enough
        return 0
    except Exception as error:
        return our_fault(error)


def entry() -> None:
    """The console script."""
    fill_standard_streams()
    end_when_asked()
    os.environ.pop(
        "TORCHSLEUTH", None
    )  # asks programs to watch themselves; those that we start are watched by us
    status = main()
    flush_or_forget()
    if "torch" in sys.modules:  # taking it apart takes half a second or more and serves nobody
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)
