"""Whole calls of compiled functions against eager: wrong captures become cases, healthy programs notice nothing.

Every function here is captured wrongly by torch 2.13; where another torch captures one rightly, there is no case of it.
"""

import json
import re

import pytest
import torch

from program_runs import run_bare, run_watched
from torchsleuth.core.processes.sealed import why_not_confinable, why_not_sealable
from torchsleuth.core.protocol.codec import to_json
from torchsleuth.core.protocol.failures import LeftOut
from torchsleuth.core.watching import Settings
from torchsleuth.front.supervise.program_runs import Program
from torchsleuth.front.supervise.whole_program import ComparedCalls, compare_calls
from torchsleuth.watched.call_state import Leaf, packed
from torchsleuth.watched.whole_calls import SAW, confirmed

pytestmark = pytest.mark.skipif(
    why_not_sealable() is not None, reason="needs processes that can be sealed off"
)

WRONG = """
import dataclasses, functools, torch

compiled = functools.partial(torch.compile, backend="eager")

@compiled
def size_as_tuple(x):
    return x * 2, torch.Tensor(x.size()).shape

@compiled
def bool_as_tensor(x):
    return x + 1, x in [x]

calls = []

@functools.lru_cache
def table(n):
    calls.append(n)
    return n + 1

@compiled
def called_too_often(x):
    return x * table(3) + table(3)

def make_helper():
    log = []
    class Helper:
        def touch(self, x):
            log.append(tuple(x.shape))
            return x + 1
    def log_lost(x):
        return Helper().touch(x) * 2
    return log_lost

def make(op):
    def guard_missing(x):
        return op(x, x)
    return compiled(guard_missing)

@dataclasses.dataclass
class Box:
    hidden: torch.Tensor

box = Box(torch.tensor(0))

@torch.compiler.nested_compile_region
def region():
    return box.hidden + 1

@compiled
def region_reused(hidden):
    global box
    for _ in range(2):
        box = Box(hidden)
        hidden = region()
    return hidden

x = torch.full((1,), 6.0)
size_as_tuple(x.view(1, 1))
for f in (bool_as_tensor, called_too_often, compiled(make_helper())):
    f(x)
make(torch.Tensor.__add__)(x)
make(torch.Tensor.__mul__)(x)
region_reused(torch.tensor(0))
print("done")
"""

SAID = {
    "size_as_tuple": (
        7,
        "result[1]",
        "a torch.Size of [1, 1] in eager and a torch.Size of [2] when compiled",
    ),
    "bool_as_tensor": (11, "result[1]", "is a bool True in eager and a Tensor"),
    "called_too_often": (22, "calls (global)", "a list of [3] in eager and a list of [3, 3] when compiled"),
    "log_lost": (31, "log (closure)", "a list of 1 items in eager and a list of [] when compiled"),
    "guard_missing": (36, "result", "differs in 1 of 1 elements, by up to 24"),
    "region_reused": (51, "result", "differs in 1 of 1 elements, by up to 1"),
}


# What differs there is a variable of a closure, to which a script has no name.
NO_SCRIPT = {"log_lost"}


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the bugs are those of torch 2.13")
def test_what_capture_changes_is_found_where_every_graph_agrees(tmp_path):
    ran = run_watched(tmp_path, WRONG, "--check-accuracy", "--record-only")
    assert (ran.status, ran.stdout) == (3, "done\n")
    cases = {case["triage"]["function"]: case for case in ran.cases}
    assert cases.keys() == SAID.keys()
    for function, (line, path, said) in SAID.items():
        case = cases[function]
        assert (case["kind"], case["triage"]["component"]) == ("accuracy", "dynamo")
        assert case["triage"]["user_line"] == f"program.py:{line}"
        assert case["signature"]["outputs"][0] == path
        assert said in case["triage"]["detail"]
        if function in NO_SCRIPT:
            assert "could not be written as a script" in case["no_repro"]
        else:
            assert case["no_repro"] is None and f"wrong = [{path.removesuffix(' (global)')}" in ran.file(
                "program.py", case
            )


WRONG_GRADIENT = """
import torch

class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, gx, gy):
        return gx * 2, torch.full((5,), 7.0) if gy is None else gy * 3

@torch.compile(backend="eager")
def f(x, y):
    return Gate.apply(x, y)[0].sum()

f(torch.ones(5, requires_grad=True), torch.ones(5, requires_grad=True)).backward()
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the bug is one of torch 2.13")
def test_a_gradient_that_capture_makes_wrong_in_a_function_with_its_own_backward_is_found(tmp_path):
    ran = run_watched(tmp_path, WRONG_GRADIENT, "--check-accuracy", "--record-only")
    [case] = ran.cases
    assert (case["kind"], case["triage"]["component"]) == ("accuracy", "dynamo")
    assert case["signature"]["outputs"] == ["the gradient of args[1]"] and case["no_repro"] is None


HEALTHY = """
import collections, functools, itertools, logging, os, random, sys, time, warnings
import torch

