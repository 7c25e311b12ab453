"""Programs of which the number of graph breaks and recompilations is known, each explained in this process."""

import pytest
import torch

from explain_programs import PROGRAMS
from torchsleuth import CompileProfiler, ExplainWithBackend


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_breaks_and_recompilations_are_counted_right(program):
    explained = ExplainWithBackend("eager")
    program.run(lambda fn, **options: torch.compile(fn, backend=explained, **options))
    found = explained.output().breaks
    assert (found.graph_break_count, found.recompilations) == (program.breaks, program.recompiles)
    assert len(explained.graphs) == found.graph_count


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.recompiles], ids=lambda program: program.name)
def test_every_recompilation_has_a_cause(program):
    profiler = CompileProfiler()
    program.run(lambda fn, **options: torch.compile(fn, backend=profiler, **options))
    found = profiler.recompiles
    assert found.count == program.recompiles
    assert all(each.causes for function in found.functions for each in function.recompilations)
