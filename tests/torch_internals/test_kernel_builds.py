"""Kernels that share a source file: same results, few builds, and what does not go together goes alone."""

import pytest
import torch

from torchsleuth.torch_internals import kernel_builds
from torchsleuth.torch_internals.generated_code import observed_code
from torchsleuth.torch_internals.kernel_builds import source_of, with_believed_instructions


def several_kernels(x):
    return x.sin().cumsum(0).cos().cumsum(1).exp().amax(-1)


@pytest.fixture
def builds(monkeypatch):
    """The source files that were given to the C++ compiler."""
    from torch._inductor import codecache

    found = []
    original = codecache.CppCodeCache.load_async.__func__

    def load_async(cls, main_code, *args, **kwargs):
        found.append(main_code)
        return original(cls, main_code, *args, **kwargs)

    monkeypatch.setattr(codecache.CppCodeCache, "load_async", classmethod(load_async))
    torch.compiler.reset()
    return found


def test_kernels_of_a_graph_are_built_in_one_file_and_do_what_they_did(builds):
    x = torch.randn(16, 16)
    with observed_code() as observed:
        out = torch.compile(several_kernels)(x)
    assert len({written.kernel for written in observed[0].written}) > 1
    assert len(builds) == 1
    torch.testing.assert_close(out, several_kernels(x))


def test_the_only_compile_thread_does_not_wait_for_a_lock_of_its_own(builds, monkeypatch):
    from torch._inductor import codecache, config
    from torch._inductor.utils import fresh_cache

    monkeypatch.setattr(codecache, "LOCK_TIMEOUT", 1)  # seconds, in place of the 600 that one would wait
    x = torch.randn(16, 18)
    with fresh_cache(), config.patch(compile_threads=1), observed_code():
        out = torch.compile(several_kernels)(x)
    assert len(builds) == 1
    torch.testing.assert_close(out, several_kernels(x))


def test_kernels_that_do_not_build_together_are_built_alone(builds, monkeypatch):
    monkeypatch.setattr(kernel_builds, "source_of", lambda kernels: "#error these do not go together")
    x = torch.randn(16, 17)
    with observed_code():
        out = torch.compile(several_kernels)(x)
    assert len(builds) > 1
    torch.testing.assert_close(out, several_kernels(x))


def test_what_a_kernel_throws_is_raised(builds):
    def model(x, at):
        return x[at].sin()

    with observed_code():
        compiled = torch.compile(model)
        compiled(torch.randn(4, 4), torch.tensor([0, 3]))
        with pytest.raises(RuntimeError, match="index out of bounds"):
            compiled(torch.randn(4, 4), torch.tensor([0, 9]))


def test_each_kernel_keeps_its_own_helpers():
    kernel = '#include <cmath>\nstatic int helper() {{ return {}; }}\nextern "C"  void kernel(float* p)\n{{ p[0] = helper(); }}'
    text = source_of([(["float*"], kernel.format(1)), (["float*"], kernel.format(2))])
    assert (
        text.count("#include <cmath>") == 1 and "kernel_0(float* p)" in text and "kernel_1(float* p)" in text
    )
    assert text.index("namespace together_0") < text.index("return 1;") < text.index("namespace together_1")


def test_where_the_belief_in_vector_instructions_fails_inductor_asks(monkeypatch):
    from torch._inductor import cpu_vec_isa

    asked, built = [], []
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda isa, code: asked.append(isa) or True)
    cpu_vec_isa.valid_vec_isa_list.cache_clear()

    def build():
        built.append(cpu_vec_isa.pick_vec_isa())
        if len(built) == 1:
            assert not asked
            raise RuntimeError("g++ does not know this instruction set")
        return "built"

    assert with_believed_instructions(build) == "built" and len(built) == 2
    if built[1] != cpu_vec_isa.invalid_vec_isa:
        assert asked
    assert str(built[0]) == str(built[1])
    # What is known is not believed anew, and a failure is then the compile's own.
    with pytest.raises(ZeroDivisionError):
        with_believed_instructions(lambda: 1 / 0)
