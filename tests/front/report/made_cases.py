"""Recorded cases of every kind, as a run leaves them: made here, so that what a report shows of each is known."""

from __future__ import annotations

import json
from pathlib import Path

from made import make
from torchsleuth.core.cases.folder import CaseFolder, write_case
from torchsleuth.core.cases.model import GraphFacts, Minified, Rung, Triage, Verified, Workaround
from torchsleuth.script_runtime.signature import Signature

GRAPH = """class Repro(torch.nn.Module):
    def forward(self, l_x_, l_self_modules_stem_modules_0_parameters_weight_):
        # model.py:12 in forward: x = F.silu(self.stem(x))
        conv2d = torch.conv2d(l_x_, l_self_modules_stem_modules_0_parameters_weight_)  # f32[2, 8, 4, 4]
        silu = torch.nn.functional.silu(conv2d)  # f32[2, 8, 4, 4]
        # model.py:35 in forward: y = F.interpolate(y, scale_factor=(1.3, 1.5), mode="nearest")
        y = torch.nn.functional.interpolate(silu, scale_factor=(1.3, 1.5))  # f32[2, 8, 5, 6]
        # model.py:36 in forward: return y.mean((2, 3))
        mean = y.mean((2, 3))  # f32[2, 8]
        return (mean,)
"""
RECORD = {
    "level": "dynamo",
    "nodes": {
        name: {
            "file": "/home/ada/model.py",
            "line": line,
            "function": "forward",
            "code": code,
            "module": module,
        }
        for name, line, code, module in (
            ("conv2d", 12, "x = F.silu(self.stem(x))", "stem.0"),
            ("silu", 12, "x = F.silu(self.stem(x))", ""),
            ("y", 35, 'y = F.interpolate(y, scale_factor=(1.3, 1.5), mode="nearest")', ""),
            ("mean", 36, "return y.mean((2, 3))", ""),
        )
    },
}
REPRO = '''"""wrong result: outputs[0] (torch 2.13.0, torchsleuth 0.1.0, case a0000001)"""

import sys
import torch

EXPECTED = {'kind': 'accuracy', 'phase': 'run'}


def f(x):
    return torch.nn.functional.interpolate(x, scale_factor=(1.3, 1.5))


torch.manual_seed(0)
x = torch.randn(1, 1, 2, 1)
print("torchsleuth: compiling", file=sys.stderr)
try:
    wanted, got = f(x), torch.compile(f)(x)
except Exception as error:
    print(f"DIFFERENT FAILURE: {type(error).__name__}: {error}".partition("\\n")[0])
    sys.exit(2)
if not torch.allclose(wanted, got, rtol=0, atol=1e-06, equal_nan=True):
    print('REPRODUCED: wrong result: outputs[0]')
    sys.exit(1)
print("NOT REPRODUCED")
'''
PROGRAM = '''"""Unsupported: generator (torch 2.13.0, torchsleuth 0.1.0, case a0000004)"""

import sys, traceback
import torch

EXPECTED = {'kind': 'capture_error', 'phase': 'capture'}


@torch.compile(fullgraph=True)
def step(x):
    for each in x:
        print(each)


print("torchsleuth: running", file=sys.stderr)
try:
    step(torch.ones(2))
except Exception as error:
    print(f"DIFFERENT FAILURE: {type(error).__name__}: {error}".partition("\\n")[0])
    sys.exit(2)
print("NOT REPRODUCED")
'''
FILES = {
    "graph.py": GRAPH,
    "record.json": json.dumps(RECORD),
    "repro.py": REPRO,
    "traceback.txt": 'Traceback:\n  File "/opt/venv/lib/python3.11/site-packages/torch/_ops.py", line 3, in f\nValueError: bad',
    "environment.txt": "python 3.11.7\nplatform Linux\ntorch 2.13.0\nTORCHINDUCTOR_CACHE_DIR=/data/ada/cache\nTORCH_LOGS=+dynamo\n",
    "log.txt": "graph 1: dynamo forward\n",
}
TRIAGE = Triage(
    component="aot_autograd",
    part="functionalization",
    ops=("torch.nn.functional.interpolate",),
    user_line="model.py:35",
    code='y = F.interpolate(y, scale_factor=(1.3, 1.5), mode="nearest")',
    function="forward",
    pinned=True,
    seconds=3.0,
    nodes=("y",),
    labels=("oncall: pt2", "module: pt2-dispatcher"),
    rungs=(Rung("AOTAutograd with eager kernels", "fails", 0.37), Rung("with eager", "passes", 0.2)),
)
WORKAROUNDS = (
    Workaround(
        "interpolate left out",
        "\n".join(f"line {n}" for n in range(6)),
        True,
        disables="one operator, and nothing else",
    ),
    Workaround(
        "backend eager",
        'torch.compile(model, backend="eager")',
        True,
        disables="all code generation",
        cost=1.5,
    ),
    Workaround(
        "function forward eager",
        f"@torch.compiler.disable  # {'above a line that is long ' * 20}",
        False,
        error="it fails as before",
    ),
)
LEAF = {
    "path": "outputs[0]",
    "kind": "DIVERGED",
    "index": [1, 0],
    "compiled": 0.6717419,
    "eager": 0.52035671,
    "truth": 0.5203567,
    "z": 1262385.3,
}


