"""`make demo`: a model that breaks on a real bug of torch 2.13, under torchsleuth; the last screen is the result."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("vision_transformer.py")


def main() -> None:
    print(f"$ torchsleuth run {PROGRAM.name}", flush=True)
    done = subprocess.run([sys.executable, "-m", "torchsleuth", "run", str(PROGRAM)], check=False)
    if done.returncode != 1:  # the model's own status: it fails, with and without torchsleuth
        sys.exit("the model did not fail; was this bug fixed in the torch that is installed here?")


if __name__ == "__main__":
    main()
