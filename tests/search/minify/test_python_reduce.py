"""Programs made small as Python text: exact minima of each reducer under an oracle that only reads the text."""

import ast
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchsleuth.search.minify.contract import OutOfBudget
from torchsleuth.search.minify.engine import Engine
from torchsleuth.search.minify.python.classes import constant_attributes, unmake_classes
from torchsleuth.search.minify.python.expressions import (
    fewer_arguments,
    plainer_constants,
    plainer_tensors,
    smaller_expressions,
    smaller_sizes,
)
from torchsleuth.search.minify.python.functions import (
    drop_parameters,
    drop_trimmings,
    inline_functions,
    leave_out_callers,
)
from torchsleuth.search.minify.python.program import parsed, unbound
from torchsleuth.search.minify.python.reduce import DoesNotFail, reduce_program
from torchsleuth.search.minify.python.statements import (
    drop_names,
    empty_containers,
    reduce_statements,
    unwrap_blocks,
)


def holding(*wanted):
    """An oracle for which a program fails as long as it says all of these."""
    return lambda programs: [all(each in program.text for each in wanted) for program in programs]


def dedented(text):
    return textwrap.dedent(text).strip()


REDUCERS = {
    "with": (unwrap_blocks, ["keep()"], "with a() as b, c:\n    keep()", "keep()"),
    "if": (unwrap_blocks, ["keep()"], "if a:\n    b()\nelse:\n    keep()", "keep()"),
    "for": (unwrap_blocks, ["keep(i)"], "for i in range(9):\n    keep(i)", "i = 0\nkeep(i)"),
    "for over values": (unwrap_blocks, ["keep(i)"], "for i in [a, b]:\n    keep(i)", "i = a\nkeep(i)"),
    "while": (unwrap_blocks, ["keep()"], "while a:\n    keep()", "keep()"),
    "try": (unwrap_blocks, ["keep()"], "try:\n    a()\nexcept E:\n    keep()\nfinally:\n    b()", "keep()"),
    "match": (
        unwrap_blocks,
        ["keep()"],
        "match a:\n    case 1:\n        b()\n    case _:\n        keep()",
        "keep()",
    ),
    "one of two values": (empty_containers, ["keep(b)"], "a, b = (f(x), g(x))\nkeep(b)", "b = g(x)\nkeep(b)"),
    "enumerate": (
        empty_containers,
        ["keep(b)"],
        "i, b = next(iter(enumerate(layers)))\nkeep(b)",
        "b = layers[0]\nkeep(b)",
    ),
    "enumerate alone": (
        empty_containers,
        ["keep(b)"],
        "i, b = next(enumerate(layers))\nkeep(b)",
        "b = layers[0]\nkeep(b)",
    ),
    "zip": (empty_containers, ["keep(b)"], "a, b = next(iter(zip(x, y)))\nkeep(b)", "b = y[0]\nkeep(b)"),
    "first element": (
        empty_containers,
        ["keep("],
        "b = next(iter(layers))\nkeep(b)",
        "b = layers[0]\nkeep(b)",
    ),
    "what is appended": (
        empty_containers,
        ["keep("],
        "b = ModuleList()\nb.append(a)\nkeep(b[0])",
        "b = ModuleList()\nb = a\nkeep(b)",
    ),
    "what a container is made of": (
        empty_containers,
        ["keep("],
        "b = ModuleList([a(), c])\nkeep(b[0], b[1])",
        "b = a()\nkeep(b, b)",
    ),
    "a class with a keyword": (
        unmake_classes,
        ["class B(A)", "class A"],
        "class A:\n    x = 1\n    def __init_subclass__(cls, name):\n        pass\n\nclass B(A, name=2):\n    y = 1",
        "class A:\n    x = 1\n\nclass B(A):\n    y = 1",
    ),
    "random numbers": (
        plainer_tensors,
        ["keep("],
        "keep(torch.randn(2, 3, dtype=d))",
        "keep(torch.ones(2, 3, dtype=d))",
    ),
    "a break keeps its loop": (
        unwrap_blocks,
        ["break"],
        "while a:\n    if b:\n        break",
        "while a:\n    break",
    ),
    "parameter": (
        drop_parameters,
        ["keep(x)"],
        "def f(x, y, z=1):\n    return keep(x)\nf(1, 2, z=3)",
        "def f(x):\n    return keep(x)\nf(1)",
    ),
    "parameter of a compiled module": (
        drop_parameters,
        ["keep(x)"],
        """
        class M:

            def forward(self, mask, x):
                return keep(x)
        compiled = torch.compile(M().eval(), fullgraph=True)
        compiled(1, x=2)
        """,
        """
        class M:

            def forward(self, x):
                return keep(x)
        compiled = torch.compile(M().eval(), fullgraph=True)
        compiled(x=2)
        """,
    ),
    "trimmings": (
        drop_trimmings,
        ["keep(x)"],
        "@a\n@b(1)\ndef f(x: int, y=2) -> int:\n    '''About.'''\n    z: int = y\n    return keep(x)",
        "def f(x, y):\n    z = y\n    return keep(x)",
    ),
    "base classes and imports": (
        drop_trimmings,
        ["class A", "import b"],
        "from a import b, c\n\nclass A(b, metaclass=c):\n    x: int = 1",
        "from a import b\n\nclass A:\n    x: int = 1",
    ),
    "function": (
        inline_functions,
        ["def f", "keep("],
        "def g(a, n=2):\n    b = a + n\n    return b\n\ndef f(x):\n    y = keep(g(x))\n    return y",
        "def f(x):\n    return keep(x + 2)",
    ),
    "function whose names are taken": (
        inline_functions,
        ["keep(x, "],
        "def g(a):\n    x = a * 2\n    a(x)\n    return x\nx = 1\ny = g(x)\nkeep(x, y)",
        "x = 1\nx_g = x * 2\nx(x_g)\nkeep(x, x_g)",
    ),
    "main": (
        inline_functions,
        ["keep(x)"],
        "def main():\n    x = 1\n    y = a(x)\n    keep(x)\n    keep(y)\nmain()",
        "x = 1\ny = a(x)\nkeep(x)\nkeep(y)",
    ),
    "caller": (
        leave_out_callers,
        ["keep(x)"],
        "def g(x):\n    return keep(x)\n\ndef f(x):\n    return g(x) + 1\nf(1)",
        "def g(x):\n    return keep(x)\ng(1)",
    ),
    "class": (
        unmake_classes,
        ["keep(x"],
        """
        class M(Base):

            def __init__(self):
                self.w = 3

            def forward(self, x):
                return keep(x * self.w)
        m = M()
        m(1)
        """,
        """
        w = 3

        def forward(x):
            return keep(x * w)
        m = forward
        m(1)
        """,
    ),
    "class of methods": (
        unmake_classes,
        ["keep(x)"],
        "class T:\n\n    def start(self, x):\n        return keep(x)\nt = T()\nt.start(1)",
        "def start(x):\n    return keep(x)\nt = None\nstart(1)",
    ),
    "object that no constructor made": (
        unmake_classes,
        ["keep(x"],
        """
        class M(Base):

            def __init__(self):
                super().__init__()

            def forward(self, x):
                return self.helper(x)

            def helper(self, x):
                return keep(x * self.w * self.b)
        w = 3
        m = M.__new__(M)
        Base.__init__(m)
        m.w = w
        m.register_buffer('b', 4)
        m(1)
        """,
        """
        def forward(x):
            return helper(x)

        def helper(x):
            return keep(x * w * b)
        w = 3
        m = forward
        b = 4
        m(1)
        """,
    ),
    "parameter that is used": (
        drop_parameters,
        ["keep(x)"],
        "x = 1\n\ndef f(x):\n    return keep(x)\nf(x)",
        "x = 1\n\ndef f(x):\n    return keep(x)\nf(x)",
    ),
    "tensors": (
        plainer_tensors,
        ["keep("],
        "keep(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, 2, 3], [4, 5, 6]]))",
        "keep(torch.ones(2, 2), torch.zeros(2, 3, dtype=torch.long))",
    ),
    "method whose object has its name": (
        unmake_classes,
        ["keep(x)"],
        "class T:\n\n    def start(self, x):\n        return keep(x)\nstart = T.__new__(T)\nstart.start(1)",
        "def t(x):\n    return keep(x)\nstart = None\nt(1)",
    ),
    "class that needs itself": (
        unmake_classes,
        ["keep(self)"],
        "class M:\n\n    def forward(self):\n        return keep(self)\nM()()",
        "class M:\n\n    def forward(self):\n        return keep(self)\nM()()",
    ),
    "attribute": (
        constant_attributes,
        ["keep("],
        "class C:\n    width: int = 4\nkeep(C().width)",
        "class C:\n    width: int = 4\nkeep(4)",
    ),
    "variable": (
        drop_names,
        ["keep(x)"],
        "x = 1\ny = a(x)\nif x:\n    y += 1\n    b(y)\nkeep(x)",
        "x = 1\nif x:\n    pass\nkeep(x)",
    ),
    "sizes": (
        smaller_sizes,
        ["keep("],
        "n = 64\nkeep(torch.randn(64, 128), n)",
        "n = 2\nkeep(torch.randn(2, 2), n)",
    ),
    "options": (
        fewer_arguments,
        ["compile(f, ", "fullgraph=True"],
        "torch.compile(f, mode='max-autotune', fullgraph=True, options={'a': 1})(x, [y, z])",
        "torch.compile(f, fullgraph=True)()",
    ),
    "value that nobody keeps": (
        fewer_arguments,
        ["keep(", "with a()"],
        "a1, a2 = keep()\nwith a() as b:\n    c = keep()",
        "keep()\nwith a():\n    keep()",
    ),
    "expression": (
        smaller_expressions,
        ["y = ", "keep("],
        "y = keep(a + b * c).d[0] + (1 if e else f)",
        "y = keep(a)",
    ),
    "method chain": (
        smaller_expressions,
        ["if ", ".item()"],
        "if x.sin().cos().item() > 0.5:\n    pass",
        "if x.item():\n    pass",
    ),
    "constants": (
        plainer_constants,
        ["keep("],
        "keep(7, 0.25, 'a long text for a person')",
        "keep(1, 1.0, '')",
    ),
}


