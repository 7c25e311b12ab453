"""A package index on this machine with tiny wheels named torch, so that environments are built for real."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path


def make_wheel(folder: Path, version: str, code: str = "") -> Path:
    """A wheel whose torch knows its version, and runs `code` on import."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"torch-{version}-py3-none-any.whl"
    info = f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": f"__version__ = {version!r}\n{code}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: made\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)
    return path


@contextlib.contextmanager
def served(folder: Path, wheels: Sequence[Path], as_json: bool = False) -> Iterator[str]:
    """The URL of a simple index that lists these wheels."""
    page = folder / "simple" / "torch"
    page.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        wheel.replace(page / wheel.name)
    names = [wheel.name for wheel in wheels]
    links = "".join(f'<a href="{name}">{name}</a>\n' for name in names)
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    files = [{"filename": n, "url": n, "size": (page / n).stat().st_size, "hashes": {}} for n in names]
    document = json.dumps({"meta": {"api-version": "1.0"}, "name": "torch", "files": files}).encode()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

        def do_GET(self):
            if as_json and self.path.endswith("/torch/"):
                self.send_response(200)
                self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
                self.end_headers()
                self.wfile.write(document)
            else:
                super().do_GET()

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
