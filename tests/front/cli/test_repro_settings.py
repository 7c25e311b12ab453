"""What a script must not forget: settings from the shell, kinds of inputs, passes, tables, groups of processes."""

import pytest

from program_runs import run_watched

SINH = """
    import torch
    try:
        print(torch.compile(lambda x: x.sinh() + 1)(torch.ones(3)))
    except Exception as error:
        print("failed", type(error).__name__)
"""


@pytest.mark.slow
def test_a_setting_from_the_environment_stands_in_the_script(tmp_path):
    ran = run_watched(
        tmp_path,
        SINH,
        "--minify",
        fault="aten.sinh.default:raise_emulating",
        TORCHINDUCTOR_EMULATE_PRECISION_CASTS="1",
        TORCHINDUCTOR_MAX_AUTOTUNE="1",
    )
    assert "emulate_precision_casts" in ran.file("repro.py"), ran.stderr
    assert "autotune" not in ran.file("repro.py")  # the failure does not need it
    verified = ran.case["verified"]
    assert verified["reproduced"] == verified["times"] > 0


def test_torchs_own_minifier_does_not_step_in_where_its_variables_are_set(tmp_path):
    ran = run_watched(
        tmp_path,
        SINH,
        fault="aten.sinh.default:wrong",
        TORCHDYNAMO_REPRO_AFTER="dynamo",
        TORCHDYNAMO_REPRO_LEVEL="4",
    )
    assert ran.case["kind"] == "accuracy", ran.stderr
    assert ran.case["verified"]["reproduced"] == ran.case["verified"]["times"] > 0, ran.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "cases", "program.py"]


def test_a_backend_chosen_for_one_graph_by_the_environment_is_seen_as_a_backend(tmp_path):
    ran = run_watched(
        tmp_path,
        SINH,
        "--record-only",
        fault="aten.sinh.default:raise",
        TORCH_COMPILE_OVERRIDE_BACKENDS=">=0:inductor",
    )
    assert (ran.case["kind"], ran.case["after"]) == ("compile_error", "aot"), ran.stderr
    watched = run_watched(
        tmp_path / "eager", SINH, fault="aten.sinh.default:raise", TORCH_COMPILE_OVERRIDE_BACKENDS=">=0:eager"
    )
    assert watched.cases == [] and "watched 1 captured" in watched.ours()[-1], watched.stderr


FAILING = {
    "a computed input that the function changes": """
        import torch
        x = torch.ones(3, requires_grad=True) * 1
        torch.compile(lambda t: t.mul_(2).sinh().sum())(x)
    """,
    "an input without elements": """
        import torch
        torch.compile(lambda t, e: t.sinh().sum() + e.sum())(torch.ones(3), torch.empty(0, 3))
    """,
    "a pass that is an instance": """
        import torch
        from torch._inductor.custom_graph_pass import CustomGraphPass
        class Count(CustomGraphPass):
            def __init__(self, limit):
                self.limit = limit
            def __call__(self, graph):
                assert len(graph.nodes) > self.limit
            def uuid(self):
                return "count"
        torch._inductor.config.post_grad_custom_post_pass = Count(1)
        torch.compile(lambda t: t.sinh().sum())(torch.ones(3))
    """,
    "a collective": """
        import torch
        import torch.distributed as dist
        from torch.distributed import _functional_collectives as collectives
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        other = dist.new_group([0])
        def f(t):
            return collectives.all_reduce(t.sinh(), "sum", dist.group.WORLD) + collectives.all_reduce(t, "sum", other)
        torch.compile(f)(torch.ones(3))
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FAILING)
def test_a_script_has_what_its_graph_needs(tmp_path, what):
    ran = run_watched(tmp_path, FAILING[what], fault="aten.sinh.default:raise")
    assert ran.case["no_repro"] is None and ran.case["kind"] == "compile_error", ran.stderr
    assert ran.case["verified"]["reproduced"] == ran.case["verified"]["times"] > 0, ran.stderr


@pytest.mark.slow
def test_a_decomposition_of_the_programs_own_is_in_the_script_and_blamed(tmp_path):
    source = """
        import torch
        from torch._inductor.decomposition import decompositions
        def silu(x):
            return x * torch.sigmoid(x) + 1
        decompositions[torch.ops.aten.silu.default] = silu
        print(torch.compile(lambda t: torch.nn.functional.silu(t) * 2)(torch.zeros(3)).tolist())
    """
    ran = run_watched(tmp_path, source, "--check-accuracy", "--minify")
    assert ran.case["kind"] == "accuracy", ran.stderr
    assert "def silu" in ran.file("repro.py")
    assert ran.case["triage"]["component"] == "decompositions", ran.case["triage"]
