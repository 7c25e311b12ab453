"""Whole programs made small: each candidate runs in a process of its own, captured and not compiled."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import Future
from dataclasses import replace

import pytest

from made import make
from torchsleuth.core.cases.folder import write_case
from torchsleuth.core.cases.model import Verified, read_case
from torchsleuth.core.criteria import difference_to_eager
from torchsleuth.core.processes.limits import Limits
from torchsleuth.core.protocol.steps import CheckOrder
from torchsleuth.core.protocol.trials import Outcome, Seen
from torchsleuth.front.report.words import how_sure
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.minify.case_state import CannotMinify, CaseQuestions
from torchsleuth.search.minify.contract import Listener
from torchsleuth.search.minify.minify_program import minify_checked, minify_program
from torchsleuth.search.minify.python.oracle import DifferenceOracle, ProgramOracle, first_difference
from torchsleuth.search.minify.python.program import parsed
from torchsleuth.search.minify.script_cases import (
    FirstRun,
    case_of_program,
    joined,
    program_of_case,
    standing_alone,
    with_results,
)
from torchsleuth.search.workers.pool import Workers


@pytest.fixture(scope="module")
def workers():
    with Workers(2) as made:
        yield made


class Nobody(Listener):
    """Nobody verifies what is written."""

    def written(self, wanted):
        return


def reduced(workers, tmp_path, text, **how):
    """The case of a program, and what is left of it."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(text))
    questions = CaseQuestions(workers, tmp_path / "values")
    folder = case_of_program(script, tmp_path / "cases", questions, FirstRun(**how))
    workers.log = type(workers.log)(folder.file("minify/trials.jsonl"))
    return folder, minify_program(folder, questions, Nobody(), budget_seconds=400).reduction