compiled = functools.partial(torch.compile, backend="eager")
torch.manual_seed(0); random.seed(0)
calls, log, file = 0, [], open("log.txt", "w")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4))
        self.n = 0
        self.register_buffer("total", torch.zeros(()))
    def forward(self, x):
        self.n += 1
        self.total += x.sum()
        self.last = x.mean()
        return self.layers(x) * random.random()

def make():
    n = 0
    def count(x):
        nonlocal n
        global calls
        n += 1
        calls += 1
        print("counting", n, type(x.shape).__name__)
        n += 1
        return x * n
    return compiled(count), lambda: n

@compiled
def mutate(x, items, table, queue):
    items.append(x.mean()); table["last"] = x; queue.append(x.shape[0])
    x.add_(1)
    return x + len(items), items, table

@compiled
def write(x):
    file.write("line\\n"); file.flush()
    with open("more.txt", "a") as more:
        more.write("x")
    return x + 1

@compiled
def raises(x, k):
    log.append(k)
    if k == 1:
        raise ValueError("one")
    return x + k

@compiled
def by_chance(x):
    return x + 1, torch.empty(64, 64), time.perf_counter(), os.getpid(), id(x)

@compiled
def asks(x):
    if not torch.compiler.is_compiling():
        log.append("eager")
    return x + 1

@compiled
def step(optimizer):
    optimizer.step()

@compiled
def draw(x, numbers):
    return x + next(numbers) + torch.rand(2), torch.max(x, dim=0), x.shape, x.dtype

@compiled
def inner(x):
    return x.sin()

@compiled
def outer(x):
    y = inner(x)
    warnings.warn("careful")
    return y + inner(y)

