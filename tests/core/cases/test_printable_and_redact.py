"""What may be shown in a terminal, and what may be kept of the environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.core.cases.scrub import HIDDEN, environment_of, looks_secret, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x1b[0m\nc", "ab c"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x9b2Jb", "ab"),
        ("over\rwrite\x08", "overwrite"),
        ("abc\u202ecba", "abccba"),
        ("half \ud800 pair", "half  pair"),
        ("naïve 猫 ✓", "naïve 猫 ✓"),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_can_be_kept() -> None:
    assert printable("a\r\n\tb\x1b[1m", lines=True) == "a\n\tb"


@given(st.text(st.characters()))
def test_whatever_comes_out_is_printable(text: str) -> None:
    shown = printable(text)
    assert all(c.isprintable() or c == " " or c.isspace() for c in shown)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    shown.encode()


def test_only_what_torch_reads_is_kept() -> None:
    env = {
        "TORCH_LOGS": "+dynamo",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    private = {
        "HOME": "/home/ada",
        "PATH": "/bin",
        "AWS_SECRET_ACCESS_KEY": "x",
        "USER": "ada",
        "MY_TORCH_X": "1",
        "HF_TOKEN": "y",
    }
    assert environment_of({**env, **private}) == env


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_HUB_TOKEN", "x"),
        ("PYTORCH_API_KEY", "x"),
        ("TORCHINDUCTOR_REDIS_PASSWORD", "x"),
        ("NCCL_AUTH", "x"),
        ("TORCH_HOME", "https://ada:pw@host/x"),
        ("TRITON_X", "hf_abcdefghijklmnop"),
        ("TORCH_LOGS_OUT", "ghp_0123456789abcdefABCDEF0123456789abcd"),
        ("TORCH_X", "q8Zr2LmN0pXc5VbT7yUi1OaS"),
        ("TORCH_X", "a=1,token=abc"),
    ],
)
def test_a_value_that_looks_like_a_secret_is_hidden(name: str, value: str) -> None:
    assert environment_of({name: value}) == {name: HIDDEN}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
        ("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_ada/cache-number-2/Some_Long_Folder_Name"),
        ("TORCH_LOGS", "+dynamo,graph_breaks,recompiles,output_code"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
        ("NCCL_DEBUG", "INFO"),
    ],
)
def test_an_ordinary_value_is_not(name: str, value: str) -> None:
    assert not looks_secret(name, value)


def test_the_home_directory_is_shortened() -> None:
    env = {"HOME": "/home/ada", "TORCH_HOME": "/home/ada/.cache/torch:/home/adam/x"}
    assert environment_of(env) == {"TORCH_HOME": "~/.cache/torch:/home/adam/x"}
