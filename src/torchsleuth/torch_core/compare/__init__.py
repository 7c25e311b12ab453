"""Comparing models: when is a result the same, and when is a compiled result wrong?

`same` and `same_two_models` compare with tolerances; `judge` compares with the rounding noise of the graph itself.
"""

from torchsleuth.torch_core.compare.compat.models import (
    reduce_to_scalar_loss,
    run_fwd_maybe_bwd,
    same_two_models,
)
from torchsleuth.torch_core.compare.compat.same import Difference, differences, same
from torchsleuth.torch_core.compare.reference.cloning import clone_inputs, restore, snapshot
from torchsleuth.torch_core.compare.reference.float64 import cast_to_fp64
from torchsleuth.torch_core.compare.reference.rng import restore_rng, rng_kept, save_rng
from torchsleuth.torch_core.compare.verdict.calibrate import calibrate
from torchsleuth.torch_core.compare.verdict.calibration import (
    Calibration,
    calibration_path,
    load_calibration,
    save_calibration,
)
from torchsleuth.torch_core.compare.verdict.gradients import judge_gradients
from torchsleuth.torch_core.compare.verdict.judge import judge, judge_results
from torchsleuth.torch_core.compare.verdict.verdict import (
    DIVERGED,
    EAGER_SUSPECT,
    INCONCLUSIVE,
    LESS_PRECISE,
    WITHIN_NOISE,
    LeafVerdict,
    Verdict,
)

__all__ = [
    "DIVERGED",
    "EAGER_SUSPECT",
    "INCONCLUSIVE",
    "LESS_PRECISE",
    "WITHIN_NOISE",
    "Calibration",
    "Difference",
    "LeafVerdict",
    "Verdict",
    "calibrate",
    "calibration_path",
    "cast_to_fp64",
    "clone_inputs",
    "differences",
    "judge",
    "judge_gradients",
    "judge_results",
    "load_calibration",
    "reduce_to_scalar_loss",
    "restore",
    "restore_rng",
    "rng_kept",
    "run_fwd_maybe_bwd",
    "same",
    "same_two_models",
    "save_calibration",
    "save_rng",
    "snapshot",
]
