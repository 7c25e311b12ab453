"""Advice, applied as it is printed, and what came of it: each piece of it has to do what it says.

    python benchmarks/advice.py [--only NAME ...] [--corpus FOLDER] [--out results/advice.json]

A piece is a program and what torchsleuth prints about it. Code is taken out of the printed text and put where that says; words
are followed by an edit, and have to stand in the text. Breaks and recompilations are counted before and after, in one process,
with nothing in any compile cache; those marked "verb" by `torchsleuth explain` and `recompiles` themselves, whose numbers of a
trial have to come true to the last. With --runs the workarounds of `torchsleuth run` are pasted into programs of ours, with --corpus
(as `real.py` has it) into real ones: bare, each in an empty compile cache, they fail without, and pass or print what they print
uncompiled with it; and what `torchsleuth profile` says to paste makes the compile as much shorter as it has to.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advice_runs import PROFILES, WORKAROUNDS, NotFollowed, cure, one, workaround

Edit = Callable[[str, str], str]  # the program's text, and what was printed about it
SEVERAL = "compiled = torch.compile(f, backend=BACKEND)\n"


# -- ways to apply what is printed


def below_import(program: str, lines: str) -> str:
    return program.replace("import torch\n", f"import torch\n{lines}\n", 1)


def paste(program: str, printed: str) -> str:
    """The lines after `paste`, below `import torch`."""
    found = re.findall(r"^   paste   (.*?)\n +\((?:not )?tried", printed, re.MULTILINE | re.DOTALL)
    lines = dict.fromkeys(line.strip() for block in found for line in block.splitlines())
    if not lines:
        raise NotFollowed(f"there is nothing to paste in: {printed}")
    return below_import(program, "\n".join(lines))


def setting(program: str, printed: str) -> str:
    """The setting of Dynamo that is an idea, below `import torch`."""
    return below_import(program, one(r"torch\._dynamo\.config\.\w+ = \w+", printed))


def mark(program: str, printed: str) -> str:
    """The mark, before the call, for the argument of that name."""
    line = one(r"torch\._dynamo\.(?:maybe_)?mark_dynamic\(x, \d\)", printed)
    return re.sub(r"^( *)(compiled\(x)", rf"\1{line}\n\1\2", program, flags=re.MULTILINE)


def dynamic(program: str, printed: str) -> str:
    if "torch.compile(..., dynamic=True)" not in printed:
        raise NotFollowed(f"dynamic=True is not said in: {printed}")
    return program.replace("torch.compile(f, ", "torch.compile(f, dynamic=True, ")


def words(says: str, *edits: tuple[str, str]) -> Edit:
    """What is words is followed by edits of the text."""

    def follow(program: str, printed: str) -> str:
        if says not in printed:
            raise NotFollowed(f"{says!r} is not said in: {printed}")
        for before, after in edits:
            if before not in program:
                raise NotFollowed(f"{before!r} is not in the program")
            program = program.replace(before, after)
        return program

    return follow


# -- the pieces


@dataclass(frozen=True)
class Piece:
    """A program, how its advice is applied, and how many breaks or recompilations that leaves."""

    what: str  # "breaks" or "recompilations"
    program: str
    apply: Edit
    left: int = 0
    verb: str = ""  # by the verb itself, as a program of its own


def breaks(
    body: str, apply: Edit, *, arguments: str = "torch.ones(4)", top: str = "", left: int = 0
) -> Piece:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return Piece(
        "breaks", f"import torch\n{top}\ndef f(x):\n{lines}\n{SEVERAL}compiled({arguments})\n", apply, left
    )


def compiles(define: str, calls: str, apply: Edit, *, left: int = 0) -> Piece:
    return Piece("recompilations", f"import torch\n{define}\n{SEVERAL}{calls}\n", apply, left)


SINE = "def f(x, *_):\n    return x.sin() + 1\n"
SCALED = "def f(x, by):\n    return x * by\n"
LOG = 'import logging\nlog = logging.getLogger("advice")\n'
WARN = "import warnings\n"
SIZES = "for n in (2, 3, 4):\n    x = torch.ones(n, 3)\n    compiled(x)"

PIECES: dict[str, Piece] = {
    "print": breaks('y = x.sin()\nprint("at", "work")\nreturn y.cos()', paste),
    "print of a tensor": breaks("y = x.sin()\nprint(y)\nreturn y.cos()", paste),
    "a logger": breaks('y = x.sin()\nlog.info("at work")\nreturn y.cos()', paste, top=LOG),
    "a logger's warning": breaks('y = x.sin()\nlog.warning("%s", 3)\nreturn y.cos()', paste, top=LOG),
    "two methods of a logger": breaks(
        'log.debug("a")\ny = x.sin()\nlog.error("b")\nreturn y.cos()', paste, top=LOG
    ),
    "warnings.warn": breaks('y = x.sin()\nwarnings.warn("at work")\nreturn y.cos()', paste, top=WARN),
    "a number": breaks("n = x.sum().item()\nreturn x * n", paste),
    "int() of a tensor": breaks("n = int(x.sum())\nreturn x + n", paste),
    "float() of a tensor": breaks("n = float(x.mean())\nreturn x * n", paste),
    "a mask": breaks("return x[x > 0] * 2", paste),
    "nonzero": breaks("return torch.nonzero(x).sum()", paste),
    "unique": breaks("return torch.unique(x) + 1", paste),
    "number and mask": breaks("n = x.sum().item()\nreturn x[x > 0] * n", paste),
    "a branch on a number": breaks(
        "if x.mean().item() > 10:\n    return x.sin()\nreturn x.cos()",
        words(
            "select with torch.where",
            (
                "if x.mean().item() > 10:\n        return x.sin()\n    return x.cos()",
                "return torch.where(x.mean() > 10, x.sin(), x.cos())",
            ),
        ),
    ),
    "a branch on a tensor, by cond": breaks(
        "if x.sum() > 0:\n    return x.sin()\nreturn x.cos()",
        words(
            "torch.cond",
            (
                "if x.sum() > 0:\n        return x.sin()\n    return x.cos()",
                "return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))",
            ),
        ),
    ),
    "a break asked for": breaks(
        "y = x.sin()\ntorch._dynamo.graph_break()\nreturn y.cos()",
        words("remove the call of torch._dynamo.graph_break", ("    torch._dynamo.graph_break()\n", "")),
    ),
    "a function that is disabled": breaks(
        "y = x.sin()\nreturn inner(y).cos()",
        words("remove the decorator", ("@torch.compiler.disable\n", "")),
        top="@torch.compiler.disable\ndef inner(x):\n    return x.tan()\n",
    ),
    "tolist": breaks(
        "n = x.tolist()\nreturn x + n[0]", words("keep the values in the tensor", ("n = x.tolist()", "n = x"))
    ),
    "a deep copy": breaks(
        "y = copy.deepcopy(x.sin())\nreturn y.cos()",
        words("use clone() for tensors", ("copy.deepcopy(x.sin())", "x.sin().clone()")),
        top="import copy\n",
    ),
    "mark": compiles(SINE, SIZES, mark),
    "mark, and a size of 1": compiles(SINE, SIZES.replace("(2, 3, 4)", "(8, 1, 9, 10)"), mark, left=1),
    "dynamic for sizes": compiles(SINE, SIZES, dynamic),
    "dynamic for whole numbers": compiles(
        SCALED, "for n in (2, 3, 4):\n    compiled(torch.ones(3), n)", dynamic
    ),
    "dynamic for other numbers": compiles(
        SCALED, "for n in (2.5, 3.5):\n    compiled(torch.ones(3), n)", dynamic
    ),
    "a number as a tensor": compiles(
        SCALED,
        "for n in (2.5, 3.5):\n    compiled(torch.ones(3), n)",
        words(
            "pass by as a tensor: torch.tensor(by)", ("torch.ones(3), n)", "torch.ones(3), torch.tensor(n))")
        ),
    ),
    "a whole number of a module": compiles(
        "class Net(torch.nn.Module):\n    step = 0\n    def forward(self, x):\n        return x * self.step\n\nf = Net()\n",
        "for n in (2, 3, 4):\n    f.step = n\n    compiled(torch.ones(3))",
        setting,
        left=1,
    ),
    "a whole number of an object": compiles(
        "from types import SimpleNamespace\ndef f(x, scale):\n    return x * scale.by\n",
        "for n in (2, 3, 4):\n    compiled(torch.ones(3), SimpleNamespace(by=n))",
        dynamic,
    ),
    "a global": compiles(
        "SCALE = 2.5\ndef f(x):\n    return x * SCALE\n",
        "compiled(torch.ones(3))\nSCALE = 3.5\ncompiled(torch.ones(3))",
        words(
            "pass SCALE to the function as an argument, and a changing number as a tensor",
            ("def f(x)", "def f(x, SCALE)"),
            ("compiled(torch.ones(3))", "compiled(torch.ones(3), torch.tensor(SCALE))"),
        ),
    ),
    "strides": compiles(
        SINE,
        "compiled(torch.ones(3, 4))\ncompiled(torch.ones(4, 3).t())",
        words("x.contiguous() before the call", (".t())", ".t().contiguous())")),
    ),
    "dtypes": compiles(
        SINE,
        "compiled(torch.ones(3))\ncompiled(torch.ones(3).double())",
        words("x.to(one dtype) before the call", (".double())", ".double().to(torch.float32))")),
    ),
    "ranks": compiles(
        SINE,
        "compiled(torch.ones(2, 3))\ncompiled(torch.ones(3))",
        words(
            "unsqueeze it before", ("torch.ones(3))", "torch.ones(3).unsqueeze(0).expand(2, 3).contiguous())")
        ),
    ),
    "requires_grad": compiles(
        SINE,
        "compiled(torch.ones(3))\ncompiled(torch.ones(3, requires_grad=True))",
        words("detach x before the call", ("requires_grad=True))", "requires_grad=True).detach())")),
    ),
    "lengths": compiles(
        "def f(x, items):\n    for item in items:\n        x = x + item\n    return x\n",
        "one = torch.ones(3)\ncompiled(one, [one + 1])\ncompiled(one, [one + 1, one + 2])",
        words("pad it to one length", ("compiled(one, [one + 1])", "compiled(one, [one + 1, one * 0])")),
    ),
    "objects made anew": compiles(
        "def f(x, g):\n    return g(x)\n",
        "compiled(torch.ones(3), lambda x: x.sin())\ncompiled(torch.ones(3), lambda x: x.sin() + 0)",
        words(
            "use the same object for g",
            (
                "compiled(torch.ones(3), lambda x: x.sin())\n",
                "g = lambda x: x.sin()\ncompiled(torch.ones(3), g)\n",
            ),
            ("torch.ones(3), lambda x: x.sin() + 0", "torch.ones(3), g"),
        ),
    ),
    "grad mode": compiles(
        SINE,
        "compiled(torch.ones(3))\nwith torch.no_grad():\n    compiled(torch.ones(3))",
        words(
            "call it always inside torch.no_grad()",
            ("compiled(torch.ones(3))\nwith", "with torch.no_grad():\n    compiled(torch.ones(3))\nwith"),
        ),
    ),
    "default dtype": compiles(
        SINE,
        "compiled(torch.ones(3, dtype=torch.float32))\ntorch.set_default_dtype(torch.float64)\ncompiled(torch.ones(3, dtype=torch.float32))\ntorch.set_default_dtype(torch.float32)",
        words("set the default dtype once", ("torch.set_default_dtype(torch.float64)\n", "")),
    ),
    "verb: explain, three lines of which one is none": Piece(
        "breaks",
        f'import torch\n{LOG}\n@torch.compile(backend="eager")\ndef f(x):\n    y = x.sin()\n    log.warning("at work")\n    z = y.cos()\n    print("shape", x.shape)\n    return z * z.sum().item()\n\nf(torch.ones(3))\n',
        words(""),
        1,
        "explain",
    ),
    "verb: explain, a library's logger": Piece(
        "breaks",
        'import torch\nfrom torch.distributed import distributed_c10d\n\n@torch.compile(backend="eager")\ndef f(x):\n    y = x.sin()\n    distributed_c10d.logger.info("at work")\n    return y.cos()\n\nf(torch.ones(3))\n',
        words(""),
        0,
        "explain",
    ),
    "verb: recompiles, marks or dynamic": Piece(
        "recompilations",
        'import torch\n\ndef f(x):\n    return x.sin() + 1\n\ncompiled = torch.compile(f, backend="eager")\nfor n in (2, 3, 4):\n    x = torch.ones(n, 3)\n    compiled(x)\n',
        words(""),
        0,
        "recompiles",
    ),
    "verb: recompiles, a module's number": Piece(
        "recompilations",
        'import torch\n\nclass Net(torch.nn.Module):\n    step = 0\n    def forward(self, x):\n        return x * self.step\n\nnet = Net()\ncompiled = torch.compile(net, backend="eager")\nfor n in range(2, 14):\n    net.step = n\n    compiled(torch.ones(3))\n',
        words(""),
        1,
        "recompiles",
    ),
}


# -- following one


def followed(piece: Piece, folder: Path) -> dict[str, Any]:
    """Before, after, and whether that is what was said: `followed(PIECES["print"], tmp_path)["holds"]`."""
    count = by_verb if piece.verb else in_process
    before, printed = count(piece, piece.program, folder)
    try:
        program = at_the_end(piece, printed) if piece.verb else piece.apply(piece.program, printed)
    except NotFollowed as why:
        return {"what": piece.what, "before": before, "after": None, "holds": False, "why": str(why)[:300]}
    after, _ = count(piece, program, folder)
    said = re.search(r"what to do \(tried: \w[\w ]* (\d+) → (\d+)", printed)
    true = said is None or (before, after) == (int(said[1]), int(said[2]))
    holds = after < before and after == piece.left and true
    return {"what": piece.what, "before": before, "after": after, "holds": holds}


def in_process(piece: Piece, program: str, folder: Path) -> tuple[int, str]:
    """How many there are, and what is printed about them, with everything forgotten before."""
    import torch

    import torchsleuth

    path = folder / f"program_{abs(hash(program))}.py"
    path.write_text(program)
    kept = {
        name: getattr(torch._dynamo.config, name)
        for name in ("reorderable_logging_functions", "ignore_logging_functions")
    }
    torch.compiler.reset()
    with torch._dynamo.config.patch(
        capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False, allow_unspec_int_on_nn_module=False,
        **{name: {*value} for name, value in kept.items()},
    ):  # fmt: skip
        backend = (
            torchsleuth.ExplainWithBackend("eager")
            if piece.what == "breaks"
            else torchsleuth.CompileProfiler()
        )
        exec(
            compile(program, str(path), "exec"),
            {"BACKEND": backend, "__name__": path.stem, "__file__": str(path)},
        )
        if isinstance(backend, torchsleuth.CompileProfiler):
            return backend.recompiles.count, backend.report()
        found = backend.output()
        return found.graph_break_count, str(found)


def by_verb(piece: Piece, program: str, folder: Path) -> tuple[int, str]:
    (folder / "program.py").write_text(program)
    environment = {
        **os.environ,
        "TORCHSLEUTH_CASES": str(folder / "cases"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
    }
    command = [sys.executable, "-m", "torchsleuth", piece.verb, "program.py"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    number = re.search(r"^(no|\d+) (?:graph break|recompilation)s?\b", ran.stdout, re.MULTILINE)
    if number is None:
        raise RuntimeError(ran.stdout + ran.stderr)
    return 0 if number[1] == "no" else int(number[1]), ran.stdout


def at_the_end(piece: Piece, printed: str) -> str:
    """The program with the lines of `what to do`."""
    _, mark_, rest = printed.partition("\nwhat to do (tried: ")
    lines = [line.strip() for line in rest.splitlines()[1:] if line.startswith("   ")]
    if not mark_ or not lines:
        raise NotFollowed(f"nothing is recommended: {printed}")
    program = piece.program
    for line in lines:
        if line == "torch.compile(..., dynamic=True)":
            program = re.sub(r"(torch\.compile\([^)]*)\)", r"\1, dynamic=True)", program)
        elif "before each call" in line:
            program = re.sub(r"^( *)(compiled\(x)", rf"\1{line}\n\1\2", program, flags=re.MULTILINE)
    below = [line for line in lines if line.startswith(("torch._dynamo.config", "import "))]
    return below_import(program, "\n".join(below)) if below else program


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--runs", action="store_true")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}

    def keep(name: str, row: dict[str, Any]) -> None:
        rows[name] = row
        print(name, json.dumps(row), file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))

    wanted = tuple(options.only) or ("",)
    for name, piece in PIECES.items():
        if not rows.get(name, {}).get("holds") and name.startswith(wanted):
            with tempfile.TemporaryDirectory() as folder:
                keep(name, followed(piece, Path(folder)))
    for name, (text, given) in WORKAROUNDS.items() if options.runs else ():
        if name.startswith(wanted) and not rows.get(name, {}).get("holds"):
            keep(name, workaround(text, given))
    for name, text in PROFILES.items() if options.runs else ():
        if name.startswith(wanted) and not rows.get(name, {}).get("holds"):
            keep(name, cure(text))
    if options.corpus is not None:
        from real import OPTIONS

        for about in json.loads((options.corpus / "expected.json").read_text()):
            name = about["program"]
            if name.startswith(wanted) and not rows.get(name, {}).get("holds"):
                keep(name, workaround((options.corpus / name).read_text(), OPTIONS.get(about["kind"], [])))
    print_rows(rows)


def print_rows(rows: dict[str, Any]) -> None:
    """The table, and how many pieces do what they say."""
    print("| piece of advice, or program | of | before | after | does what it says |")
    print("|---|---|---|---|---|")
    for name, row in rows.items():
        shown = f"{name}: {row['piece']}" if row.get("piece") else name
        print(
            f"| {shown} | {row['what']} | {row['before']} | {row['after']} | {'yes' if row['holds'] else 'no'} |"
        )
    print(f"| **{sum(row['holds'] for row in rows.values())} of {len(rows)}** | | | | |")


if __name__ == "__main__":
    main()
