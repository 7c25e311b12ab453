"""`make demo`: runs a model that breaks on a real bug of torch 2.13 under torchsleuth, and shows what came of it."""

import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(__file__).with_name("vision_transformer.py")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="torchsleuth-demo-") as folder:
        print(f"$ torchsleuth run {PROGRAM.name}", flush=True)
        command = [sys.executable, "-m", "torchsleuth", "run", str(PROGRAM)]
        run = subprocess.Popen(command, cwd=folder, stdout=sys.stdout, stderr=subprocess.PIPE, text=True)
        assert run.stderr is not None
        traceback = 0
        for line in run.stderr:
            # The program's own traceback is long, and the same with and without torchsleuth.
            if not traceback and line.startswith("Traceback"):
                print(line.rstrip(), "\n  [...]", flush=True)
                traceback = 1
            if traceback == 1:
                traceback = 2 if line.startswith("torchsleuth:") else 1
            if traceback != 1:
                print(line, end="", flush=True)
        if run.wait() not in (0, 1, 3):
            sys.exit(f"the demo did not work: status {run.returncode}")


if __name__ == "__main__":
    main()