def accuracy(cases: Path, **changes: object) -> CaseFolder:
    """A wrong result of which everything is known."""
    case = make(
        id="a0000001",
        kind="accuracy",
        phase="run",
        after="dynamo",
        signature=Signature("accuracy", "run", outputs=("outputs[0]",)),
        graph=GraphFacts(4, 2, ("model.py:12", "model.py:35", "model.py:36")),
        triage=TRIAGE,
        minified=Minified(1, 1, ("torch.nn.functional.interpolate",), 17, 12.7, 0, 24),
        verified=Verified(3, 3, True, None, True),
        workarounds=WORKAROUNDS,
        extra={
            "accuracy": {"verdict": {"kind": "DIVERGED", "leaves": [LEAF]}},
            "explanation": {"may_vary": ["any values"], "passes_with": "size 4 instead of 2 in dim 2 of y"},
            "verified_in": "3 forks of an interpreter",
        },
    )
    return write_case(cases, _changed(case, changes), FILES)


def compile_error(cases: Path) -> CaseFolder:
    """A compile error with a script of the whole graph only: nothing was searched."""
    word = "a::word::without::an::end::" * 5
    signature = Signature("compile_error", "compile", ("ValueError",), f"bad {word}")
    case = make(id="a0000002", signature=signature, verified=Verified(1, 1, True))
    return write_case(cases, case, {**_less("repro.py"), "original.py": "import torch\n" * 40})


def crash(cases: Path) -> CaseFolder:
    """A crash whose search was stopped half-way."""
    case = make(
        id="a0000003",
        kind="crash",
        phase="run",
        signature=Signature("crash", "run", signal="SIGSEGV"),
        triage=Triage(error="the time was up"),
        minified=Minified(calls=2, queries=5, seconds=4.0, error="the search host was lost"),
        verified=Verified(3, 2, True),
        workarounds=(WORKAROUNDS[2],),
    )
    return write_case(cases, case, FILES)


def capture_error(cases: Path) -> CaseFolder:
    """A call that could not be captured: no graph, a program as script."""
    case = make(
        id="a0000004",
        kind="capture_error",
        phase="capture",
        direction=None,
        after=None,
        graph=None,
        signature=Signature("capture_error", "capture", ("Unsupported",), "generator"),
        triage=Triage("dynamo", "capture", user_line="model.py:9", code="for each in x:", function="step"),
        minified=Minified(program_lines=4, queries=30, seconds=8.0, lines=20),
        verified=Verified(3, 3, True),
        workarounds=(Workaround("function step eager", "@torch.compiler.disable", True, program=True),),
    )
    return write_case(cases, case, {**_less("graph.py", "record.json"), "repro.py": PROGRAM})


def hang(cases: Path) -> CaseFolder:
    """A hang without a script."""
    case = make(
        id="a0000005",
        kind="hang",
        phase="compile",
        signature=Signature("hang", "compile"),
        no_repro="an input is a tensor subclass",
        rank="1",
    )
    return write_case(cases, case, {"graph.py": GRAPH})


def programs_own(cases: Path) -> CaseFolder:
    """A failure that is the program's own."""
    case = make(
        id="a0000006",
        kind="runtime_error",
        phase="run",
        signature=Signature("runtime_error", "run", ("IndexError",), "index # is out of bounds"),
        triage=Triage("program", user_line="model.py:3", code="return table[index]", pinned=True),
        verified=Verified(1, 1, True),
    )
    return write_case(
        cases,
        case,
        {
            "original.py": "import torch\n",
            "traceback.txt": "Traceback\nIndexError: index 7 is out of bounds for axis 0 with size 5\n",
        },
    )


KINDS = (accuracy, compile_error, crash, capture_error, hang, programs_own)


def _less(*names: str) -> dict[str, str]:
    return {name: text for name, text in FILES.items() if name not in names}


def _changed(case, changes):
    import dataclasses

    return dataclasses.replace(case, **changes)
