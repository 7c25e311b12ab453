"""The kernel, the block and the thread that a device, or NVIDIA's checker of memory, names."""

import os
import sys

import pytest

from torchsleuth.front.supervise.scripts import ScriptRunner
from torchsleuth.script_runtime.signature import Signature

FAILED = Signature("runtime_error", "run", ("AcceleratorError",), "CUDA error: an illegal memory access")
SCRIPT = """
import os, sys
print("torchsleuth: running", file=sys.stderr)
path = os.path.join(os.path.dirname(__file__), "kernels.py")
print({said!r}.replace("KERNELS", path), file=sys.stderr)
print("REPRODUCED: it fails")
sys.exit(1)
"""
KERNELS = """import triton

@triton.jit
def triton_poi_fused_index_0(x, i, out, n):
    which = load(i)
    device_assert(which < 100)
"""
ASSERTED = (
    "{}:{}: unknown: block: [1,0,0], thread: [2,0,0] Assertion `index out of bounds: 0 <= tmp4 < 100` failed."
)
CHECKER = """#!/bin/sh
echo '========= COMPUTE-SANITIZER'
echo '========= Invalid __global__ write of size 4 bytes'
echo '=========     at scatter_rows+0x330 in cabc.py:12'
echo '=========     by thread (44,0,0) in block (2,0,0)'
shift 2
"$@"
echo '========= ERROR SUMMARY: 1 error'
"""


@pytest.fixture
def script(tmp_path):
    def written(said):
        (tmp_path / "kernels.py").write_text(KERNELS)
        path = tmp_path / "script.py"
        path.write_text(SCRIPT.format(said=said))
        return path

    return written


@pytest.mark.parametrize(
    ("place", "kernel"),
    [(("KERNELS", 6), "triton_poi_fused_index_0"), (("/pytorch/aten/Index.cu", 111), "Index.cu")],
)
def test_an_assertion_of_the_device_names_kernel_block_and_thread(script, place, kernel):
    run = ScriptRunner(python=sys.executable).run(script(ASSERTED.format(*place)), FAILED)
    assert run.reproduced
    assert (
        run.kernel == f"kernel {kernel}, block [1,0,0], thread [2,0,0]: index out of bounds: 0 <= tmp4 < 100"
    )


def test_a_checker_of_memory_names_the_kernel_that_reached_outside(script, tmp_path):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(CHECKER)
    tool.chmod(0o755)
    runner = ScriptRunner(python=sys.executable)
    assert runner.run(script("nothing"), FAILED).kernel is None
    run = runner.run(script("nothing"), FAILED, under=(os.fspath(tool), "--print-limit", "1"))
    assert (
        run.kernel
        == "kernel scatter_rows, block [2,0,0], thread [44,0,0]: Invalid __global__ write of size 4 bytes"
    )


SANITIZED = """==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x62 at pc 0x7f bp 0x7f sp 0x7f
READ of size 64 at 0x62 thread T0
    #0 0x7f in _mm512_loadu_ps(void const*) /usr/lib/gcc/avx512fintrin.h:6333
    #1 0x7f in at::vec::Vectorized<float>::loadu(void const*, long) /torch/vec512_float.h:178
    #2 0x7f in kernel KERNELS.cpp:2
    #3 0x7f in kernel_py KERNELS.cpp:79
"""


def test_a_sanitizer_names_the_line_of_generated_code(script, tmp_path):
    path = script(SANITIZED)
    (tmp_path / "kernels.py.cpp").write_text("void kernel() {\n    auto tmp0 = in_ptr0[x0 + 40];\n}\n")
    run = ScriptRunner(python=sys.executable).run(path, FAILED)
    assert (
        run.kernel == "AddressSanitizer: heap-buffer-overflow in kernel, at `auto tmp0 = in_ptr0[x0 + 40];`"
    )
