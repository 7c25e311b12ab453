"""`make demo`: runs a broken training script under torchsleuth and shows what came of it."""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OURS = ("torchsleuth: case ", "torchsleuth:     ")


def show(*words: str, only: tuple[str, ...] = ("",)) -> None:
    """Prints a command and the lines of its output that start with one of `only`."""
    print(f"\n$ {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", *words] if words[0] == "torchsleuth" else [sys.executable, *words[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.rstrip().splitlines()
    kept = [line for line in lines if line.startswith(only)]
    if len(kept) < len(lines):
        print(
            f"[... {len(lines) - len(kept)} lines: the program's own traceback, and how the search goes ...]"
        )
    print("\n".join(kept), flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="torchsleuth-demo-") as folder:
        cases = str(Path(folder, "torchsleuth-cases"))
        show("torchsleuth", "run", "--cases", cases, str(HERE / "broken_training.py"), only=OURS)
        show("torchsleuth", "list", "--cases", cases)
        show("torchsleuth", "show", "last", "--cases", cases)


if __name__ == "__main__":
    main()
