"""Whole calls that differ from eager in what only shows outside of every graph: iterators, and merged results.

Every function here is compiled wrongly by torch 2.13; where another torch does it rightly, there is no case of it.
"""

import pytest
import torch

from program_runs import run_bare, run_watched
from torchsleuth.core.processes.sealed import why_not_sealable

pytestmark = [
    pytest.mark.skipif(why_not_sealable() is not None, reason="needs processes that can be sealed off"),
    pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the bugs are those of torch 2.13"),
]

ITERATORS = """
import functools, torch

compiled = functools.partial(torch.compile, backend="eager")

@compiled
def return_lost(x):
    def steps():
        yield x + 1
        return 7.0
    return steps()

@compiled
def running_total(x):
    total = torch.zeros(2)
    def steps():
        for _ in range(3):
            yield total.add_(x)
    return steps()

@compiled
def same_items(x):
    def steps():
        yield x + 1
        return x.shape
    return [steps()], (x * k for k in range(3)), map(torch.sin, [x, x + 1]), zip([x], [1])

@compiled
def without_end(x):
    return x, (x + 1 for _ in iter(int, 1)) if x.numel() > 9 else iter(int, 1)

x = torch.ones(2)
print(list(return_lost(x)), [each.tolist() for each in running_total(x)])
print([list(each) for each in [*same_items(x)[0], *same_items(x)[1:]]])
print([next(without_end(x)[1]) for _ in range(2)])
"""


def test_what_an_iterator_gives_is_compared(tmp_path):
    bare = run_bare(tmp_path, ITERATORS)
    ran = run_watched(tmp_path, ITERATORS, "--check-accuracy", "--record-only")
    assert (ran.status, ran.stdout) == (3, bare.stdout), ran.stderr
    cases = {case["triage"]["function"]: case for case in ran.cases}
    assert cases.keys() == {"return_lost", "running_total"}
    for function, said in {
        "return_lost": "the return value of result is a float 7.0 in eager and None when compiled",
        "running_total": "list(result)[0] differs in 2 of 2 elements, by up to 2, from eager",
    }.items():
        case = cases[function]
        assert (case["kind"], case["triage"]["component"]) == ("accuracy", "dynamo")
        assert said in case["triage"]["detail"]
        assert "yield from steps)))(result)" in ran.file("program.py", case).splitlines()[-1]
