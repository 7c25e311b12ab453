"""The modules of torch whose import is waited for, by name: whoever waits must not import torch to know them.

Versions: the first nine are there in 2.11 to 2.15; one that is not there is not waited for.
"""

from __future__ import annotations

TORCH = "torch"
DYNAMO = "torch._dynamo"
FRAME_CAPTURE = "torch._dynamo.convert_frame"
COMPILED_CALL = "torch._dynamo.eval_frame"
BACKEND_CALL = "torch._dynamo.repro.after_dynamo"
TRACER = "torch._dynamo.symbolic_convert"
CAPTURED_GRAPH = "torch._dynamo.output_graph"
INNER_COMPILE = "torch._inductor.compile_fx"
DECOMPOSITIONS = "torch._inductor.decomposition"
LOWERING = "torch._inductor.graph"
PACKAGES = "torch.export.pt2_archive._package"
PRECOMPILED = "torch._precompile"
BUNDLES = "torch._functorch._aot_autograd.aot_autograd_result"
GRAPH_CACHE = "torch._functorch._aot_autograd.autograd_cache"
TIMED_STEPS = "torch._dynamo.utils"
GUARDS = "torch._dynamo.guards"
SIDE_EFFECTS = "torch._dynamo.side_effects"
FUSION = "torch._inductor.debug"
LOGGING = "torch._logging"
CUDA_GRAPHS = "torch._inductor.cudagraph_trees"
CUDA_GRAPHS_LEFT_OUT = "torch._inductor.cudagraph_utils"
INDUCTOR_CACHE = "torch._inductor.codecache"
