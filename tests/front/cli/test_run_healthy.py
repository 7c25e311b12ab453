"""A healthy program under watch: the same bytes, the same bits, the same status, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from program_runs import environment, run_bare, run_watched, sleuth, write_program

HEALTHY = """
    import sys
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = torch.nn.Embedding(16, 8)
            self.head = torch.nn.Linear(8, 16, bias=False)
            self.head.weight = self.emb.weight  # tied
            self.norm = torch.nn.BatchNorm1d(8)  # mutates its buffers

        def block(self, h):
            return F.dropout(torch.relu(h), 0.5, self.training)

        def forward(self, ids):
            h = self.norm(self.emb(ids))
            h = checkpoint(self.block, h, use_reentrant=False)
            h = torch.cond(h.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (h,))
            h.mul_(2)
            return F.cross_entropy(self.head(h), ids)

    torch.manual_seed(0)
    net = Net()
    step = torch.compile(net)
    for n in (4, 5):  # the second size makes it dynamic
        loss = step(torch.arange(n))
        loss.backward()
        print(loss.item().hex(), net.emb.weight.grad.double().sum().item().hex(), net.norm.running_mean.sum().item().hex())
    print(torch.rand(1).item(), "ends", file=sys.stderr)
    sys.exit(5)
"""


def timeless(lines):
    """What torch logs, without the time and the process it names."""
    return [re.sub(r"^([EWI])\d{4} [\d:.]+ \d+", r"\1", line) for line in lines]


def test_a_healthy_program_prints_returns_and_exits_as_it_does_without_us(tmp_path):
    bare = run_bare(tmp_path / "bare", HEALTHY)
    if "was invalid, but is output" in bare.stderr:
        pytest.skip(
            "this release of torch cannot compile the program by itself (partitioner, seen with 2.11)"
        )
    ran = run_watched(tmp_path / "watched", HEALTHY)
    assert bare.returncode == 5, bare.stderr
    assert (ran.status, ran.stdout) == (5, bare.stdout)
    theirs = [line for line in ran.stderr.splitlines() if not line.startswith("torchsleuth:")]
    assert timeless(theirs) == timeless(bare.stderr.splitlines())
    assert ran.cases == [] and "nothing failed" in ran.ours()[-1]
    assert not (tmp_path / "watched" / "cases" / ".spool").exists()


@pytest.mark.slow
def test_dropout_mutation_aliasing_and_dynamic_shapes_do_not_look_like_wrong_results(tmp_path):
    ran = run_watched(tmp_path, HEALTHY.replace("sys.exit(5)", ""), "--check-accuracy")
    assert (ran.status, ran.cases) == (0, []), ran.stderr


def test_modules_arguments_and_an_existing_sitecustomize_keep_working(tmp_path):
    write_program(tmp_path / "site", "import os\nos.environ['FROM_SITE'] = 'yes'\n", "sitecustomize.py")
    write_program(
        tmp_path / "pkg",
        """
        import os, sys, torch
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        print(__name__, sys.argv[1:], os.environ.get("FROM_SITE"), "inject" in "".join(sys.path))
        """,
        "__main__.py",
    )
    (tmp_path / "pkg" / "__init__.py").write_text("")
    env = environment(tmp_path)
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), env["PYTHONPATH"]])
    ran = sleuth("run", "-m", "pkg", "--level", "9", "-x", cwd=tmp_path, env=env)
    assert ran.stdout.strip() == "__main__ ['--level', '9', '-x'] yes False", ran.stderr


def test_processes_the_program_spawns_are_watched(tmp_path):
    source = """
        import multiprocessing, torch
        def work(number):
            torch.compile(lambda x: x.sin() + number)(torch.ones(3))
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=work, args=(1,))
            process.start()
            process.join()
            print("child ended with", process.exitcode)
    """
    ran = run_watched(tmp_path, source, "--record-only", fault="aten.sin.default:segv")
    assert ran.stdout == "child ended with -11\n"
    assert ran.status == 3  # the program itself succeeded
    assert (ran.case["kind"], ran.case["signature"]["signal"]) == ("crash", "SIGSEGV")


def test_ranks_behind_a_launcher_that_fail_the_same_way_are_one_case_that_names_them(tmp_path):
    write_program(
        tmp_path,
        """
        import torch
        try:
            torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
        except Exception as error:
            print("rank failed", type(error).__name__)
        """,
    )
    launcher = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "program.py"]
    ran = sleuth(
        "run", "--record-only", *launcher, cwd=tmp_path, env=environment(tmp_path, "aten.sin.default:raise")
    )
    assert (ran.case["rank"], ran.case["seen"]) == ("0, 1", 2), ran.stderr
    assert "on ranks 0, 1: " in "".join(ran.ours())


def test_a_program_in_which_nothing_was_compiled_is_told_so(tmp_path):
    source = """
        import torch
        print(torch.compile(lambda n: n + 1)(2))
    """
    ran = run_watched(tmp_path, source)
    assert (ran.status, ran.stdout) == (0, "3\n")
    assert "nothing was compiled: torch.compile was given no function" in ran.ours()[-1]


def test_ctrl_c_reaches_the_program(tmp_path):
    write_program(
        tmp_path,
        """
        import signal, sys, time
        def bye(*_):
            print("interrupted", flush=True)
            sys.exit(9)
        signal.signal(signal.SIGINT, bye)
        print("ready", flush=True)
        time.sleep(60)
        """,
    )
    command = [sys.executable, "-m", "torchsleuth", "run", "program.py"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    assert process.returncode == 9


def test_json_has_one_document_on_stdout_and_the_program_speaks_on_stderr(tmp_path):
    source = "import torch\nprint(torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)))\n"
    ran = run_watched(tmp_path, source, "--json")
    assert json.loads(ran.stdout) == {"status": 0, "program_status": 0, "cases": []}
    assert "tensor([2.])" in ran.stderr


def test_a_failure_of_ours_inside_the_program_leaves_the_program_alone(tmp_path):
    source = """
        import torch
        import torchsleuth.watched.watch as watch
        def broken(*args, **kwargs):
            raise ZeroDivisionError("a bug of torchsleuth's")
        watch.record_graph = broken
        print(torch.compile(lambda x: x.sin(), backend="eager")(torch.zeros(2)))
    """
    ran = run_watched(tmp_path, source)
    assert (ran.status, ran.stdout) == (0, "tensor([0., 0.])\n")
    assert "ZeroDivisionError" in ran.stderr and "the program was not affected" in ran.stderr


def test_a_full_or_read_only_disk_does_not_stop_the_program(tmp_path):
    source = """
        import os, shutil, torch, json
        spool = json.loads(os.environ["TORCHSLEUTH_WATCH"])["spool"]
        shutil.rmtree(spool)
        open(spool, "w").close()  # nothing can be written there any more
        print(torch.compile(lambda x: x.sin(), backend="eager")(torch.zeros(2)))
    """
    ran = run_watched(tmp_path, source)
    assert (ran.status, ran.stdout) == (0, "tensor([0., 0.])\n")
    assert "cannot record, the program goes on unwatched" in ran.stderr


def test_help_list_and_doctor_answer_without_importing_torch(tmp_path):
    probe = "import sys; from torchsleuth.front.cli.main import main; main({!r}); assert 'torch' not in sys.modules"
    for words in (["--help"], ["run", "--help"], ["list", "--cases", str(tmp_path)]):
        done = subprocess.run([sys.executable, "-c", probe.format(words)], capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)
    ran = sleuth("doctor", "--json", cwd=tmp_path)
    assert ran.status == 0
    assert {f["name"] for f in json.loads(ran.stdout)} >= {"python", "torch", "C++ compiler", "cases"}


CALLED_WRONG_ONCE = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)

    class Net(nn.Module):  # a gradient that cancels behind a batch norm
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Linear(16, 10)

        def forward(self, x):
            return self.head(F.dropout(F.gelu(self.norm(self.conv(x))), 0.1, self.training).mean((2, 3)))

    # Compiled, a dropout of values in another layout: its random numbers fall on other elements than in eager.
    moved = [nn.Conv2d(3, 8, 3, padding=1), nn.LogSigmoid(), nn.Dropout(0.1), nn.ConvTranspose2d(8, 8, 2, stride=2)]
    net = {net}.to(memory_format=torch.channels_last)
    step = torch.compile(net)
    for _ in range(2):
        x = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
        step(x).square().mean().backward()
    print("trained")
"""


