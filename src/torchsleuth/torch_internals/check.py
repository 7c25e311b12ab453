"""Asks this torch whether everything torchsleuth hooks into is there: `python -m torchsleuth.torch_internals.check`.

Prints one JSON line. Run in a process of its own, because a broken torch takes its process down.
"""

import importlib.util
import json
import sys
from typing import Any


def main() -> None:
    """Puts every hook in and takes it out again; tries the device."""
    import torch._dynamo
    import torch._inductor.compile_fx

    from torchsleuth.torch_internals import hooks

    hooks.hook_backend_calls(lambda call: call.compile(call.graph, call.inputs))()
    hooks.hook_inner_compiles(lambda call: call.compile(call.graph, call.inputs))()
    hooks.hook_frame_captures(lambda frame: frame.capture())()
    answer = {
        "torch": torch.__version__,
        "built_for": torch.version.cuda or torch.version.hip,
        **_device(torch),
        "triton": _triton(),
        "backends": sorted(torch._dynamo.list_backends(exclude_tags=())),
        "modes": sorted(torch._inductor.list_mode_options()),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _device(torch: Any) -> dict[str, str | None]:
    """Its name once a kernel has run on it, or why that failed."""
    if not torch.cuda.is_available():
        return {"device": None, "device_error": None}
    try:
        torch.ones(8, device="cuda").sum().item()
        return {"device": torch.cuda.get_device_name(), "device_error": None}
    except Exception as error:
        return {"device": None, "device_error": (str(error).splitlines() or [type(error).__name__])[0]}


def _triton() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        import triton

        return str(triton.__version__)
    except Exception as error:
        return f"broken: {type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
