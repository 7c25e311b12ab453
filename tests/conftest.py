import compileall
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

import torchsleuth

KIT = Path(__file__).parent / "kit"
# Some virtual machines announce AMX and trap on its first instruction (a bfloat16 product ends the process); no test
# is about AMX.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# A shell that runs tests in the background has them ignore Ctrl-C, and `nohup` a lost terminal; and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    parser.addoption("--pure", action="store_true", help="leave out what compiles or starts processes")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        # Hundreds of processes load it, also where PYTHONDONTWRITEBYTECODE is set.
        compileall.compile_dir(Path(torchsleuth.__file__).parent, quiet=2)
    # pytest rewrites what a plugin asserts; all of ours is some seconds for every worker, and tests nothing.
    with contextlib.suppress(AttributeError):
        config.pluginmanager.rewrite_hook._must_rewrite.discard("torchsleuth")
        config.pluginmanager.rewrite_hook._marked_for_rewrite_cache.clear()
    if config.getoption("--pure"):
        from pure import Pure

        config.pluginmanager.register(Pure(), "pure")


def pytest_collection_modifyitems(items):
    import importlib.util

    cuda = importlib.util.find_spec("torch") and __import__("torch").cuda.is_available()
    for item in items:
        if item.get_closest_marker("gpu") is not None and not cuda:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        since = item.get_closest_marker("since_torch")
        if since is not None and Version(metadata.version("torch")) < Version(since.args[0]):
            item.add_marker(pytest.mark.skip(reason=f"needs torch {since.args[0]}: make test-torch"))


@pytest.fixture(scope="session", autouse=True)
def key_of_the_tests(tmp_path_factory):
    """Cases made by tests are marked with a key that is not the person's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def builds_of_the_session(tmp_path_factory):
    """The same text is compiled once for all tests, whatever cache of kernels they start with (`hook/sparing.py`)."""
    compiler = shutil.which("g++")
    if compiler is not None and "CXX" not in os.environ:
        base = tmp_path_factory.getbasetemp()
        builds = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "builds"
        builds.mkdir(exist_ok=True)
        os.environ |= {"SLEUTH_TEST_CXX": compiler, "SLEUTH_TEST_BUILDS": str(builds)}
        os.environ["PATH"] = os.pathsep.join([str(KIT / "compiler"), os.environ["PATH"]])
        paths = [str(KIT / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.fixture(scope="session", autouse=True)
def probes_of_the_compiler(request):
    """The first compile in a fresh cache asks the C++ compiler what it can do; ask once per machine, not per test."""
    from torchsleuth.core.processes.kernel_caches import keep_probes_of, probe_store

    if request.config.getoption("--pure") or any(probe_store().glob("??/*.so")):
        return
    with tempfile.TemporaryDirectory() as cache:
        program = "import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(8))"
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        subprocess.run(
            [sys.executable, "-c", program], env=env, check=False, capture_output=True, timeout=250
        )
        keep_probes_of(Path(cache))