@pytest.mark.parametrize("name", REDUCERS)
def test_each_reducer_reaches_the_minimum_and_stays_there(name):
    reducer, wanted, text, expected = REDUCERS[name]
    program = parsed(dedented(text))
    together = name in ("trimmings", "base classes and imports", "sizes")
    found = Engine(holding(*wanted), program).settle("test", reducer, together)
    assert found.text.strip() == dedented(expected)
    again = Engine(holding(*wanted), found).settle("test", reducer, together)
    assert again.text == found.text


def test_statements_go_from_every_level():
    program = parsed(
        "import a\nx = a\nif x:\n    b = x\n    for c in x:\n        keep(c)\n        d = c\ny = x"
    )
    engine = Engine(holding("keep(c)"), program)
    assert reduce_statements(engine).text == "import a\nx = a\nif x:\n    for c in x:\n        keep(c)"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f():\n    return x", {"x"}),
        ("x = 1\ndef f():\n    return x", set()),
        ("class A:\n    y = 1\n    def f(self):\n        return y", {"y"}),
        ("print([i for i in range(3)])", set()),
        ("def f():\n    global z\n    z = 1\nprint(z)", set()),
    ],
)
def test_a_name_that_lost_its_meaning_is_seen(text, names):
    assert unbound(text) == names


