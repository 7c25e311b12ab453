"""Which releases an index has to offer, at what cost, and what is done where it is silent."""

import sys
from types import SimpleNamespace

import pytest

from made_index import make_wheel, served
from torchsleuth.core.cases.releases import range_of
from torchsleuth.front.bisect import index
from torchsleuth.front.bisect.environments import CannotBuild
from torchsleuth.front.bisect.index import (
    CUDA_BYTES,
    KNOWN,
    IndexProvider,
    NoRelease,
    installed_cuda,
    nightly_index,
)

SILENT = "http://127.0.0.1:9/simple"


def test_a_range_without_releases_and_nightlies_without_an_index_are_one_sentence(tmp_path):
    wheel = make_wheel(tmp_path / "made", "0.1.0")
    with served(tmp_path, [wheel]) as url, pytest.raises(NoRelease, match=r"no torch in 8\.1\.\.8\.2"):
        IndexProvider(url).versions(range_of("8.1..8.2"))
    with pytest.raises(NoRelease, match="index of nightlies does not answer"):
        IndexProvider(SILENT).versions(range_of("2026-10-01..2026-11-01"))


def test_a_silent_index_leaves_the_known_releases_with_estimated_sizes(tmp_path):
    told = []
    index = IndexProvider(SILENT, folder=tmp_path, say=told.append)
    found = index.versions(range_of("2.11..2.15"))
    assert found == list(KNOWN[KNOWN.index("2.11.0") :]) and len(found) == 7
    other = next(v for v in found if v != index.installed)
    offer = index.offer(other)
    assert not offer.exact and offer.bytes > 1e8
    assert len(told) == 2 and "cannot be reached" in told[0] and "estimated sizes" in told[1]


def test_a_nightly_end_takes_the_newest_nightly_of_the_given_index(tmp_path, monkeypatch):
    nights = [make_wheel(tmp_path / "made", f"9.1.0.dev2026100{day}") for day in (1, 3, 2)]
    releases = [make_wheel(tmp_path / "made", "9.0.0")]
    with served(tmp_path / "a", nights) as own, served(tmp_path / "b", releases) as usual:
        monkeypatch.setenv("PIP_INDEX_URL", usual)
        assert IndexProvider(own).versions(range_of("9.0..nightly")) == ["9.0.0", "9.1.0.dev20261003"]
        dates = range_of("2026-10-01..2026-10-02")
        assert IndexProvider(own).versions(dates) == ["9.1.0.dev20261001", "9.1.0.dev20261002"]


def test_the_installed_release_costs_nothing_and_is_used_as_it_is(tmp_path):
    index = IndexProvider(SILENT, folder=tmp_path)
    assert index.installed and index.offer(index.installed).at_hand
    assert index.python_for(index.installed, 0) == sys.executable and not list(tmp_path.iterdir())


def test_a_release_without_a_wheel_for_this_python_is_refused_before_any_download(tmp_path):
    wheel = make_wheel(tmp_path / "made", "0.1.0")
    old = wheel.rename(wheel.with_name("torch-0.1.0-cp27-cp27mu-manylinux1_x86_64.whl"))
    with served(tmp_path, [old]) as url:
        index = IndexProvider(url, folder=tmp_path / "environments")
        assert "no wheel of it for Python" in index.offer("0.1.0").refused
        with pytest.raises(CannotBuild):
            index.python_for("0.1.0", 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CUDA packages come with wheels for Linux")
def test_the_cuda_packages_are_part_of_the_cost(tmp_path):
    plain, cpu = (make_wheel(tmp_path / "made", version) for version in ("0.1.0", "0.2.0+cpu"))
    sizes = [wheel.stat().st_size for wheel in (plain, cpu)]
    with served(tmp_path, [plain, cpu]) as url:
        index = IndexProvider(url, folder=tmp_path / "environments")
        plain, cpu = index.offer("0.1.0"), index.offer("0.2.0")
        assert (plain.bytes, plain.exact) == (sizes[0] + CUDA_BYTES, False)
        assert (cpu.bytes, cpu.exact) == (sizes[1], True)


def test_nightlies_of_a_cuda_build_come_from_its_own_folder():
    assert nightly_index(None).endswith("/nightly/cpu") and nightly_index("13.0").endswith("/nightly/cu130")


@pytest.mark.parametrize(("line", "cuda"), [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = None", None)])
def test_the_cuda_version_of_torch_is_read_from_its_file(tmp_path, monkeypatch, line, cuda):
    (tmp_path / "version.py").write_text(f"__all__ = ['cuda']\ndebug = False\n{line}\nhip = '6.4'\n")
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(index.importlib.util, "find_spec", lambda _name: found)
    assert installed_cuda() == cuda
