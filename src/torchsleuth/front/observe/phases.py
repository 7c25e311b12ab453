"""Which phase of a compile each of torch's timed steps belongs to.

A step that is not named here belongs to the phase of the step around it: a release with new steps still adds up.

Names are those of 2.11 to 2.15.
"""

from __future__ import annotations

import re

CAPTURE = "capture"
GUARDS = "guards"
BACKEND = "backend"
AOT = "AOTAutograd"
PASSES = "passes"
LOWERING = "lowering"
SCHEDULING = "scheduling"
CODE = "code generation"
KERNELS = "C++/Triton"
TUNING = "autotuning"
CACHE = "cache"
CUDAGRAPHS = "CUDA graphs"

# In the order in which a compile goes through them; each with what a person has to know of it.
PHASES = {
    CAPTURE: "Dynamo reads the function's bytecode and writes down its tensor operations",
    GUARDS: "the conditions under which the compiled code may be used again",
    BACKEND: "the backend itself, apart from what follows",
    AOT: "forward and backward as one graph, then split",
    PASSES: "the graph is rewritten: patterns, decompositions, propagation of shapes",
    LOWERING: "operators become loops over buffers",
    SCHEDULING: "which loops are fused, and in which order they run",
    CODE: "kernels and the wrapper around them are written as text",
    KERNELS: "that text goes through the C++ compiler or Triton",
    TUNING: "variants of kernels are run and timed",
    CACHE: "keys are computed and caches asked",
    CUDAGRAPHS: "kernels are recorded to be launched at once",
}

# First match wins.
_RULES: tuple[tuple[str, str], ...] = (
    (r"build_guards|guard_collective|precompile_.*guards", GUARDS),
    (
        r".*autotun.*|.*template_precompiling|benchmark_.*|.*coordinate_descent.*|CachingAutotuner\.bench.*"
        r"|collective_compute_do_bench",
        TUNING,
    ),
    (r"inductor_codecache_torch_key|CacheBase\..*|AOTAutogradCache\..*|FxGraphCache\..*|pgo\..*", CACHE),
    (r"pass\..*|_recursive_\w+_passes|additional_fake_tensor_prop|fx\.bucketing.*", PASSES),
    (r"convert_conv_weights_to_channels_last", PASSES),
    (
        r"create_aot_dispatcher_function|aot_.*|min_cut_.*|backward\._backward_impl|entire_backward_compile"
        r"|invoke_subgraph_(trace_joint|fake|proxy).*",
        AOT,
    ),
    (
        r"compile_file|async_compile\..*|PyCodeCache\..*|reload_kernel_in_parent|AotCodeCompiler\..*|aoti_.*"
        r"|CachingAutotuner\..*|TritonBundler\..*|StaticAutotunerFuture\..*|cutlass_utils.*|CUTLASSGemm.*",
        KERNELS,
    ),
    (r"GraphLowering\.run|fx_codegen_and_compile|inductor_compile|compile_fx.*", LOWERING),
    (r"Scheduler\.codegen", CODE),
    (r"Scheduler\..*", SCHEDULING),
    (r"GraphLowering\..*|code_gen|.*Codegen\.generate|CppWrapper.*|generate_kernel_code_from_nodes", CODE),
    (r"backend_compile|OutputGraph\.call_user_compiler|inductor_import", BACKEND),
    (r"cudagraph.*|CUDAGraph.*", CUDAGRAPHS),
    (
        r"dynamo|entire_frame_compile|_compile\.compile_inner|compile_attempt_\d+|bytecode_\w+|gc"
        r"|insert_deferred_runtime_asserts|fullgraph_capture",
        CAPTURE,
    ),
)
_COMPILED = tuple((re.compile(pattern), phase) for pattern, phase in _RULES)


def phase_of(step: str) -> str | None:
    """The phase of a step, by torch's name for it; None where that is the one of the step around it.

    >>> phase_of("GraphLowering.run"), phase_of("compile_file"), phase_of("something_new")
    ('lowering', 'C++/Triton', None)
    """
    return next((phase for pattern, phase in _COMPILED if pattern.fullmatch(step)), None)
