"""Failures on a GPU: in Triton's compiler, at run time, and asynchronous ones caught in the graph that caused them."""

import pytest

from program_runs import run_bare, run_watched

pytestmark = pytest.mark.gpu

TWO_GRAPHS = """
    import torch
    import torch._inductor.config as config

    {settings}

    @torch.compile
    def harmless(x):
        return x.sin() + 1

    @torch.compile
    def guilty(x):
        return torch.relu(x - 1) * 2

    x = torch.randn(64, 64, device="cuda")
    print(harmless(x).shape)
    try:
        print(guilty(x).shape)
        torch.cuda.synchronize()
    except Exception as error:
        print("failed", type(error).__name__)
"""


@pytest.mark.parametrize(
    ("bug", "kind", "phase"),
    [("compile_error", "compile_error", "compile"), ("runtime_error", "runtime_error", "run")],
)
def test_a_triton_failure_becomes_a_case_of_the_guilty_graph_with_a_repro(tmp_path, bug, kind, phase):
    source = TWO_GRAPHS.format(settings=f"config.triton.inject_relu_bug_TESTING_ONLY = {bug!r}")
    ran = run_watched(tmp_path, source)
    case = ran.case
    assert (case["kind"], case["phase"], case["device"]) == (kind, phase, "cuda"), ran.stderr
    assert "relu" in ran.file("graph.py") and "sin" not in ran.file("graph.py")
    assert case["verified"]["reproduced"] == 1, ran.stderr


def test_a_wrong_result_on_the_gpu_is_found_and_healthy_graphs_are_not_accused(tmp_path):
    source = TWO_GRAPHS.format(settings="config.triton.inject_relu_bug_TESTING_ONLY = 'accuracy'")
    ran = run_watched(tmp_path, source, "--check-accuracy")
    assert ran.case["kind"] == "accuracy" and "relu" in ran.file("graph.py"), ran.stderr
    assert ran.case["verified"]["reproduced"] == 1, ran.stderr


def test_a_wrong_result_is_found_where_the_gpu_is_the_default_device(tmp_path):
    source = """
        import torch
        import torch._inductor.config as config

        config.triton.inject_relu_bug_TESTING_ONLY = "accuracy"
        torch.set_default_device("cuda")
        net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh())

        @torch.compile
        def model(x):
            return torch.relu(net(x)).sum(-1)

        with torch.no_grad():
            print(model(torch.randn(8, 16)).device)
    """
    ran = run_watched(tmp_path, source, "--check-accuracy")
    assert ran.case["kind"] == "accuracy" and ran.stdout == "cuda:0\n", ran.stderr
    assert ran.case["verified"]["reproduced"] == 1, ran.stderr


def test_an_illegal_memory_access_is_caught_in_the_call_that_caused_it(tmp_path):
    source = """
        import torch
        import torch._inductor.config as config
        config.assert_indirect_indexing = False

        @torch.compile
        def gather(table, index):
            return table[index] + 1

        @torch.compile
        def later(x):
            return x.cos()

        table = torch.randn(1024, device="cuda")
        index = torch.full((256,), 1 << 40, device="cuda")
        try:
            y = gather(table, index)
            later(y)
            torch.cuda.synchronize()
        except Exception as error:
            print("failed", type(error).__name__)
    """
    ran = run_watched(tmp_path, source)
    assert ran.stdout.startswith("failed"), ran.stderr
    case = ran.case
    assert (case["kind"], case["phase"]) == ("runtime_error", "run"), ran.stderr
    assert "index" in ran.file("graph.py") and "cos" not in ran.file("graph.py")
    assert case["kept"]["by_value"] >= 1  # the indices were on disk before the call
    assert case["verified"]["reproduced"] == 1, ran.stderr


def test_cuda_graphs_and_random_numbers_pass_the_accuracy_check(tmp_path):
    source = """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.GELU()).cuda()
        step = torch.compile(lambda x: net(x).square().mean(), mode="reduce-overhead")
        for _ in range(4):
            step(torch.randn(32, 64, device="cuda")).backward()
            net.zero_grad(set_to_none=True)
        print("done")
    """
    ran = run_watched(tmp_path, source, "--check-accuracy")
    assert (ran.status, ran.stdout, ran.cases) == (0, "done\n", []), ran.stderr


def test_a_triton_failure_is_made_small_on_the_device(tmp_path):
    source = TWO_GRAPHS.format(settings="config.triton.inject_relu_bug_TESTING_ONLY = 'compile_error'")
    ran = run_watched(tmp_path, source, "--minify")
    small = ran.case["minified"]
    assert small["calls"] == 1 and "relu" in small["ops"][0], (small, ran.stderr)
    verified = {"times": 3, "reproduced": 3, "same_signature": True, "error": None, "eager_passes": True}
    assert ran.case["verified"] == verified, ran.stderr
    assert "cuda" in ran.file("repro.py")


LATE = {
    "a device-side assert": """
        import torch

        table = torch.nn.Embedding(100, 16).cuda()

        @torch.compile
        def look(ids):
            return table(ids) * 2 + 1

        @torch.compile
        def other(x):
            return x.cos().sum()

        total = 0
        for step in range(4):
            ids = torch.arange(64, device="cuda") + step
            if step == 2:
                ids = ids + 80
            total = total + other(look(ids))
        print(total.item())
    """,
    "an illegal access that the program catches": """
        import torch
        import torch._inductor.config as config
        config.assert_indirect_indexing = False

        @torch.compile
        def look(table, index):
            return table[index] + 1

        table = torch.randn(1024, device="cuda")
        found = []
        for step in range(5):
            index = torch.arange(256, device="cuda")
            if step == 3:
                index[5] = 1 << 38
            found.append(look(table, index))
        try:
            torch.cuda.synchronize()
        except Exception as error:
            print("caught", type(error).__name__)
    """,
}