BRANCH = """
    import math
    from dataclasses import dataclass

    import torch
    import torch.nn as nn


    @dataclass
    class Config:
        width: int = 64
        depth: int = 3


    class Block(nn.Module):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.linear = nn.Linear(config.width, config.width)
            self.scale = 1 / math.sqrt(config.width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) * self.scale
            if y.mean() > 0:  # the values decide
                y = y.relu()
            return x + y


    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.blocks = nn.ModuleList([Block(config) for _ in range(config.depth)])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x


    def main():
        config = Config(width=32, depth=2)
        compiled = torch.compile(Model(config).eval(), fullgraph=True, backend="eager")
        with torch.no_grad():
            print(compiled(torch.randn(8, config.width)).shape)


    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow
def test_a_branch_on_values_is_left_alone_with_the_compiled_function(workers, tmp_path):
    folder, found = reduced(workers, tmp_path, BRANCH)
    assert folder.case.kind == "capture_error"
    assert "Data-dependent branching" in folder.case.signature.message
    lines = [line for line in found.text.splitlines() if line.strip()]
    assert len(lines) <= 6, found.text
    assert "fullgraph=True" in found.text
    script = folder.file("checkpoints/program.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=250)
    assert run.returncode == 1, run.stderr
    assert run.stdout.splitlines()[-1].startswith("REPRODUCED: Unsupported: Data-dependent branching")


def test_what_was_asked_is_not_asked_again(workers, tmp_path):
    program = "import torch\nx = torch.ones(3)\ny = x + 1\n\ndef f(x):\n    print(x)\n    return id(x)\n"
    program += 'torch.compile(f, fullgraph=True, backend="eager")(y)\n'
    _, first = reduced(workers, tmp_path, program)
    ran = workers.ran
    _, second = reduced(workers, tmp_path, program)
    assert second.text == first.text
    assert workers.ran - ran == 2  # how it fails, compiled and not, is seen anew


def test_a_backend_that_kills_the_process(workers, tmp_path):
    program = """
        import os
        import torch

        def backend(gm, inputs):
            if len(gm.graph.nodes) > 2:
                os.abort()
            return gm.forward

        @torch.compile(backend=backend)
        def f(x, y):
            z = x.sin()
            return z + y

        for n in range(3):
            print(f(torch.ones(4), torch.ones(4)))
    """
    folder, found = reduced(workers, tmp_path, program)
    assert (folder.case.kind, folder.case.signature.signal) == ("crash", "SIGABRT")
    assert "os.abort()" in found.text and "torch.compile" in found.text
    assert "print" not in found.text and "range" not in found.text


@pytest.mark.slow
def test_a_wrong_result_stays_one_that_only_the_compiler_makes(workers, tmp_path):
    program = """
        import torch

        def doubling(gm, inputs):
            return lambda *args: [2 * out for out in gm(*args)]

        def loss(x):
            y = torch.tanh(x)
            return y.square().sum()

        for seed in range(3):
            x = torch.ones(3, 5)
            wanted, got = loss(x), torch.compile(loss, backend=doubling)(x)
            assert torch.allclose(wanted, got), f"step {seed}: {wanted} is not {got}"
    """
    folder, found = reduced(workers, tmp_path, program)
    assert folder.case.signature.exceptions == ("AssertionError",)
    assert "torch.compile(" in found.text and "doubling" in found.text and "assert" in found.text
    assert "tanh" not in found.text and "seed" not in found.text


@pytest.mark.parametrize(
    ("text", "eager_passes", "fails"),
    [
        ("raise ValueError('nothing of this works')", False, True),
        ("raise ValueError('nothing of this works')", True, False),
        ("raise KeyError('nothing of this works')", False, False),
        ("import sys\nsys.exit(0)", False, False),
    ],
)
def test_what_fails_uncompiled_is_another_failure(workers, tmp_path, text, eager_passes, fails):
    expected = Signature("runtime_error", "run", ("ValueError",), "nothing of this works")
    oracle = ProgramOracle(workers, expected, tmp_path, eager_passes)
    assert oracle([parsed(text)]) == [fails]


def test_a_program_that_does_not_end_hangs(workers, tmp_path):
    oracle = ProgramOracle(workers, Signature("hang", "run"), tmp_path, False, 1.0)
    assert oracle([parsed("x = 1"), parsed("while True:\n    pass")]) == [False, True]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "does not fail here, so there is nothing to make smaller"),
        ("x = (", "is not a Python program"),
    ],
)
def test_what_cannot_be_made_smaller_is_said_in_a_sentence(workers, tmp_path, text, said):
    with pytest.raises(CannotMinify, match=said):
        reduced(workers, tmp_path, text)


def test_what_a_program_gets_from_its_place_is_written_into_it(tmp_path):
    (tmp_path / "helper.py").write_text("")
    text = "from __future__ import annotations\nimport helper\n"
    script = tmp_path / "train.py"
    assert standing_alone(text, script, ["--epochs", "1"]).splitlines() == [
        "from __future__ import annotations",
        "import sys",
        "sys.argv[1:] = ['--epochs', '1']",
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "import helper",
    ]
    assert standing_alone("import torch\n", script) == "import torch\n"


NETS = """
    from __future__ import annotations
    import torch
    from sizes import WIDTH as width

    class Net(torch.nn.Linear):
        def __init__(self):
            super().__init__(width, 2)

    def build():
        return Net()
