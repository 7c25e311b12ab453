"""Which settings matter: those of the user without which nothing fails, and those that make the failure vanish.

Both answers are sets, because some bugs need two settings at once. A set is found whole first and then made smaller,
so that a pair costs no more than the settings it was picked from.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsleuth.core.cases.flags import PRECISION_CASTS, Flag, config_of
from torchsleuth.search.blame.experiments import Experiment, ExperimentRunner
from torchsleuth.search.minify.contract import State
from torchsleuth.search.minify.subsets import smallest
from torchsleuth.torch_internals.configuration import default_setting

# Optimisations of Inductor that only make things faster, each with the value that leaves it out.
CAUTIOUS = (
    PRECISION_CASTS,
    Flag("cpp.simdlen", "1", "vectorised C++ code"),
    Flag("cpp.threads", "1", "parallel loops in C++ code"),
    Flag("cpp.enable_floating_point_contract_flag", "'off'", "contraction of multiply and add"),
    Flag("cpp.enable_tiling_heuristics", "False", "tiling of C++ loops"),
    Flag("cpp.enable_loop_tail_vec", "False", "vectorised loop tails"),
    Flag("max_fusion_size", "1", "fusion of kernels"),
    Flag("realize_reads_threshold", "0", "inlining of operators whose result is used more than once"),
    Flag("realize_opcount_threshold", "5", "inlining of long chains of operators"),
    Flag("epilogue_fusion", "False", "fusion into matrix products"),
    Flag("pattern_matcher", "False", "pattern matching on graphs"),
    Flag("joint_graph_constant_folding", "False", "constant folding"),
    Flag("layout_optimization", "False", "other memory layouts for convolutions"),
    Flag("comprehensive_padding", "False", "padding of strides"),
    Flag("shape_padding", "False", "padding of matrix products"),
    Flag("split_reductions", "False", "reductions in two steps"),
    Flag("allow_buffer_reuse", "False", "reuse of buffers"),
    Flag("inplace_buffers", "False", "writing results over inputs of a kernel"),
    Flag("reorder_for_locality", "False", "reordering for locality"),
    Flag("reorder_for_peak_memory", "False", "reordering for memory"),
    Flag("max_autotune", "False", "autotuning"),
    Flag("max_autotune_gemm", "False", "autotuning of matrix products"),
    Flag("freezing", "False", "freezing of weights"),
    Flag("triton.cudagraphs", "False", "CUDA graphs"),
    Flag("triton.persistent_reductions", "False", "persistent reductions"),
    Flag("triton.multi_kernel", "0", "choosing between kernels at run time"),
    Flag("use_fast_math", "False", "fast mathematics"),
)


def switchable(state: State, flags: Sequence[Flag] = CAUTIOUS) -> list[Flag]:
    """Those flags that this torch has and that do not stand at their cautious value already."""
    given, options = state.settings.config, state.settings.options
    found = []
    for flag in flags:
        default = default_setting(flag.module, flag.key)
        now = options.get(flag.key) or given.get(flag.module, {}).get(flag.key)
        if default is not None and flag.value != (repr(default[0]) if now is None else now):
            found.append(flag)
    return found


def cautious_fix(runner: ExperimentRunner, state: State, flags: Sequence[Flag]) -> list[Flag]:
    """The fewest cautious values that make the failure vanish, all of which together do."""

    def cautious(some: Sequence[Flag]) -> Experiment:
        return Experiment(f"with cautious {', '.join(flag.key for flag in some)}", config=config_of(some))

    return runner.smallest_cure(state, flags, cautious)


def settings_of(state: State) -> list[tuple[str, str]]:
    """The settings that are not torch's defaults, as (module, key); options of torch.compile under "options"."""
    found = [(module, key) for module, values in state.settings.config.items() for key in values]
    known = {key for _, key in found}
    return found + [("options", key) for key in state.settings.options if key not in known]


def only_settings(state: State, kept: Sequence[tuple[str, str]]) -> State:
    """The state with no other settings than these."""
    names = set(kept)
    keys = {key for _, key in kept}
    config = {
        module: {key: text for key, text in values.items() if (module, key) in names}
        for module, values in state.settings.config.items()
    }
    options = {key: text for key, text in state.settings.options.items() if key in keys}
    return state.setting(config=config, options=options)


def needed_settings(runner: ExperimentRunner, state: State) -> list[tuple[str, str]]:
    """The fewest of the user's settings under which it still fails; none where it fails with torch's defaults."""

    def enough(sets: Sequence[Sequence[tuple[str, str]]]) -> list[bool]:
        return [runner.one(only_settings(state, s), Experiment(_only(s))).fails for s in sets]

    mine = settings_of(state)
    if not mine or enough([[]])[0]:
        return []
    return smallest(mine, enough)


def _only(kept: Sequence[tuple[str, str]]) -> str:
    names = ", ".join(key for _, key in kept)
    return f"with no other setting than {names}" if names else "with torch's default settings"
