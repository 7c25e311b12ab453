"""The part of the environment that may be kept in a case.

Only variables that torch and its compilers read are kept, so nothing personal comes along by chance; of
these, a value that looks like a secret is hidden and the home directory is written `~`.
"""

import re
from collections.abc import Mapping

from torchsleuth.script_runtime.hiding import HIDDEN_SECRET, hide_secrets

_READ_BY_TORCH = re.compile(
    r"(?:TORCH|PYTORCH_|AOT|TRITON_|INDUCTOR_|FUNCTORCH_|PARTITIONER_|CUTLASS_|CUTEDSL_|HALIDE_|NCCL_|PT2_).+"
    r"|(?:DNNL_|ONEDNN_|KMP_|GOMP_|MKL_|OMP_|CUBLAS_|CUDNN_).+|(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES"
    r"|CUDA_(?:DEVICE_ORDER|HOME|LAUNCH_BLOCKING|MODULE_LOADING|PATH)|ROCM_(?:HOME|PATH)|CC|CXX|CUDACXX"
    r"|ATEN_CPU_CAPABILITY|ENABLE_PERSISTENT_TMA_MATMUL|MAX_JOBS|NVIDIA_TF32_OVERRIDE|PYTHONHASHSEED"
    r"|(?:LOCAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|TENSORIFY_PYTHON_SCALARS"
)
_SECRET_NAME = re.compile(r"(?:^|_)KEYS?(?:_|$)|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE")
_SECRET_VALUE = re.compile(r"-----BEGIN|\bBearer\s|(?i:(?:password|passwd|token|secret|api_?key)\s*[=:])")
_FRAGMENT = re.compile(r"[A-Za-z0-9+_-]{24,}")
HIDDEN = HIDDEN_SECRET


def environment_of(env: Mapping[str, str]) -> dict[str, str]:
    """What of the environment a case keeps, sorted by name.

    `environment_of({"TORCH_LOGS": "+dynamo", "HOME": "/home/ada"}) == {"TORCH_LOGS": "+dynamo"}`
    """
    home = env.get("HOME") or env.get("USERPROFILE") or ""
    kept = sorted(name for name in env if _READ_BY_TORCH.fullmatch(name))
    return {name: HIDDEN if looks_secret(name, env[name]) else shorten_home(env[name], home) for name in kept}


def looks_secret(name: str, value: str) -> bool:
    """Whether this variable must not leave the machine: `looks_secret("TORCH_HUB_TOKEN", "x")`."""
    if value and _SECRET_NAME.search(name.upper()):
        return True
    if _SECRET_VALUE.search(value) or hide_secrets(value, ()) != value:
        return True
    return any(map(_looks_random, _FRAGMENT.findall(value)))


def shorten_home(text: str, home: str) -> str:
    """Paths below the home directory start with `~`: `shorten_home("/home/ada/c", "/home/ada") == "~/c"`."""
    home = home.rstrip("/\\")
    if not home:
        return text
    return re.sub(re.escape(home) + r"(?![\w.-])", "~", text)


def _looks_random(fragment: str) -> bool:
    """Long, and upper, lower and digits mixed: words and option names are not."""
    return all(re.search(kind, fragment) for kind in ("[A-Z]", "[a-z]", "[0-9].*[0-9]"))
