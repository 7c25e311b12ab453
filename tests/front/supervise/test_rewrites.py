"""A line that cannot be captured, written another way: what is offered, and that only what is equal is accepted."""

import textwrap

import pytest

from program_runs import run_watched
from torchsleuth.core.changes import Change
from torchsleuth.core.processes.sealed import why_not_sealable
from torchsleuth.front.supervise.rewrites import rewrites_of

# Functions of one tensor, each with a mark at the line that cannot be captured; what stands there instead.
REWRITTEN = {
    "branch": (
        """
        if x.sum() > 0:  # <-
            x = x * 2
        return x
        """,
        "x = torch.where(x.sum() > 0, x * 2, x)",
    ),
    "two_sides": (
        """
        if torch.allclose(x, x) and not x.max().item() > 100:  # <-
            y = x + 1
            z = x.sin()
        else:
            y = x - 1
            z = x
        return y, z
        """,
        "chosen = torch.logical_and(torch.isclose(x, x).all(), torch.logical_not(x.max() > 100))\n"
        "y = torch.where(chosen, x + 1, x - 1)\n"
        "z = torch.where(chosen, x.sin(), x)",
    ),
    "returned": (
        """
        if x.isnan().any():  # <-
            return x * 0
        return x.cos()
        """,
        "return torch.where(x.isnan().any() != 0, x * 0, x.cos())",
    ),
    "chosen": (
        "return x + (x.mean() if x.sum() > 0 else 1.0)  # <-",
        "return x + torch.where(x.sum() > 0, x.mean(), 1.0)",
    ),
    "refused": (
        """
        if x.min() < 0:  # <-
            raise ValueError("negative")
        return x.sqrt()
        """,
        "assert torch.logical_not(x.min() < 0), 'negative'",
    ),
    "looped": (
        """
        while x.sum() < 100:  # <-
            x = x * 2
        return x
        """,
        "x, = torch.while_loop(lambda x: x.sum() < 100, lambda x: (x * 2,), (x,))",
    ),
    "listed": (
        """
        total = torch.zeros(4)
        for each in x.tolist():  # <-
            total = total + x * each
        return total
        """,
        "for each in x.unbind(0):\n    total = total + x * each",
    ),
    "copied": ("return copy.deepcopy(x + 1) * 2  # <-", "return (x + 1).clone() * 2"),
    "logged": (
        """
        LOG.warning("now %s", x)  # <-
        return x + 1
        """,
        "if not torch.compiler.is_compiling():\n    LOG.warning('now %s', x)",
    ),
    "said": (
        """
        print("now", x.sum())  # <-
        return x + 1
        """,
        "if not torch.compiler.is_compiling():\n    print('now', x.sum())",
    ),
}
HEAD = "import copy, logging\nimport torch\n\nLOG = logging.getLogger()\n"


def function(name, body):
    return f"\ndef {name}(x):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"


def first_rewrite(text, name):
    line = next(n for n, line in enumerate(text.splitlines(), 1) if "# <-" in line)
    return rewrites_of(text, name, line)[0]


@pytest.mark.parametrize("name", REWRITTEN)
def test_what_stands_there_instead(name):
    body, expected = REWRITTEN[name]
    found = first_rewrite(HEAD + function(name, body), name)
    assert textwrap.dedent(found.after) == expected
    assert "# <-" in found.before


def test_torch_is_called_what_the_file_calls_it():
    text = "import torch as th\n" + function("f", REWRITTEN["branch"][0])
    assert "x = th.where(" in first_rewrite(text, "f").after
    assert rewrites_of(text.replace("import torch as th", "import other"), "f", 4) == []


def test_a_statement_that_shares_its_lines_is_left_alone():
    text = "import torch\ndef f(x):\n    if x > 0: x = copy.deepcopy(x)\n    elif x < 3:\n        x = 1\n    return x"
    assert rewrites_of(text, "f", 3) == []
    assert rewrites_of(text, "f", 4) == []
    assert rewrites_of("def f(:", "f", 1) == [] and rewrites_of(text, "g", 3) == []


def compiled_calls(names, value="torch.ones(4)"):
    calls = [f'torch.compile({name}, fullgraph=True, backend="eager")({value})' for name in names]
    return "\n" + "\n".join(calls) + "\n"


def watched_with(folder, bodies, rewrites, value="torch.ones(4)"):
    text = (
        HEAD + "".join(function(name, body) for name, body in bodies.items()) + compiled_calls(bodies, value)
    )
    file = str(folder / "program.py")
    wanted = Change(rewritten=tuple((file, *each) for each in rewrites(text)))
    return run_watched(folder, text, "--check-accuracy", "--record-only", **wanted.to_environment())


@pytest.mark.slow
@pytest.mark.skipif(why_not_sealable() is not None, reason="needs processes that can be sealed off")
def test_each_is_captured_and_equals_the_text_it_takes_the_place_of(tmp_path):
    bodies = {name: body for name, (body, _) in REWRITTEN.items()}

    def rewrites(text):
        for name in bodies:
            start = text.splitlines().index(f"def {name}(x):") + 1
            marked = next(n for n, line in enumerate(text.splitlines()[start:], start + 1) if "# <-" in line)
            found = rewrites_of(text, name, marked)[0]
            yield found.first, found.last, found.after

    ran = watched_with(tmp_path, bodies, rewrites)
    assert (ran.status, ran.cases) == (0, []), ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(why_not_sealable() is not None, reason="needs processes that can be sealed off")
def test_what_is_not_equal_is_a_failure_of_its_own(tmp_path):
    others = {
        "another_number": ("    x = torch.where(x.sum() > 0, x * 3, x)", "result differs in 4 of 4 elements"),
        "another_type": ("    x = torch.where(x.sum() > 0, x * 2, x).double()", "result is a Tensor"),
        "written_to": ("    x *= 2", "args[0] differs"),
    }

    def rewrites(text):
        for name, (after, _) in others.items():
            start = text.splitlines().index(f"def {name}(x):") + 2
            yield start, start + 1, after

    ran = watched_with(tmp_path, dict.fromkeys(others, REWRITTEN["branch"][0]), rewrites)
    said = " ".join(ran.file("traceback.txt", case) for case in ran.cases)
    assert [case["kind"] for case in ran.cases] == ["accuracy"] * 3, ran.stderr
    assert all(what in said for _, what in others.values()), said


@pytest.mark.skipif(why_not_sealable() is not None, reason="needs processes that can be sealed off")
def test_what_cannot_be_compared_counts_as_not_done(tmp_path):
    body = 'x = copy.deepcopy(x)\nopen("out.txt", "w").close()\nreturn x'
    ran = watched_with(tmp_path, {"f": body}, lambda text: [(7, 8, "    x = x.clone()")])
    assert ran.status == 2 and "cannot be compared: it reaches beyond its own memory" in ran.stderr
