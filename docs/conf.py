"""How the documentation is built: `make docs`. Pages that lie at the top of the repository are taken in as they are."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from torchsleuth import __version__ as release  # noqa: E402

project = "torchsleuth"
author = "the torchsleuth maintainers"
copyright = "2026, the torchsleuth maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"torchsleuth {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]
smartquotes = False  # `--level` is no dash
exclude_patterns = ["_build"]
# Docstrings write code in single backquotes.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a page begins with the heading that its file has

# Page here -> file at the top that it shows.
TAKEN_IN = {
    "index": "README.md",
    "benchmarks": "BENCHMARKS.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
}


def take_in(_app, page, source):
    """Puts the file before what the page itself has, with its links as they are from here."""
    if page == "commands":
        source[0] += verbs()
    if page not in TAKEN_IN:
        return
    if page == "index":
        source[0] = pages_that_are_here(source[0])
    text = (ROOT / TAKEN_IN[page]).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    for name, file in TAKEN_IN.items():
        text = text.replace(f"]({file})", f"]({name}.md)")
    source[0] = text + "\n" + source[0]


def pages_that_are_here(contents):
    """The table of contents without pages that are not there; `*` stands for those it does not name."""
    here = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    lines = contents.splitlines()
    others = sorted(here - set(lines) - {"index"})
    kept = [line for line in lines if line in here or not re.fullmatch(r"[a-z/-]+", line)]
    return "\n".join("\n".join(others) if line == "*" else line for line in kept)


def verbs():
    """What `--help` says of each verb."""
    import click

    from torchsleuth.front.cli.main import VERBS, torchsleuth

    shown = []
    for name in VERBS:
        command = torchsleuth.get_command(None, name)
        context = click.Context(
            command, info_name=f"torchsleuth {name}", terminal_width=100, max_content_width=100
        )
        shown.append(f"\n## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "".join(shown)


def setup(app):
    from pygments.lexers.special import TextLexer

    app.add_lexer("mermaid", TextLexer)  # drawn where the file is read on a forge; here it is text
    app.connect("source-read", take_in)
