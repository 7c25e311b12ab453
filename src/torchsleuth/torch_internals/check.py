"""Asks this torch whether everything torchsleuth hooks into is there: `python -m torchsleuth.torch_internals.check`.

Prints one JSON line. Run in a process of its own, because a broken torch takes its process down.
"""

import json
import sys


def main() -> None:
    """Puts every hook in and takes it out again."""
    import torch._dynamo
    import torch._inductor.compile_fx

    from torchsleuth.torch_internals import hooks

    hooks.hook_backend_calls(lambda call: call.compile(call.graph, call.inputs))()
    hooks.hook_inner_compiles(lambda call: call.compile(call.graph, call.inputs))()
    hooks.hook_frame_captures(lambda frame: frame.capture())()
    available = torch.cuda.is_available()
    answer = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if available else None}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