@pytest.mark.parametrize(
    "net", ["Net()", pytest.param("nn.Sequential(*moved, nn.GroupNorm(4, 8))", marks=pytest.mark.slow)]
)
def test_ordinary_nets_in_training_are_not_called_wrong(tmp_path, net):
    ran = run_watched(tmp_path, CALLED_WRONG_ONCE.format(net=net), "--check-accuracy", "--json")
    said = json.loads(ran.stdout)
    assert (ran.status, said["cases"]) == (0, []), ran.stderr
    assert "trained" in ran.stderr and "DIVERGED" not in json.dumps(said["accuracy"])


IMPRECISE = """
    import torch

    def one_after_the_other(graph, inputs):
        def run(x):
            total = torch.zeros_like(x[0])
            for row in x:
                total = total + row
            return (total * {times},)
        return run

    with torch.no_grad():
        print(torch.compile(lambda x: x.sum(0), backend=one_after_the_other)(0.1 * torch.arange(1.0, 9.0).repeat(1568, 1))[0].item())
"""


def test_a_result_less_precise_than_eagers_is_a_line_and_no_case(tmp_path):
    ran = run_watched(tmp_path, IMPRECISE.format(times=1), "--check-accuracy", "--json")
    said = json.loads(ran.stdout)
    assert (ran.status, said["cases"]) == (0, [])
    [remark] = said["accuracy"]
    assert remark["kind"] == "LESS_PRECISE" and remark["times_eager"] > 2
    [line] = [line for line in ran.ours() if "less precise" in line]
    assert "times its error" in line and "and right" in line


def test_a_result_further_off_than_any_textbook_is_a_case(tmp_path):
    ran = run_watched(tmp_path, IMPRECISE.format(times=1.001), "--check-accuracy", "--record-only")
    assert ran.status == 3 and len(ran.cases) == 1
