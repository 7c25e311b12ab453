"""Settings back to what torch starts with: configuration, options, global switches, training to inference."""

from __future__ import annotations

from collections.abc import Iterator

from torchsleuth.minify.search.contract import Edit, State

_WORLD = {
    "inference_mode": False,
    "grad": False,
    "deterministic": False,
    "matmul_precision": "highest",
    "default_dtype": "torch.float32",
    "autocast": {},
}


def default_settings(state: State) -> Iterator[Edit]:
    """One edit per setting that differs from torch's default."""
    for module, values in (state.settings.get("config") or {}).items():
        for key in values:
            yield Edit(f"{module}.{key} to its default", _without_config, (module, key))
    for key in state.settings.get("options") or {}:
        yield Edit(f"option {key} to its default", _without_option, (key,))
    for key, plain in _WORLD.items():
        world = state.settings.get("state") or {}
        if key in world and world[key] != plain:
            yield Edit(f"{key} to {plain}", _with_world, (key, plain))


def for_inference(state: State) -> Iterator[Edit]:
    """One edit: compile the graph as an inference graph with plain inputs."""
    kwargs = state.settings.get("compile_kwargs")
    if kwargs is not None and (
        not kwargs.get("is_inference") or any(v for k, v in kwargs.items() if k != "is_inference")
    ):
        yield Edit("as inference", _as_inference)


def _with_world(state: State, key: str, plain: object) -> State:
    return state.setting(state={**state.settings["state"], key: plain})


def _as_inference(state: State) -> State:
    return state.setting(compile_kwargs={"is_inference": True}, static_names=[])


def _without_config(state: State, module: str, key: str) -> State | None:
    config = {m: dict(values) for m, values in (state.settings.get("config") or {}).items()}
    if key not in config.get(module, {}):
        return None
    del config[module][key]
    return state.setting(config={m: values for m, values in config.items() if values})


def _without_option(state: State, key: str) -> State | None:
    options = dict(state.settings.get("options") or {})
    return (
        None if key not in options else state.setting(options={k: v for k, v in options.items() if k != key})
    )
