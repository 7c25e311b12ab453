"""Comparing models: when is a result the same, and when is a compiled result wrong?

`same` and `same_two_models` compare with tolerances; `judge` compares with the rounding noise of the graph itself.
"""

from torchsleuth.compare.calibrate import calibrate
from torchsleuth.compare.calibration import (
    Calibration,
    calibration_path,
    load_calibration,
    save_calibration,
)
from torchsleuth.compare.cloning import clone_inputs, restore, snapshot
from torchsleuth.compare.float64 import cast_to_fp64
from torchsleuth.compare.gradients import judge_gradients
from torchsleuth.compare.judge import judge, judge_results
from torchsleuth.compare.models import reduce_to_scalar_loss, run_fwd_maybe_bwd, same_two_models
from torchsleuth.compare.rng import restore_rng, rng_kept, save_rng
from torchsleuth.compare.same import Difference, differences, same
from torchsleuth.compare.verdict import (
    DIVERGED,
    EAGER_SUSPECT,
    INCONCLUSIVE,
    WITHIN_NOISE,
    LeafVerdict,
    Verdict,
)

__all__ = [
    "DIVERGED",
    "EAGER_SUSPECT",
    "INCONCLUSIVE",
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