@pytest.mark.parametrize("how", LATE)
def test_a_fault_of_a_later_call_is_put_to_the_call_that_made_it(tmp_path, how):
    ran = run_watched(tmp_path, LATE[how])
    assert "with a wait after each compiled call" in ran.stderr
    case = ran.case
    assert (case["kind"], case["phase"], case["device"]) == ("runtime_error", "run", "cuda"), ran.stderr
    assert "cos" not in ran.file("graph.py")
    assert case["verified"]["reproduced"] == 1, ran.stderr
    assert "inside torchsleuth" not in ran.stderr


HEALTHY = {
    "attention, bfloat16 autocast": """
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
                self.norm, self.up, self.down = nn.LayerNorm(256), nn.Linear(256, 1024), nn.Linear(1024, 256)

            def forward(self, x):
                q, k, v = (t.unflatten(-1, (4, 64)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
                y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p={dropout})
                x = x + self.out(y.transpose(1, 2).flatten(2))
                return x + self.down(nn.functional.gelu(self.up(x)))

        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(8000, 256), *(Block() for _ in range(4)), nn.Linear(256, 8000)).cuda()
        step = torch.compile(lambda ids: net(ids))
        for _ in range(3):
            ids = torch.randint(0, 8000, (8, 128), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(step(ids).flatten(0, 1), ids.flatten())
            loss.backward()
            net.zero_grad()
    """,
    "convolutions, float16 autocast, channels last, autotuned": """
        import torch
        from torch import nn

        torch.manual_seed(0)
        def block(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.Dropout({dropout}))
        net = nn.Sequential(block(3, 32), block(32, 64), nn.MaxPool2d(2), block(64, 64), nn.AdaptiveAvgPool2d(1),
                            nn.Flatten(), nn.Linear(64, 10)).cuda().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(net.parameters(), 1e-2)
        step = torch.compile(lambda x: net(x), mode="max-autotune-no-cudagraphs")
        for _ in range(2):
            x = torch.randn(16, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
            with torch.autocast("cuda", torch.float16):
                loss = step(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """,
}
PEAK = """
        import sys
        with open(sys.argv[1], "w") as file:
            file.write(str(torch.cuda.max_memory_reserved()))
"""


@pytest.mark.parametrize(
    ("program", "dropout"),
    [(program, dropout) for program in HEALTHY for dropout in (0.0, 0.1)],
)
def test_healthy_models_raise_no_alarm_and_their_check_takes_little_memory(tmp_path, program, dropout):
    source = HEALTHY[program].format(dropout=dropout) + PEAK
    bare, watched = tmp_path / "bare.txt", tmp_path / "watched.txt"
    assert run_bare(tmp_path, source.replace("sys.argv[1]", repr(str(bare)))).returncode == 0
    ran = run_watched(tmp_path, source, "--check-accuracy", arguments=(str(watched),))
    assert (ran.status, ran.cases) == (0, []), ran.stderr
    assert int(watched.read_text()) <= 2 * int(bare.read_text()) + (1 << 30)


KERNEL = """
    import torch
    import torch._inductor.config as config
    import triton
    import triton.language as tl

    config.triton.inject_relu_bug_TESTING_ONLY = {fault!r}

    def configs():
        return [triton.Config({{"BLOCK": size}}, num_warps=4) for size in (256, 1024)]

    @triton.autotune(configs=configs(), key=["n"])
    @triton.jit
    def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < n
        tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)

    def add(x, y):
        out = torch.empty_like(x)
        n = out.numel()
        add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
        return out

    @torch.compile
    def f(x, y):
        return torch.relu(add(x.sin(), y) * 2) + 1

    torch.manual_seed(0)
    print(f(torch.randn(5000, device="cuda"), torch.randn(5000, device="cuda")).shape)
"""


@pytest.mark.parametrize("fault", ["compile_error", "accuracy"])
def test_a_graph_with_a_kernel_of_the_users_has_a_script_and_is_made_small(tmp_path, fault):
    options = ("--check-accuracy",) if fault == "accuracy" else ()
    ran = run_watched(tmp_path, KERNEL.format(fault=fault), "--minify", *options)
    assert "@triton.autotune(configs=configs()" in ran.file("original.py")
    assert (ran.case["minified"]["calls"], ran.case["verified"]["reproduced"]) == (1, 3), ran.stderr
    assert ran.case["triage"]["ops"] == ["aten.relu.default"], ran.stderr
    assert "triton" not in ran.file("repro.py").replace("triton.inject_relu_bug_TESTING_ONLY", "")


KEPT = """
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    forward = torch.compile(net, mode="reduce-overhead")
    kept = []
    with torch.no_grad():
        for step in range(6):
            kept.append(forward(torch.randn(16, 64, device="cuda")))
    print(torch.stack(kept).sum().item())
"""


def test_a_result_of_a_cuda_graph_that_is_kept_is_put_to_its_line_and_cured_by_a_clone(tmp_path):
    ran = run_watched(tmp_path, KEPT, "--minify")
    assert ran.case["triage"]["component"] == "program", ran.stderr
    assert ran.case["triage"]["code"].startswith("kept.append(forward(")
    best = ran.case["workarounds"][0]
    assert best["program"] is True and best["how"].endswith('device="cuda")).clone())'), ran.stderr