"""
USES = "import torch\n{}\n\nprint(tuple({}build()(torch.ones(3)).shape))\n"


@pytest.fixture
def beside(tmp_path):
    (tmp_path / "nets.py").write_text(textwrap.dedent(NETS))
    (tmp_path / "sizes.py").write_text("WIDTH = 3\n")
    return tmp_path


@pytest.mark.parametrize(
    ("imports", "prefix"),
    [
        ("from nets import build", ""),
        ("import nets", "nets."),
        ("import nets as n", "n."),
        ("from nets import *", ""),
    ],
)
def test_the_files_of_a_program_become_one(beside, imports, prefix, capsys):
    text = joined(USES.format(imports, prefix), beside)
    assert "nets" not in text and "sizes" not in text and text.startswith("from __future__")
    exec(compile(text, "one.py", "exec"), {})
    assert capsys.readouterr().out == "(2,)\n"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\n",
        "from nets import build\ndef Net(): pass\n",
        "import nets\nprint(vars(nets))\n",
        "import nets\ndef f(build): return nets.build()\n",
        "def f():\n    import nets\n    return nets.build()\n",
        "import nets\nnets.Net = None\n",
    ],
    ids=[
        "no files",
        "a clash",
        "the module itself",
        "a parameter of that name",
        "in a function",
        "written to",
    ],
)
def test_files_whose_names_would_not_mean_the_same_stay_apart(beside, text):
    assert joined(text, beside) is None


def test_the_script_of_a_program_of_several_files_needs_none_of_them(workers, tmp_path):
    (tmp_path / "nets.py").write_text("def run(x):\n    raise ValueError(f'no {x}')\n")
    script = tmp_path / "train.py"
    script.write_text("import nets\nnets.run(3)\n")
    folder = case_of_program(script, tmp_path / "cases", CaseQuestions(workers, tmp_path / "values"))
    original = folder.text("original.py")
    assert "def run" in original and "sys.path" not in original and "import nets" not in original


def test_a_tensor_that_is_wrong_does_not_become_a_function_that_is_called_otherwise(tmp_path):
    whole, small, other = (parsed(f"result = {text}\nwrong = [result]") for text in ("f(x + 1)", "f(x)", "f"))
    held = {
        whole.text: ("['Tensor tensor(0.)']", "['Tensor tensor(1.)']"),
        small.text: ("['Tensor tensor(0.)']", "['Tensor tensor(2.)']"),
        other.text: ("['function <function f>']", "['function <function wrapped>']"),
    }

    class Knowing:
        limits = Limits()

        def submit(self, trial, limits):
            ticket = Future()
            shown = held[trial.graph][trial.change.uncompiled]
            ticket.set_result(Outcome(None, 0.1, seen=Seen(wrong=shown)))
            return ticket

    signature = Signature("accuracy", "capture", outputs=("result",))
    oracle = DifferenceOracle(Knowing(), signature, tmp_path, shows="wrong = [result]")
    assert [oracle([each]) for each in (whole, other, small)] == [[True], [False], [True]]


# -- the program of a case whose graph or call does not fail by itself


AFTER_ARGUMENTS = """
    import sys
    import torch

    def backend(gm, inputs):
        def run(*args):
            if len(sys.argv) > 1:  # nothing that a graph would know of
                raise RuntimeError("the kernel has lost its state")
            return gm(*args)
        return run

    @torch.compile(backend=backend)
    def f(x):
        return x.sin() + 1

    print(f(torch.ones(3)))
"""
LOST = Signature("runtime_error", "run", ("RuntimeError",), "the kernel has lost its state")
FLIPPED = """
    import torch

    class Memory:
        on = False

    memory = Memory()

    def f(x):
        return x + 1 if memory.on else x - 1

    compiled = torch.compile(f, options={"guard_filter_fn": lambda guards: [False for _ in guards]})
    for step in range(6):
        print("step", step)
        y = compiled(torch.ones(3))
        memory.on = step % 2 == 1
"""


def program_in_case(workers, tmp_path, text, case, **how):
    """The case once its program stands for it."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(text))
    folder = write_case(tmp_path / "cases", case, {"graph.py": "", "record.json": "{}"})
    questions = CaseQuestions(workers, tmp_path / "values")
    return program_of_case(folder, script, questions, FirstRun(**how))


def test_a_program_of_which_no_graph_fails_by_itself_becomes_the_repro_of_its_case(workers, tmp_path):
    case = make(kind="runtime_error", phase="run", signature=LOST)
    folder = program_in_case(workers, tmp_path, AFTER_ARGUMENTS, case, arguments=("go",))
    assert folder.case.id == case.id and folder.case.graph == case.graph
    assert "sys.argv[1:] = ['go']" in folder.text("original.py") and folder.case.extra["eager_passes"]
    assert "REPRODUCED: RuntimeError: the kernel has lost its state" in folder.text("original.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch", "run again, does not fail"),
        ("raise KeyError('x')", "run again, fails differently"),
        ("raise RuntimeError('the kernel has lost its state')", "fails without the compiler, too"),
    ],
)
def test_a_program_that_does_not_show_the_failure_is_no_repro(workers, tmp_path, text, said):
    case = make(kind="runtime_error", phase="run", signature=LOST)
    with pytest.raises(CannotMinify, match=said):
        program_in_case(workers, tmp_path, text, case)


