"""Calibrates in a process of its own: `python -m torchsleuth.torch_core.compare.verdict.calibrate_process cpu 20 keep`.

Speaks JSON lines on stdout: `{"done": 3, "total": 60}` after each graph, at the end the calibration and the file it
was kept in. What compiling prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from torchsleuth.torch_core.compare.verdict.calibrate import DTYPES, SEEDS, calibrate
from torchsleuth.torch_core.compare.verdict.calibration import save_calibration


def main(device: str, graphs: int, keep: bool) -> None:
    """Measures `graphs` healthy graphs per dtype, and keeps what was found only when all of it is there."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.dup2(2, 1)
        done = 0

        def say(document: dict[str, Any]) -> None:
            lines.write(json.dumps(document) + "\n")
            lines.flush()

        def tell(_case: object, _verdict: object) -> None:
            nonlocal done
            done += 1
            say({"done": done, "total": graphs * len(DTYPES)})

        found = calibrate(device, seeds=range(SEEDS.start, SEEDS.start + graphs), on_graph=tell)
        path = save_calibration(found) if keep else None
        say({**found.to_json(), "path": str(path) if path else None})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "keep")
