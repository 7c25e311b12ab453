"""The page of an index is read from JSON and from HTML, for this Python and machine; a silent one is told."""

import platform
import sys

import pytest

from made_index import make_wheel, served
from torchsleuth.front.bisect.environments import fits
from torchsleuth.front.bisect.index import IndexSilent, Wheel, size_of, wheels_of

SILENT = "http://127.0.0.1:9/simple"


@pytest.mark.parametrize("as_json", [True, False])
def test_wheels_and_sizes_are_read_from_either_form_of_index(tmp_path, as_json):
    made = [make_wheel(tmp_path / "made", version) for version in ("0.1.0", "0.2.0+cpu")]
    sizes = {wheel.name: wheel.stat().st_size for wheel in made}
    with served(tmp_path / "index", made, as_json) as url:
        wheels = wheels_of(url)
        assert {w.name: size_of(w) for w in wheels} == sizes
        assert sorted(w.version for w in wheels) == ["0.1.0", "0.2.0"]
        assert all((w.bytes is not None) == as_json and fits(w.name) for w in wheels)


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


OWN = f"cp{sys.version_info.major}{sys.version_info.minor}"


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="names wheels for these"
)
@pytest.mark.parametrize(
    ("name", "fitting"),
    [
        ("torch-2.12.0-OWN-OWN-manylinux_2_28_x86_64.whl", True),
        ("torch-2.12.0+cpu-OWN-OWN-linux_x86_64.whl", True),
        ("torch-2.12.0-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("torch-2.12.0-py3-none-any.whl", True),
        ("torch-2.12.0-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("torch-2.12.0-cp399-abi3-manylinux_2_28_x86_64.whl", False),
        ("torch-2.12.0-OWN-OWNx-manylinux_2_28_x86_64.whl", False),
        ("torch-2.12.0-OWN-OWN-manylinux_9_99_x86_64.whl", False),
        ("torch-2.12.0-OWN-OWN-manylinux_2_28_aarch64.whl", False),
        ("torch-2.12.0-OWN-OWN-win_amd64.whl", False),
        ("torch-2.12.0.tar.gz", False),
    ],
)
def test_a_wheel_fits_by_python_machine_and_c_library(name, fitting):
    assert fits(name.replace("OWN", OWN)) == fitting


def test_a_wheel_of_another_package_is_none_of_torch():
    assert Wheel("torchvision-0.20-py3-none-any.whl", "").version == ""
