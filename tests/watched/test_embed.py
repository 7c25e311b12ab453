"""Embedding: what is pasted runs in a fresh process, and nothing unrelated comes along."""

import functools
import importlib.util
import json
import linecache
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from torchsleuth.core.cases.record import Embedded
from torchsleuth.watched.embed_paste import Paste
from torchsleuth.watched.embed_slice import CannotEmbed
from torchsleuth.watched.value_source import embed


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., types.ModuleType]:
    """Writes a user's file and imports it: `load("train", source)`; dots make a package."""

    def load(name: str, text: str) -> types.ModuleType:
        path = tmp_path / "user" / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def run(embedded: Embedded, check: str, tmp_path: Path) -> str:
    """What a fresh process prints that pastes the text and then runs `check`."""
    script = tmp_path / "fresh" / "script.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text("\n".join(embedded.imports) + "\n" + embedded.source + "\n" + check)
    done = subprocess.run(
        [sys.executable, "-I", str(script)], capture_output=True, text=True, cwd=script.parent
    )
    assert done.returncode == 0, done.stderr + script.read_text()
    return done.stdout.strip()


TRAIN = """
    import json
    import os.path as osp
    from collections import OrderedDict
    SCALE = 3
    UNUSED = print("side effect")
    def helper(x):
        '''Doubles.'''
        model = x * 2  # a local, not the global below
        return model
    class Pass:
        bias = SCALE
        def __call__(self, x):
            return helper(x) + self.bias
    def backend(x, inputs=None):
        loss = Pass()(x)
        return json.dumps(OrderedDict(loss=loss))
    backend.tag = "mine"
    the_pass = Pass()
    the_pass.bias = 10
    model = object()
    def train():
        raise SystemExit("the training loop ran")
    loss = backend(1)
    for step in range(2):
        loss = backend(step)
    if __name__ == "__main__":
        train()
"""


def test_a_function_comes_with_what_it_uses_and_nothing_else(load: Callable, tmp_path: Path) -> None:
    module = load("train", TRAIN)
    embedded = embed({"backend": module.backend})
    assert run(embedded, "print(backend(4), backend.tag)", tmp_path) == '{"loss": 11} mine'
    for absent in ("UNUSED", "train()", "osp", "model = object", "step", "the_pass", "__main__"):
        assert absent not in embedded.source
    assert "# a local, not the global below" in embedded.source
    assert embedded.notes == ("backend: source from train.py",)


def test_an_import_line_is_cut_down_to_what_is_used(load: Callable, tmp_path: Path) -> None:
    module = load(
        "mixed", "import unittest.mock as mock, json, os.path, sys\ndef backend(x): return json.dumps(x)\n"
    )
    embedded = embed({"backend": module.backend})
    assert run(embedded, "print(backend([1]))", tmp_path) == "[1]"
    assert "import json\n" in embedded.source and "mock" not in embedded.source


def test_the_wanted_name_may_differ_from_the_users(load: Callable, tmp_path: Path) -> None:
    module = load("train", TRAIN)
    embedded = embed({"first": module.helper, "second": module.the_pass})
    assert run(embedded, "print(first(2), second(2))", tmp_path) == "4 14"


def test_what_an_installed_package_holds_is_imported() -> None:
    import jinja2.utils

    embedded = embed({"backend": jinja2.utils.generate_lorem_ipsum, "loads": json.loads})
    assert embedded.imports == (
        "from jinja2.utils import generate_lorem_ipsum as backend",
        "from json import loads",
    )
    assert embedded.notes == ("needs the package jinja2 to be installed",)
    assert embedded.source.strip() == ""


CLOSURES = """
    import functools
    FACTOR = 7
    def times(x): return x * FACTOR
    def make(k, names=("a", "b")):
        def inner(x): return x + k
        def outer(x, *, plus: int = k) -> int:
            text = '''two
    lines'''
            return inner(times(x)) + plus + len(names) + len(text)
        return outer
    def make_lambda(k): return [lambda x: x - 1, lambda x: x * k][1]
    def recursive():
        def fac(n): return 1 if n < 2 else n * fac(n - 1)
        return fac
    def open_file():
        handle = open(__file__)
        return lambda x: handle.read()
    def with_class():
        class Local: pass
        return lambda: Local()
    def decorated(k):
        def twice(f): return lambda x: f(f(x))
        @twice
        def add(x): return x + k
        return add
    def with_own_import():
        import json
        return lambda x: json.dumps(x)
    def crossed():
        def swap(times, inner): return lambda x: times(x) - inner(x)
        return swap(lambda x: x + 1, times)
    held = make(100)
    halves = functools.partial(make, 1, names=("z",))
    class Machine:
        def __init__(self, k): self.k = k
        def step(self, x): return x + self.k
        @staticmethod
        def plain(x): return -x
    machine = Machine(5)
"""


