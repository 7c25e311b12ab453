"""Settings: which count as changed, which hold others, which variables they come from, and whose operators are torch's."""

import importlib
import subprocess
import sys
import types

import pytest

from torchsleuth.core.processes.starting import is_compiler_setting
from torchsleuth.script_runtime.compiling import apply_settings
from torchsleuth.torch_internals import compile_overrides
from torchsleuth.torch_internals.configuration import changed_settings, held_by
from torchsleuth.torch_internals.operators import TORCH_NAMESPACES

STATE = {"default_dtype": "torch.float32", "matmul_precision": "highest", "deterministic": False}
INDUCTOR = "torch._inductor.config"


@pytest.fixture
def held(monkeypatch):
    """A module of settings of which one, at "strict", holds another at True, as those of torch 2.15 do."""

    class Settings(types.ModuleType):
        _implications = {"casts": (("numerics", "strict", True),)}
        numerics = "strict"

        @property
        def casts(self):
            return self.numerics == "strict" or self.__dict__["own"]

        @casts.setter
        def casts(self, value):
            self.__dict__["own"] = value

    made = Settings("made_settings")
    made.own = False
    monkeypatch.setitem(sys.modules, "made_settings", made)
    return made


def test_a_setting_that_another_holds_is_said_to_be_held(held):
    assert held_by(held, "casts") == "numerics"
    held.numerics = "default"
    assert held_by(held, "casts") is None


def test_a_script_that_cannot_have_its_settings_does_not_run_without_them(held):
    with importlib.import_module("torch._functorch.config").patch(enable_autograd_cache=True):
        with pytest.raises(ValueError, match="casts cannot be False here: another setting holds it"):
            apply_settings({"made_settings": {"casts": "False"}}, STATE, {})
        apply_settings({"made_settings": {"numerics": "'default'", "casts": "False"}}, STATE, {})
    assert held.casts is False


def test_a_program_that_cannot_have_its_settings_ends_and_says_so(held, capsys):
    with pytest.raises(SystemExit):
        compile_overrides.put_in_force({"made_settings": {"casts": False}})
    assert "cannot override: made_settings.casts is held by numerics" in capsys.readouterr().err


@pytest.mark.since_torch("2.15")
def test_what_strict_numerics_hold_is_no_setting_of_the_users():
    config = importlib.import_module(INDUCTOR)
    with config.patch(numerics="strict"):
        assert config.emulate_precision_casts is True
        assert changed_settings()[INDUCTOR] == {"numerics": "strict"}
        assert held_by(config, "emulate_precision_casts") == "numerics"


@pytest.mark.parametrize(
    "variable",
    [
        "TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK",
        "FLYDSL_ENABLE_AUTOTUNING",
        "ENABLE_TEMPLATE_AUTOWS",
        "ENABLE_HOST_SIDE_TMA",
        "ENABLE_PERSISTENT_TMA_MATMUL",
        "TORCHINDUCTOR_NUMERICS",
    ],
)
def test_variables_that_the_compiler_reads_are_settings(variable):
    assert is_compiler_setting(variable)


def test_the_distributed_variables_of_a_program_are_none():
    assert not is_compiler_setting("TORCH_DISTRIBUTED_DEBUG")
    assert not is_compiler_setting("TORCH_NCCL_BLOCKING_WAIT")


ALL = """
import importlib
import torch
for name in ("_inductor.compile_fx", "_dynamo.variables.memory", "_higher_order_ops.flex_gemm", "distributed"):
    try:
        importlib.import_module(f"torch.{name}")
    except ImportError:
        pass
print(*{name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()})
"""


def test_every_namespace_of_this_torch_is_known_to_be_torchs():
    found = subprocess.run([sys.executable, "-c", ALL], capture_output=True, text=True, check=True).stdout
    assert set(found.split()) - TORCH_NAMESPACES == set()
    assert {"coor", "flex_gemm", "mempool", "_native_aot"} <= TORCH_NAMESPACES
