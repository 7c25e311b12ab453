"""What the generated code says about the place where a failure stood."""

from pathlib import Path

import pytest

from torchsleuth.torch_core.repro.assemble import generated_lines

CODE = """def call(args):
    # Topologically Sorted Source Nodes: [h], Original ATen: [aten.t, aten.addmm]
    extern_kernels.addmm(arg1_1, arg2_1, arg0_1, out=buf0)
    del arg0_1
    cpp_fused_native_layer_norm_sigmoid_0(buf2, buf4)
    # Topologically Sorted Source Nodes: [h, y], Original ATen: [aten.sigmoid]
    buf5 = torch.ops.vendor.sigmoid.default(buf4)
    buf6 = buf5
    assert_size_stride(buf6, (8, 32), (32, 1), 'torch.ops.aten.sigmoid.default')
    del buf5
"""


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    path = tmp_path / f"c{'a2' * 25}b.py"
    path.write_text(CODE)
    return path


def test_a_dump_of_stacks_leads_to_the_call_with_what_is_said_of_it(generated: Path) -> None:
    other = generated.with_name(f"c{'z' * 51}.py")
    dump = (
        f'Thread 0x1 (most recent call first):\n  File "{generated}", line 3 in call\n\n'
        f'Current thread 0x2 (most recent call first):\n  File "ops.py", line 9 in run\n'
        f'  File "{generated}", line 7 in call\n  File "{other}", line 1 in call\n'
    )
    lines = generated_lines(dump).splitlines()
    assert lines[0] == "Generated code:"
    assert [line.strip()[:13] for line in lines[1:]] == [
        "# Topological",
        "buf5 = torch.",
        "buf6 = buf5",
        "assert_size_s",
    ]


def test_a_traceback_leads_to_its_last_generated_frame(generated: Path) -> None:
    text = (
        f'  File "{generated}", line 3, in call\n    extern_kernels.addmm()\n'
        f'  File "{generated}", line 5, in call\n    cpp_fused_native_layer_norm_sigmoid_0(buf2, buf4)\nRuntimeError: no\n'
    )
    assert generated_lines(text).splitlines()[1:] == ["    cpp_fused_native_layer_norm_sigmoid_0(buf2, buf4)"]


@pytest.mark.parametrize("line", [0, 99])
def test_what_cannot_be_read_is_left_out(generated: Path, line: int) -> None:
    assert generated_lines(f'File "{generated}", line {line} in call') == ""
    assert generated_lines(f'File "{generated.with_name("c" + "q" * 51 + ".py")}", line 1 in call') == ""
    assert generated_lines('File "model.py", line 3, in forward') == ""