NOISE = st.sampled_from(
    ["a{0} = {0}", "print({0})", "b{0} = [{0}, 'x', {{'k': {0}}}]", "import os as m{0}", "pass"]
)
WRAPS = [
    "if {0}:",
    "for i{0} in range({0}):",
    "while {0}:",
    "with open('{0}') as h{0}:",
    "def f{0}():",
    "try:",
]


@st.composite
def programs(draw):
    """A program of nested blocks and functions, and the marked calls in it."""
    numbers = iter(range(100))
    marks = []

    def block(depth):
        lines = []
        for _ in range(draw(st.integers(1, 3))):
            kind, number = draw(st.sampled_from(["noise", "mark", "block"])), next(numbers)
            if kind == "mark":
                marks.append(f"mark({number})")
                lines.append(marks[-1])
            elif kind == "noise" or depth == 3:
                lines.append(draw(NOISE).format(number))
            else:
                wrap = draw(st.sampled_from(WRAPS)).format(number)
                lines += [wrap, *(f"    {line}" for line in block(depth + 1))]
                lines += ["finally:", "    pass"] if wrap == "try:" else []
                lines += [f"f{number}()"] if wrap.startswith("def") else []
        return lines

    return "\n".join(block(0)), marks


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_what_is_marked_is_left_and_nothing_else(made):
    text, marks = made
    found = reduce_program(text, holding(*marks))
    assert sorted(found.text.split()) == sorted(marks)
    assert found.complete
    assert reduce_program(found.text, holding(*marks)).text == found.text


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 30))
def test_a_search_that_is_cut_short_leaves_a_program_that_fails(made, queries):
    text, marks = made
    seen = []

    def oracle(asked):
        if len(seen) > queries:
            raise OutOfBudget
        seen.extend(asked)
        return holding(*marks)(asked)

    found = reduce_program(text, oracle)
    ast.parse(found.text)
    assert all(mark in found.text for mark in marks)
    assert len(found.text) <= max(len(text), len(parsed(text).text)) + 1


def test_what_stays_is_written_as_it_was():
    text = 'import torch\n\n\ndef f(x, *, n = 3):  # why\n    y = x["a"]  +  1e-5\n    return keep( y )\n'
    found = reduce_program(text, holding("def f(x, *, n=3)", "y = x['a'] + 1e-05", "return keep(y)"))
    assert found.text == 'def f(x, *, n = 3):\n    y = x["a"]  +  1e-5\n    return keep( y )\n'


def test_a_program_that_passes_is_refused():
    with pytest.raises(DoesNotFail):
        reduce_program("x = 1", lambda programs: [False for _ in programs])