net = Net()
net.layers[0].register_forward_hook(lambda module, args, out: log.append(tuple(out.shape)))
fast = compiled(net)
optimizer = torch.optim.Adam(net.parameters(), 0.1)
count, counted = make()
items, table, queue = [], {}, collections.deque(maxlen=2)
numbers = iter([1.0, 2.0, 3.0, 4.0])
for i in range(2):
    optimizer.zero_grad()
    loss = fast(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    step(optimizer)
    print(i, loss.item(), net.n, net.total.item(), net.layers[2].running_mean.sum().item(), torch.rand(1).item(), random.random())
    print(count(torch.ones(2)), counted(), calls)
    x = torch.ones(2 + i)
    out = mutate(x, items, table, queue)
    print(out[0], x, out[1] is items, sorted(table), queue)
    try:
        print(raises(torch.ones(2), i), log)
    except ValueError as error:
        print("caught", error, log)
    print(write(x), by_chance(x)[0], asks(x), draw(torch.ones(2), numbers), outer(x))
file.close()
print(open("log.txt").read(), open("more.txt").read(), sorted(name for name in os.listdir() if name.endswith(".txt")))
os.remove("log.txt"); os.remove("more.txt")
try:
    os.wait()
except ChildProcessError:
    print("no children")
raise SystemExit(7)
"""


@pytest.mark.slow
def test_a_healthy_program_is_not_disturbed(tmp_path):
    bare = run_bare(tmp_path, HEALTHY)
    watched = run_watched(tmp_path, HEALTHY, "--check-accuracy", "--record-only")
    assert watched.stdout == bare.stdout
    assert (watched.status, watched.cases) == (7, []), watched.stderr
    theirs = [line for line in watched.stderr.splitlines() if not line.startswith("torchsleuth:")]
    assert list(map(without_time, theirs)) == list(map(without_time, bare.stderr.splitlines()))


def without_time(line: str) -> str:
    """A line of torch's log without the time and the process that stand in it."""
    return re.sub(r"^([WEI])\d{4} [\d:.]+ \d+ ", r"\1 ", line)


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the bug is one of torch 2.13")
def test_the_function_left_eager_is_tried_on_the_program(tmp_path):
    program = """
    import torch

    @torch.compile(backend="eager")
    def shape_of(x):
        return torch.Tensor(x.size()).shape

    shape_of(torch.ones(2, 3))
    """
    case = run_watched(tmp_path, program, "--check-accuracy", "--minify").case
    (tried,) = case["workarounds"]
    assert (tried["verified"], tried["program"]) == (True, True), tried
    assert tried["how"] == "@torch.compiler.disable  # above `def shape_of` in program.py:5"


# Its kernels wait for a second thread, which a fork does not have.
TRAINED_CONVOLUTION = """
import torch

torch.set_num_threads(2)
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, 1, 1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 1))

@torch.compile(backend="eager")
def lost(x):
    return layers(x), torch.Tensor(x.size()).shape

x = torch.randn(4, 16, 16, 16)
layers(x).sum().backward()
lost(x)
"""


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the bug is one of torch 2.13")
def test_training_convolutions_are_compared(tmp_path):
    ran = run_watched(tmp_path, TRAINED_CONVOLUTION, "--check-accuracy", "--record-only")
    assert [case["triage"]["function"] for case in ran.cases] == ["lost"]


# Made in another thread, calls cannot be repeated in a fork: the program runs again once it has ended, as where it uses
# an accelerator.
NOT_FORKED = """
import os, threading, torch

told = []

def note(x):
    told.append(tuple(x.shape))

class Note:
    def __init__(self, log):
        self.log = log
    def touch(self, x):
        self.log.append(1)
        return x + 1

def make_helper():
    log = []
    def log_lost(x):
        return Note(log).touch(x) * 2
    return log_lost

def make(op):
    def guard_missing(x):
        return op(x, x)
    return torch.compile(guard_missing, backend="eager")

@torch.compile(backend="eager")
def bool_as_tensor(x):
    return x + 1, x in [x]

@torch.compile(backend="eager")
def healthy(x, many):
    note(x)
    many.append(x.sin() + torch.rand(3))
    return many[-1].sum().item()

@torch.compile(backend="eager")
def by_chance(x):
    return x * drawn

drawn = {drawn}
def program():
    x = torch.full((3,), 6.0)
    many = []
    for _ in range(3):
        healthy(x, many)
    for f in {functions}:
        f(x)
    make(torch.Tensor.__add__)(x)
    make(torch.Tensor.__mul__)(x)
    by_chance(x)
    print(len(told), len(many))

open("ran", "a").write("x")
thread = threading.Thread(target=program)
thread.start()
thread.join()
open("ran", "a").write("y")
"""
CONFINABLE = pytest.mark.skipif(why_not_confinable() is not None, reason="needs a kernel with Landlock")


@CONFINABLE
def test_calls_of_a_process_that_cannot_be_forked_are_compared_once_it_has_ended(tmp_path):
    source = NOT_FORKED.format(functions="(bool_as_tensor,)", drawn="2")
    options = ("--check-accuracy", "--check-budget", "300", "--record-only", "--json")
    ran = run_watched(tmp_path, source, *options)
    found = {case["triage"]["function"]: case for case in ran.cases}
    assert sorted(found) == ["bool_as_tensor", "guard_missing"], ran.stderr
    assert found["bool_as_tensor"]["signature"]["outputs"] == ["result[1]"]
    assert found["guard_missing"]["signature"]["outputs"] == ["result"]
    assert {case["kind"] for case in ran.cases} == {"accuracy"} and ran.stderr.count("3 3\n") == 1
    assert (tmp_path / "ran").read_text() == "xy"  # the further runs can write nothing


@CONFINABLE
def test_what_is_not_the_same_twice_is_not_compared_and_said(tmp_path):
    source = NOT_FORKED.format(
        functions="()", drawn="torch.frombuffer(bytearray(os.urandom(3)), dtype=torch.uint8)"
    )
    source = source.replace("    make(torch.Tensor.__add__)(x)\n    make(torch.Tensor.__mul__)(x)\n", "")
    ran = run_watched(tmp_path, source, "--check-accuracy", "--check-budget", "300", "--record-only")
    assert (ran.status, ran.cases) == (0, []), ran.stderr
    (line,) = [line for line in ran.ours() if "not compared" in line]
    assert "1 of 4 whole calls are not compared with eager: what it sees differs from run to run" in line


@pytest.mark.parametrize(
    "command, seconds, why",
    [
        (("python", "train.py"), 1.0, "the time for it is spent (--check-budget)"),
        (("python", "-"), 60.0, "the program cannot be run once more by itself"),
    ],
)
def test_one_line_says_why_a_program_does_not_run_again(tmp_path, command, seconds, why):
    process = tmp_path / "p1"
    process.mkdir()
    (process / "process.json").write_text(json.dumps({"pid": 1, "argv": [], "started": 1.0, "rank": None}))
    (process / "left-out.jsonl").write_text(json.dumps(to_json(LeftOut(3, seconds))))
    found = compare_calls(Program(command), Settings(str(tmp_path), level=4), tmp_path, print)
    assert found == ComparedCalls([], f"whole calls are not compared with eager: {why}")


def test_a_difference_counts_that_both_runs_as_captured_show_and_chance_does_not(tmp_path):
    def left(name, **values):
        leaves = {path: Leaf("float", str(value)) for path, value in values.items()}
        (tmp_path / name).mkdir()
        (tmp_path / name / "call").write_bytes(packed({SAW: Leaf("state", "alike"), **leaves}))
        return tmp_path / name

    folders = [
        left("eager", wrong=1, once=1, chance=1, unstable=1),
        left("captured", wrong=2, once=2, chance=2, unstable=2),
        left("eager again", wrong=1, once=1, chance=3, unstable=1),
        left("captured again", wrong=2, once=1, chance=2, unstable=3),
    ]
    assert [each.path for each in confirmed(folders, "call")] == ["wrong"]