@pytest.mark.parametrize(
    ("make", "call", "printed"),
    [
        (lambda m: m.make(5), "f(2)", "35"),
        (lambda m: m.make_lambda(3), "f(5)", "15"),
        (lambda m: m.recursive(), "f(5)", "120"),
        (lambda m: m.held, "f(0)", "211"),
        (lambda m: m.halves, "f()(0)", "12"),
        (lambda m: functools.partial(m.make_lambda(3), 2), "f()", "6"),
        (lambda m: m.decorated(4), "f(1)", "9"),
        (lambda m: m.with_own_import(), "f([1])", "[1]"),
        (lambda m: m.crossed(), "f(2)", "-11"),
        (lambda m: m.machine.step, "f(1)", "6"),
        (lambda m: m.Machine.plain, "f(1)", "-1"),
        (lambda m: m.Machine(3).step, "f(1)", "4"),
        (lambda m: m.Machine(3), "f.step(1)", "4"),
    ],
)
def test_closures_lambdas_partials_and_methods_are_rebuilt(
    load: Callable, tmp_path: Path, make: Callable, call: str, printed: str
) -> None:
    module = load("closures", CLOSURES)
    assert run(embed({"f": make(module)}), f"print({call})", tmp_path) == printed


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda m: m.open_file(), "'handle' is an instance of TextIOWrapper"),
        (lambda m: m.with_class(), "Local, defined inside a function"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_by_name(load: Callable, make: Callable, reason: str) -> None:
    with pytest.raises(CannotEmbed, match=reason):
        embed({"f": make(load("closures", CLOSURES))})


def test_what_was_typed_has_no_source() -> None:
    typed: dict = {"__name__": "__main__"}
    exec("def f(x): return x", typed)
    with pytest.raises(CannotEmbed, match="file"):
        embed({"backend": typed["f"]})


def test_attributes_of_a_rebuilt_function_are_kept(load: Callable, tmp_path: Path) -> None:
    function = load("closures", CLOSURES).make_lambda(3)
    function._boxed_call = True
    assert run(embed({"f": function}), "print(f._boxed_call)", tmp_path) == "True"


def test_functions_of_two_notebook_cells_are_found_by_their_cells(tmp_path: Path) -> None:
    notebook: dict = {"__name__": "__main__"}
    for number, text in enumerate(
        ["K = 5\ndef helper(x): return x * K\n", "def backend(x): return helper(x) + 1\n"]
    ):
        name = f"<ipython-input-{number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), notebook)
    assert run(embed({"backend": notebook["backend"]}), "print(backend(2))", tmp_path) == "11"


def test_names_set_only_under_the_main_guard_are_taken_from_the_live_module(tmp_path: Path) -> None:
    user = tmp_path / "script.py"
    out = tmp_path / "out.json"
    user.write_text(
        textwrap.dedent(f"""
        import json
        def backend(x): return x * width + extra(x) + len(label)
        if __name__ == "__main__":
            width = 4
            label = "ab"
            def extra(x): return 1000
            raise_if_pasted = [1 / 1]
            from torchsleuth.watched.value_source import embed
            e = embed({{"backend": backend}})
            json.dump([e.source, e.imports, e.notes], open({str(out)!r}, "w"))
        """)
    )
    subprocess.run([sys.executable, str(user)], check=True)
    source, imports, notes = json.loads(out.read_text())
    assert "raise_if_pasted" not in source
    embedded = Embedded(source, tuple(imports), tuple(notes))
    assert run(embedded, "print(backend(2))", tmp_path) == "1010"


def test_names_of_the_users_other_files_are_pasted_too(load: Callable, tmp_path: Path) -> None:
    load("pkg", "")
    load("pkg.deep", "BASE = 40\ndef base(): return BASE\nNOISE = print('no')")
    load("pkg.helpers", "from .deep import base as b\ndef total(x): return b() + x")
    module = load(
        "app", "from pkg.helpers import total, total as t2\ndef backend(x): return total(x) + t2(0)"
    )
    embedded = embed({"backend": module.backend})
    assert run(embedded, "print(backend(2))", tmp_path) == "82"
    assert "NOISE" not in embedded.source
    assert {note.rpartition(" ")[2] for note in embedded.notes} == {"app.py", "helpers.py", "deep.py"}


def test_names_that_a_star_brings_come_before_what_uses_them(load: Callable, tmp_path: Path) -> None:
    load("tools", "BASE = 40\ndef double(x): return 2 * x\ndef begin(): raise SystemExit('began')")
    module = load(
        "app",
        """
        from tools import *
        SIZE = double(3)
        def backend(x): return double(x) + SIZE
        """,
    )
    embedded = embed({"backend": module.backend})
    assert run(embedded, "print(backend(2))", tmp_path) == "10"
    assert "begin" not in embedded.source


def test_a_module_that_some_call_gave_is_imported_and_the_call_not_made(
    load: Callable, tmp_path: Path
) -> None:
    module = load(
        "app",
        """
        def start(seed):
            print("starting")
            import json
            return json
        json = start(0)
        def backend(x): return json.dumps(x)
        """,
    )
    embedded = embed({"backend": module.backend})
    assert run(embedded, "print(backend([2]))", tmp_path) == "[2]"
    assert "start" not in embedded.source


def test_a_whole_module_of_the_user_is_imported_from_its_folder_and_said_so(
    load: Callable, tmp_path: Path
) -> None:
    load("knobs", "VALUE = 3")
    module = load("app", "import knobs\nimport knobs as k\ndef backend(x): return knobs.VALUE + k.VALUE + x")
    embedded = embed({"backend": module.backend})
    assert run(embedded, "print(backend(2))", tmp_path) == "8"
    assert any("imports knobs from the folder" in note for note in embedded.notes)


def test_two_files_that_use_one_name_differently_are_refused(load: Callable) -> None:
    one = load("one", "K = 1\ndef f(): return K")
    two = load("two", "K = 2\ndef g(): return K")
    with pytest.raises(CannotEmbed, match="both define 'K'"):
        embed({"f": one.f, "g": two.g})


def test_a_wanted_name_does_not_overwrite_one_the_program_uses(load: Callable) -> None:
    module = load("train", "backend = 'inductor'\ndef mine(x): return backend + x")
    with pytest.raises(CannotEmbed, match="'backend' for something else"):
        embed({"backend": module.mine})


def test_postponed_annotations_need_not_exist(load: Callable, tmp_path: Path) -> None:
    module = load(
        "ann",
        """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from nowhere import Thing
        def backend(gm: Thing, x: list[Thing] | None = None) -> Thing:
            y: Thing = gm
            return y
        """,
    )
    assert run(embed({"backend": module.backend}), "print(backend(3))", tmp_path) == "3"


def test_statements_that_share_a_line_are_taken_apart(load: Callable, tmp_path: Path) -> None:
    module = load("oneline", "A = 2; B = print('no')\ndef f(x): return x + A")
    embedded = embed({"f": module.f})
    assert "print" not in embedded.source
    assert run(embedded, "print(f(1))", tmp_path) == "3"


def test_later_statements_that_set_up_a_name_come_along(load: Callable, tmp_path: Path) -> None:
    module = load(
        "registry",
        """
        class Registry(dict):
            def add(self, f):
                self[f.__name__] = f
                return f
        passes = Registry()
        @passes.add
        def double(x): return 2 * x
        passes["extra"] = lambda x: x + 1
        passes.update(more=abs)
        results = {}
        results["unrelated"] = 1
        def backend(x): return [passes[k](x) for k in sorted(passes)]
        """,
    )
    embedded = embed({"backend": module.backend})
    assert "unrelated" not in embedded.source
    assert run(embedded, "print(backend(-3))", tmp_path) == "[-6, -2, 3]"


OPS = """
    import torch
    from torch.library import Library, impl

    NS = "emb"
    lib = Library(NS, "DEF")
    lib.define("scale(Tensor x, float k) -> Tensor")
    lib.define("other(Tensor x) -> Tensor")

    def factor(k): return k * 2

    @impl(lib, "scale", "CPU")
    def scale_cpu(x, k): return x * factor(k)

    lib.impl("scale", lambda x, k: torch.empty_like(x), "Meta")

    @impl(lib, "other", "CPU")
    def other_cpu(x): raise RuntimeError("unrelated")

    @torch.library.custom_op("emb::shift", mutates_args=())
    def shift(x: torch.Tensor, by: float) -> torch.Tensor:
        return x + factor(by)

    @shift.register_fake
    def _(x, by): return torch.empty_like(x)

    def backward(ctx, grad): return grad, None
    shift.register_autograd(backward)

    torch.library.define("emb::third", "(Tensor x) -> Tensor")

    @torch.library.impl("emb::third", "CPU")
    def third(x): return x * 3

    @torch.library.register_fake("emb::third")
    def third_fake(x): return torch.empty_like(x)

    def use(x): return shift(x, 1.0)

    def late():
        torch.library.define("emb::late", "(Tensor x) -> Tensor")

    print("training")
"""


def test_custom_ops_are_registered_as_the_users_file_does(load: Callable, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    module = load("ops", OPS)
    embedded = embed(
        {"use": module.use}, ["emb::scale.default", "emb::shift", "emb::third"], modules=[module]
    )
    for absent in ("other_cpu", "training", "late"):
        assert absent not in embedded.source
    check = """
x = torch.ones(2, requires_grad=True)
assert torch.ops.emb.scale(x.detach(), 2.0).tolist() == [4.0, 4.0]
assert torch.ops.emb.scale(torch.ones(2, device="meta"), 2.0).shape == (2,)
torch.ops.emb.shift(x, 1.0).sum().backward()
assert x.grad.tolist() == [1.0, 1.0]
assert use(x.detach()).tolist() == [3.0, 3.0]
print(torch.ops.emb.third(x.detach()).tolist())
"""
    assert run(embedded, check, tmp_path) == "[3.0, 3.0]"
    assert embed({}, ["emb::third"], modules=[module]).source.count("@") == 2
    with pytest.raises(CannotEmbed, match="inside a function or class"):
        embed({}, ["emb::late"], modules=[module])


def test_an_op_of_a_shared_library_is_loaded_by_path(load: Callable) -> None:
    embedded = embed({}, ["cpp::op"], modules=[], loaded_libraries={"/x/libops.so"})
    assert embedded.source == "torch.ops.load_library('/x/libops.so')\n"
    assert embedded.imports == ("import torch",)
    assert "libops.so" in embedded.notes[0]


def test_an_op_that_no_file_registers_is_refused() -> None:
    with pytest.raises(CannotEmbed, match="no file of the program registers the custom op nowhere::op"):
        embed({}, ["nowhere::op"], modules=[])


def test_torch_values_in_a_closure_are_written_out(load: Callable, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    module = load(
        "cast",
        """
        import torch
        def make(dtype, device): return lambda x: (x.to(dtype).dtype, device)
        f = [make(torch.float64, torch.device("cpu"))][0]
        del f
        """,
    )
    torch = module.torch
    embedded = embed({"f": module.make(torch.float64, torch.device("cpu"))})
    assert run(embedded, "print(f(torch.ones(1)))", tmp_path) == "(torch.float64, device(type='cpu'))"


BY_TEXT = """
    import sys
    STEPS = {}
    def step(name):
        def keep(function):
            STEPS[name] = function
            return function
        return keep
    @step("double")
    def double(x):
        return 2 * x
    def build(x):
        return STEPS["double"](x)
    def other(x):
        return x + 1
    def unused(x):
        return x
    def run(x):
        return globals()["other"](sys.modules[__name__].build(x))
"""


@pytest.mark.parametrize("by_text", [False, True])
def test_names_that_are_written_as_texts_or_registered_come_along_where_asked_for(
    load: Callable, tmp_path: Path, by_text: bool
) -> None:
    paste = Paste(by_text=by_text)
    paste.bind("run", load("train", BY_TEXT).run)
    embedded = paste.finish()
    assert "def unused" not in embedded.source and ("def double" in embedded.source) is by_text
    if by_text:
        assert run(embedded, "print(run(3))", tmp_path) == "7"
