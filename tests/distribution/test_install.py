"""The built wheel and sdist, installed in a clean environment, do what the sources do."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import torchsleuth

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import torch
torch.compile(lambda x: torch.relu(x).sin(), backend="sleuth_relu_compile_error")(torch.ones(3))
"""
TEST = """
def test_it(sleuth):
    pass
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return folder


def installed(folder: Path, what: Path) -> Path:
    """A clean environment with nothing of torchsleuth but `what`; torch and the like are lent by the one that tests."""
    venv.create(folder, with_pip=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    # A line of a .pth file: what lies there can be imported, and .pth files over there - our sources - are not read.
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"])
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--force-reinstall"]
    subprocess.run(
        [folder / "bin" / "python", "-m", "pip", "install", *options, what],
        check=True,
        env=clean(),
        timeout=300,
    )
    return folder / "bin"


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_was_built_installs_and_catches_a_failure(built, tmp_path, kind):
    (what,) = built.glob(kind)
    bin_ = installed(tmp_path / "env", what)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        words = [bin_ / command[0], *command[1:]]
        return subprocess.run(words, cwd=tmp_path, env=clean(), capture_output=True, text=True, timeout=500)

    assert run("torchsleuth", "--version").stdout.strip().endswith(torchsleuth.__version__)
    where = run("python", "-c", "import torchsleuth; print(torchsleuth.__file__)").stdout
    assert str(tmp_path / "env") in where
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = run("torchsleuth", "run", "--no-minify", "program.py")
    assert ran.returncode == 1 and "reproduced" in ran.stderr, ran.stderr
    (tmp_path / "test_fixture.py").write_text(TEST)
    tested = run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fixture.py")
    assert tested.returncode == 0, tested.stdout


def test_the_wheel_holds_the_package_alone_and_the_sdist_what_tests_it(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        about = file.read(next(n for n in names if n.endswith("METADATA"))).decode()
    # The .pth is the switch TORCHSLEUTH=1.
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"torchsleuth", "torchsleuth.pth"}
    for template in (
        "torch_core/repro/templates/small.py.jinja",
        "front/report/templates/sweep.html.jinja",
        "py.typed",
    ):
        assert f"torchsleuth/{template}" in names
    assert "torchsleuth/watched/inject/sitecustomize.py" in names
    for line in ("Requires-Python: >=3.11", "License-Expression: BSD-3-Clause", "Project-URL: Changelog, "):
        assert line in about
    with tarfile.open(sdist) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "Makefile", "pyproject.toml"} <= inside
    assert {"tests/conftest.py", "docs/conf.py"} <= inside
    assert not any(name.startswith((".venv", "torchsleuth-cases", ".git/")) for name in inside)
