"""The small parts: messages in pieces, output of any length, libraries cut off."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchsleuth.child.child_process import BoundedOutput
from torchsleuth.core.cases.record import AmbientState, CompileSettings
from torchsleuth.core.changes import Change
from torchsleuth.core.processes.kernel_caches import UNFINISHED, drop_torn, drop_unfinished_headers
from torchsleuth.core.processes.limits import Limits, clock_of_a_hang
from torchsleuth.core.protocol.codec import from_json, to_json
from torchsleuth.core.protocol.frames import BrokenFrame, Frames, frame
from torchsleuth.core.protocol.steps import Asked
from torchsleuth.core.protocol.trials import (
    Outcome,
    Seen,
    Trial,
)
from torchsleuth.script_runtime.signature import Signature
from torchsleuth.search.workers.pool import needs_kernels, trial_environment, uses_accelerator

LOWERING = Signature("compile_error", "compile", ("torch._inductor.exc.LoweringException", "KeyError"))


@given(messages=st.lists(st.builds(Asked, st.text(max_size=5), st.integers())), size=st.integers(1, 20))
def test_messages_arrive_whole_however_they_are_cut(messages, size):
    stream = b"".join(frame(message) for message in messages)
    frames = Frames(Asked)
    arrived = [m for at in range(0, len(stream), size) for m in frames.feed(stream[at : at + size])]
    assert arrived == messages


@given(st.binary(min_size=4, max_size=64))
def test_nonsense_is_a_broken_frame_or_no_frame(data):
    try:
        Frames().feed(data)
    except BrokenFrame:
        pass


def test_trial_and_outcome_come_back_equal():
    trial = Trial(
        "graph",
        LOWERING,
        CompileSettings("aot", config={"a": {"b": "1"}}, state=AmbientState(), visible_outputs=(0,)),
        ("x",),
        {"inputs": []},
        {"names": []},
        {"outputs[0]": 0.5},
        "accuracy",
        Change(off={"fusion": {"skip": [1]}}, backend="eager", stop_after="lowering"),
        True,
        "source",
        ("import os",),
        "store",
        False,
    )
    assert from_json(Trial, json.loads(json.dumps(to_json(trial)))) == trial
    outcome = Outcome(LOWERING, 0.5, None, "text", seen=Seen(peak_memory=3))
    assert Outcome.from_json(outcome.to_json()) == outcome


def test_trials_that_ask_something_else_have_another_key_wherever_their_values_lie():
    plain = Trial("graph", LOWERING)
    others = {
        "expected": Signature("crash", "run"),
        "settings": CompileSettings("aot"),
        "inputs": {"inputs": []},
        "constants": {"names": []},
        "tolerances": {"outputs[0]": 0.5},
        "kind": "accuracy",
        "change": Change(interpret=True),
        "time_runs": True,
        "embedded": "x = 1",
        "imports": ("import os",),
        "stop_early": False,
    }
    assert replace(plain, store="elsewhere").key == plain.key
    keys = {replace(plain, **{name: value}).key for name, value in others.items()}
    assert len(keys | {plain.key}) == len(others) + 1


@given(pieces=st.lists(st.binary(max_size=50), max_size=30), limit=st.integers(2, 40).map(lambda n: 2 * n))
def test_both_ends_of_the_output_are_kept_and_the_middle_is_counted(pieces, limit):
    kept = BoundedOutput(limit)
    for piece in pieces:
        kept.feed(piece)
    whole = b"".join(pieces)
    text = kept.text()
    if len(whole) <= limit:
        assert text == whole.decode("utf-8", errors="replace")
    else:
        assert f"{len(whole) - limit} bytes left out" in text
        assert text.startswith(whole[: limit // 2].decode("utf-8", errors="replace"))
        assert text.endswith(whole[-(limit // 2) :].decode("utf-8", errors="replace"))


@pytest.mark.skipif(sys.platform != "linux", reason="ELF")
@pytest.mark.parametrize("damage", ["empty", "no header", "cut off"])
def test_a_library_the_linker_did_not_finish_is_removed_and_whole_ones_stay(tmp_path, damage):
    whole = tmp_path / "aa" / "whole.so"
    torn = tmp_path / "bb" / "torn.so"
    for path in (whole, torn):
        path.parent.mkdir()
        shutil.copyfile(Path(sys.executable).resolve(), path)
    data = torn.read_bytes()
    torn.write_bytes({"empty": b"", "no header": bytes(64) + data[64:], "cut off": data[:-100]}[damage])
    assert drop_torn(tmp_path, time.time() + 100) == []
    assert drop_torn(tmp_path, time.time() - 100) == [torn]
    assert whole.exists() and not torn.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_library_that_another_trials_linker_is_writing_stays(tmp_path):
    path = tmp_path / "aa" / "kernel.so"
    path.parent.mkdir()
    with open(path, "wb") as linker:
        linker.write(b"half of it")
        linker.flush()
        assert drop_torn(tmp_path, 0.0, [os.getpid()]) == []
    assert drop_torn(tmp_path, 0.0, [os.getpid()]) == [path]


@pytest.fixture
def headers(tmp_path):
    """A folder as torch keeps precompiled headers in, with one of them, whose compiler can be asked for."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "cabc.lock").touch()
    (tmp_path / "cabc.h").write_text("#include <bits/stdc++.h>\n")
    return tmp_path


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_header_whose_compiler_was_killed_is_removed_and_a_whole_one_stays(headers):
    made = headers / "cabc.h.gch"
    build = ["g++", "-x", "c++-header", str(headers / "cabc.h"), "-o", str(made)]
    compiler = subprocess.Popen(build, start_new_session=True)
    while not (made.exists() and made.read_bytes()[: len(UNFINISHED)] == UNFINISHED):
        assert compiler.poll() is None
        time.sleep(0.002)
    os.killpg(compiler.pid, signal.SIGKILL)
    compiler.wait()
    assert drop_unfinished_headers(headers) == [made] and not made.exists()
    (headers / "cabc.h").write_text("#include <cstddef>\n")
    subprocess.run(build, check=True)
    assert drop_unfinished_headers(headers) == [] and made.exists()


