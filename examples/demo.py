"""`make demo`: runs a broken training script under torchsleuth and shows what came of it."""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def show(*words: str, tail: int | None = None) -> None:
    print(f"\n$ {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", *words] if words[0] == "torchsleuth" else [sys.executable, *words[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.rstrip().splitlines()
    if tail is not None and len(lines) > tail:
        print(f"[... {len(lines) - tail} lines of the program's own traceback ...]")
        lines = lines[-tail:]
    print("\n".join(lines), flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="torchsleuth-demo-") as folder:
        cases = str(Path(folder, "torchsleuth-cases"))
        show("torchsleuth", "run", "--cases", cases, str(HERE / "broken_training.py"), tail=8)
        show("torchsleuth", "list", "--cases", cases)
        show("torchsleuth", "show", "last", "--cases", cases)


if __name__ == "__main__":
    main()
