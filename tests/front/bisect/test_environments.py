"""Environments are built whole or not at all, once, and what goes wrong is one sentence. The index is made here."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from made_index import make_wheel, served
from torchsleuth.front.bisect import environments
from torchsleuth.front.bisect.environments import (
    READY,
    CannotBuild,
    NoBuilder,
    NoNetwork,
    NoRoom,
    Recipe,
    Stopped,
    build_environment,
    builder,
    python_of,
)


@pytest.fixture
def index(tmp_path):
    wheels = [make_wheel(tmp_path / "made", version) for version in ("0.1.0", "0.2.0")]
    wheels.append(make_wheel(tmp_path / "made", "0.3.0", "raise ImportError('libfoo is missing')"))
    wheels.append(make_wheel(tmp_path / "made", "0.4.0", "import time; time.sleep(86400)"))
    with served(tmp_path / "index", wheels) as url:
        yield url


def build(recipe, folder, **more):
    options = {"deadline": time.monotonic() + 250, "stop": threading.Event(), **more}
    return build_environment(recipe, folder, **options)


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "building" in path.name]


def test_a_built_environment_has_that_torch_and_is_used_again(tmp_path, index):
    recipe, folder = Recipe("0.2.0", index), tmp_path / "environments"
    assert python_of(recipe, folder) is None
    python = build(recipe, folder)
    said = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    assert said.stdout.strip() == "0.2.0"
    ready = folder / recipe.folder_name / READY
    made = json.loads(ready.read_text())["made"]
    assert build(recipe, folder) == python == python_of(recipe, folder)
    assert json.loads(ready.read_text())["made"] == made and not left_over(folder)


def test_two_builders_of_one_environment_build_it_once(tmp_path, index, monkeypatch):
    fills = []
    fill = environments._fill
    monkeypatch.setattr(environments, "_fill", lambda *a: (fills.append(a[0]), fill(*a)))
    recipe, folder = Recipe("0.1.0", index), tmp_path / "environments"
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: build(recipe, folder), range(2))
    assert first == second and len(fills) == 1


def test_a_half_built_environment_is_never_used_and_swept_away(tmp_path, index):
    recipe, folder = Recipe("0.1.0", index), tmp_path / "environments"
    half = folder / recipe.folder_name / "bin"
    half.mkdir(parents=True)
    (half / "python").symlink_to(sys.executable)
    dead = folder / f".{recipe.folder_name}.building-1"
    dead.mkdir()
    assert python_of(recipe, folder) is None
    build(recipe, folder)
    assert python_of(recipe, folder) is not None and not dead.exists()


def test_a_release_that_the_index_lacks_or_that_cannot_be_imported_is_refused_alone(tmp_path, index):
    folder = tmp_path / "environments"
    with pytest.raises(CannotBuild, match="no wheel of it for Python"):
        build(Recipe("0.9.0", index), folder)
    with pytest.raises(CannotBuild, match="libfoo is missing"):
        build(Recipe("0.3.0", index), folder)
    assert not left_over(folder) and python_of(Recipe("0.3.0", index), folder) is None


def test_stopping_and_the_clock_end_a_build_that_would_never_end(tmp_path, index):
    folder, stop = tmp_path / "environments", threading.Event()
    threading.Timer(2.5, stop.set).start()
    with pytest.raises(Stopped):
        build(Recipe("0.4.0", index), folder, stop=stop)
    with pytest.raises(Stopped):
        build(Recipe("0.4.0", index), folder, deadline=time.monotonic() + 0.5)
    assert not left_over(folder)


def test_an_index_that_cannot_be_reached_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(NoNetwork, match="the index does not answer"):
        build(Recipe("0.1.0", "http://127.0.0.1:9/simple"), tmp_path)


def test_a_full_disk_is_said_before_and_while_building(tmp_path, index, monkeypatch):
    with pytest.raises(NoRoom, match=r"No room on the disk .* GB are free"):
        build(Recipe("0.1.0", index), tmp_path, expected_bytes=1 << 60)
    monkeypatch.setattr(
        environments, "_fill", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(NoRoom, match="delete environments there"):
        build(Recipe("0.1.0", index), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NoRoom, match="cannot be kept"):
        build(Recipe("0.1.0", index), tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("error: No space left on device (os error 28)", NoRoom),
        ("  × Failed to fetch: `https://example.org`\n  dns error: failed to lookup address", NoNetwork),
        (
            "  × No solution found when resolving dependencies:\n  ╰─▶ Because there is no version",
            CannotBuild,
        ),
        ("ERROR: something else\nnote: of pip", CannotBuild),
        ("", CannotBuild),
    ],
)
def test_the_words_of_pip_and_uv_become_the_error_they_stand_for(said, error):
    failure = environments._failure(said, Recipe("2.12.0"))
    assert type(failure) is error and "\n" not in str(failure)


def test_neither_uv_nor_pip_is_one_sentence(monkeypatch):
    monkeypatch.setattr(environments.shutil, "which", lambda _name: None)
    monkeypatch.setattr(environments.importlib.machinery.PathFinder, "find_spec", lambda _name: None)
    with pytest.raises(NoBuilder, match="neither uv on PATH nor pip"):
        builder()


def test_looking_for_pip_leaves_this_process_able_to_load_setuptools(tmp_path):
    pytest.importorskip("setuptools")
    program = "from torchsleuth.front.bisect.environments import builder; print(builder()); import setuptools"
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("pip\n", 0), done.stderr


def test_another_index_is_another_environment():
    names = {Recipe("2.12.0", index).folder_name for index in (None, "https://a", "https://b")}
    assert len(names) == 3 and all("secret" not in n for n in names)
    assert "secret" not in Recipe("2.12.0", "https://user:secret@host/simple").folder_name


@pytest.mark.slow
@pytest.mark.skipif(
    "TORCHSLEUTH_BUILD" not in os.environ, reason="may download gigabytes: TORCHSLEUTH_BUILD=2.13.0"
)
def test_a_real_release_is_built(tmp_path):
    version = os.environ["TORCHSLEUTH_BUILD"]
    python = build(Recipe(version), tmp_path, deadline=time.monotonic() + 280)
    said = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    shutil.rmtree(tmp_path)
    assert said.stdout.startswith(version)