@pytest.mark.slow
def test_calls_that_are_wrong_only_after_others_are_recorded_where_the_program_makes_them(workers, tmp_path):
    line = next(n for n, text in enumerate(textwrap.dedent(FLIPPED).splitlines(), 1) if "  y = " in text)
    capture = {"called_at": ["train.py", line, line, 8, 31], "component": "dynamo"}
    wrong = Signature("accuracy", "capture", outputs=("result",))
    case = make(kind="accuracy", phase="capture", signature=wrong, graph=None, extra={"capture": capture})
    folder = program_in_case(workers, tmp_path, FLIPPED, case)
    workers.log = type(workers.log)(folder.file("minify/trials.jsonl"))
    questions = CaseQuestions(workers, tmp_path / "values")
    found = minify_program(folder, questions, Nobody(), budget_seconds=200).reduction
    assert "guard_filter_fn" in found.text and ".on = " in found.text
    assert "print" not in found.text and found.text.rstrip().endswith("wrong = results")
    # The third where the sixth was in the given one.
    said = how_sure(replace(read_case(folder.path), verified=Verified(3, 3, True)))
    assert said.endswith(("; wrong from call 2 on", "; wrong from call 3 on"))


def test_a_call_whose_place_is_not_known_cannot_be_recorded(tmp_path):
    with pytest.raises(CannotMinify, match="does not show what is wrong"):
        with_results("f(3)", tmp_path / "a.py", {"called_at": None}, ["result"])
    with pytest.raises(CannotMinify, match="does not show what is wrong"):
        with_results("f(3)", tmp_path / "a.py", {"called_at": ["b.py", 1, 1, 0, 4]}, ["result"])


def test_of_recorded_calls_the_first_that_is_wrong_keeps_its_type():
    compiled, eager = str(["str '[3]'", "str '[tensor(1.)]'"]), str(["str '[3]'", "str '[tensor(2.)]'"])
    fewer = str(["str '[tensor(7.)]'"]), str(["str '[tensor(8.)]'"])
    assert difference_to_eager(compiled, lambda fill: eager) == (compiled, eager)
    assert [first_difference(*each)[0] for each in ((compiled, eager), fewer)] == [2, 1]
    assert first_difference(compiled, eager)[1] == first_difference(*fewer)[1]
    assert first_difference(*fewer)[1] != first_difference(str(["str '[<function f>]'"]), fewer[1])[1]


# -- whatever a person calls a failure


HOLDS_NEEDLE = """
    import math

    def unused():
        return 1

    def area(radius):
        needle = radius * 2  # the word that is looked for
        return math.pi * needle

    print(area(3))
"""
FINDS = ("sh", "-c", '! grep -q needle "$1"', "check", "{}")


def checked(tmp_path, command, **how):
    script, out = tmp_path / "train.py", tmp_path / "small.py"
    script.write_text(textwrap.dedent(HOLDS_NEEDLE))
    order = CheckOrder(str(script), command, str(out), str(tmp_path), dict(os.environ), budget=100, **how)
    minify_checked(order, tmp_path, 2, Nobody())
    return out.read_text()


@pytest.mark.parametrize(("command", "how"), [(FINDS, {}), (("cat",), {"fails_with": "need.e"})])
def test_a_command_of_the_persons_says_what_fails(tmp_path, command, how):
    """By its status, or by what it prints; a program that Python cannot read is not tried."""
    assert checked(tmp_path, command, **how).split() in (["needle", "=", each] for each in ("0", "1", "2"))


def test_another_error_of_the_command_is_another_failure(tmp_path):
    """The status alone would be 1 for an undefined name, too."""
    script, out = tmp_path / "train.py", tmp_path / "small.py"
    script.write_text("x = {}\ny = 1\nprint(x['a'])\n")
    order = CheckOrder(str(script), (sys.executable,), str(out), str(tmp_path), dict(os.environ), budget=60)
    minify_checked(order, tmp_path, 1, Nobody())
    assert "'a']" in out.read_text() and "y" not in out.read_text()


@pytest.mark.parametrize(
    ("command", "how", "said"),
    [
        (("true",), {}, "ends with status 0"),
        (("cat",), {"fails_with": "haystack"}, "does not match 'haystack'"),
        (("/nowhere/to/be/found",), {}, "cannot be started"),
    ],
)
def test_a_command_that_does_not_fail_is_said_in_a_sentence(tmp_path, command, how, said):
    with pytest.raises(CannotMinify, match=said):
        checked(tmp_path, command, **how)
