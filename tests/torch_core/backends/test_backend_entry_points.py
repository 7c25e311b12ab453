import subprocess
import sys
from importlib.metadata import entry_points

from torchsleuth.torch_core.backends.catalog import CATALOG

PROGRAM = """
import sys, torch
assert not any(name.startswith("torchsleuth") for name in sys.modules)
print(torch.compile(lambda x: x + 1, backend="sleuth_aot_eager")(torch.ones(1)).item())
print(sorted({name.partition(".")[0] for name in sys.modules} & {"click", "rich", "jinja2", "safetensors", "ray"}))
"""


def test_every_backend_of_the_catalog_is_an_entry_point_and_the_other_way_round():
    registered = {each.name: each for each in entry_points(group="torch_dynamo_backends")}
    ours = {name for name in registered if name.startswith("sleuth_")}
    assert ours == {each.name for each in CATALOG}
    for each in CATALOG:
        assert registered[each.name].load().__name__ == each.name


def test_a_program_names_a_backend_without_importing_torchsleuth_and_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines() == ["2.0", "[]"], done.stderr


def test_listing_the_backends_does_not_import_torch():
    program = "import sys; from torchsleuth.torch_core.backends.catalog import CATALOG; print(len(CATALOG), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(len(CATALOG)), "False"], done.stderr
