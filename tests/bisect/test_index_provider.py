"""What an index offers is read from JSON and from HTML, for this Python and machine; a silent one is told."""

import sys

import pytest

from made_index import make_wheel, served
from torchsleuth.bisect.index_page import (
    KNOWN,
    IndexSilent,
    Target,
    Wheel,
    size_of,
    this_target,
    wheels_of,
)
from torchsleuth.bisect.index_provider import CUDA_BYTES, IndexProvider, NoRelease, nightly_index
from torchsleuth.bisect.provider import CannotBuild
from torchsleuth.bisect.release_names import range_of

SILENT = "http://127.0.0.1:9/simple"


@pytest.mark.parametrize("as_json", [True, False])
def test_wheels_and_sizes_are_read_from_either_form_of_index(tmp_path, as_json):
    made = [make_wheel(tmp_path / "made", version) for version in ("0.1.0", "0.2.0+cpu")]
    sizes = {wheel.name: wheel.stat().st_size for wheel in made}
    with served(tmp_path / "index", made, as_json) as url:
        wheels = wheels_of(url)
        assert {w.name: size_of(w) for w in wheels} == sizes
        assert sorted(w.version for w in wheels) == ["0.1.0", "0.2.0"]
        assert all((w.bytes is not None) == as_json and this_target().fits(w) for w in wheels)


def test_a_silent_or_senseless_index_says_why(tmp_path):
    with pytest.raises(IndexSilent, match="cannot be reached"):
        wheels_of(SILENT)
    with served(tmp_path, []) as url:
        with pytest.raises(IndexSilent, match="lists no wheel"):
            wheels_of(url)
        with pytest.raises(IndexSilent, match="status 404"):
            wheels_of(url + "/nowhere")
        (tmp_path / "simple" / "torch" / "index.html").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(IndexSilent, match="cannot be read"):
            wheels_of(url)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("torch-2.12.0-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("torch-2.12.0+cpu-cp311-cp311-linux_x86_64.whl", True),
        ("torch-2.12.0-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("torch-2.12.0-py3-none-any.whl", True),
        ("torch-2.12.0-cp312-cp312-manylinux_2_28_x86_64.whl", False),
        ("torch-2.12.0-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("torch-2.12.0-cp311-cp311t-manylinux_2_28_x86_64.whl", False),
        ("torch-2.12.0-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("torch-2.12.0-cp311-cp311-win_amd64.whl", False),
        ("torch-2.12.0.tar.gz", False),
        ("torchvision-0.20-cp311-cp311-linux_x86_64.whl", False),
    ],
)
def test_a_wheel_fits_by_python_and_machine(name, fits):
    assert Target("cp311", "cp311", "linux", "x86_64").fits(Wheel(name, "")) == fits


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