def test_a_header_that_another_program_has_written_stays(headers):
    made = headers / "cabc.h.gch"
    made.write_bytes(UNFINISHED + b"...")
    with open(headers / "locks" / "cabc.lock") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert drop_unfinished_headers(headers, patience=0.1) == []
    assert drop_unfinished_headers(headers) == [made]


def test_the_users_caches_are_never_used():
    made = trial_environment({"TORCHINDUCTOR_CACHE_DIR": "users", "TRITON_CACHE_DIR": "users"}, Path("mine"))
    assert made["TORCHINDUCTOR_CACHE_DIR"].startswith("mine") and made["TRITON_CACHE_DIR"].startswith("mine")


def test_a_trial_that_is_decided_by_lowering_does_not_wait_for_the_compiler():
    assert not needs_kernels(Trial("", LOWERING))
    assert needs_kernels(Trial("", LOWERING, stop_early=False))
    assert needs_kernels(Trial("", Signature("crash", "compile", signal="SIGSEGV")))


def test_only_a_backend_that_may_call_inductor_waits_for_the_compiler():
    crash = Signature("crash", "compile", signal="SIGSEGV")
    assert needs_kernels(Trial("", crash, CompileSettings(backend="inductor")))
    assert not needs_kernels(Trial("", crash, CompileSettings(backend="aot_eager")))
    assert not needs_kernels(
        Trial("", crash, CompileSettings(backend="mine"), embedded="def mine(gm, inputs): return gm")
    )
    wrapping = "def mine(gm, inputs): return compile_fx(gm, inputs)"
    assert needs_kernels(Trial("", crash, CompileSettings(backend="mine"), embedded=wrapping))


@pytest.mark.parametrize(
    ("trial", "answer"),
    [
        (
            Trial("torch.ops.aten.zeros.default([2], device=torch.device('cuda', index=0))", LOWERING),
            True,
        ),
        (Trial("", LOWERING, inputs={"inputs": [{"device": "cuda:0"}]}), True),
        (Trial("", LOWERING, inputs={"inputs": [{"device": "cpu"}]}), False),
        (Trial("cudagraph_like = a", LOWERING), False),
    ],
)
def test_only_a_trial_that_names_an_accelerator_needs_one(trial, answer):
    assert uses_accelerator(trial) is answer


def test_only_a_hang_has_clocks_of_its_own():
    assert clock_of_a_hang(Limits(), "crash", "run", 20) == Limits()
    assert clock_of_a_hang(Limits(), "hang", "compile", 40).compile == 20


def test_what_is_to_hang_while_it_runs_has_all_the_time_to_be_compiled():
    limits = clock_of_a_hang(Limits(), "hang", "run", 40)
    assert (limits.compile, limits.run) == (Limits().compile, 20)


def test_an_end_of_everything_reaches_another_process_as_what_is_left():
    limits = Limits.from_json({**Limits().to_json(), "deadline": 5.0})
    assert 4.0 < limits.to_json()["deadline"] <= 5.0
