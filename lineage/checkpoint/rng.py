"""Random streams: captured first, restored last, and checked by the first draw of a copy."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from lineage.checkpoint.errors import UnsupportedStateError

GENERATOR_TYPES: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

_BIT_GENERATORS: Final = frozenset({"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"})


def capture_streams(extra: Mapping[str, Any]) -> dict[str, Any]:
    """State of every stream by name: `python`, `numpy`, `torch`, `cuda:N` once CUDA is in use, and `extra` ones.

    Advances none of them.
    """
    streams: dict[str, Any] = {
        "python": _capture(random._inst),
        "numpy": _capture(np.random.mtrand._rand),
        "torch": {"kind": "torch", "device": "cpu", "state": _torch_bytes(torch.get_rng_state())},
    }
    cuda: Any = torch.cuda  # `is_initialized` has no types
    if cuda.is_available() and cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            state = _torch_bytes(torch.cuda.get_rng_state(index))
            streams[f"cuda:{index}"] = {"kind": "torch", "device": f"cuda:{index}", "state": state}
    for name, generator in extra.items():
        streams[name] = _capture(generator)
    return streams


def restore_streams(streams: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Put every stream back, in place; `check_streams` has said before that this can work."""
    for name, saved in streams.items():
        if name in extra:
            _restore(extra[name], saved)
        elif name == "python":
            _restore(random._inst, saved)
        elif name == "numpy":
            _restore(np.random.mtrand._rand, saved)
        elif name == "torch":
            torch.set_rng_state(_torch_tensor(saved["state"]))
        elif name.startswith("cuda:"):
            torch.cuda.set_rng_state(_torch_tensor(saved["state"]), int(name.removeprefix("cuda:")))


def check_streams(streams: Mapping[str, Any], extra: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """`(stream, saved, live)` of what could not be restored here; empty when all can.

    Each state is tried on a copy, so that a malformed one is found before anything live is touched.
    """
    problems: list[tuple[str, Any, Any]] = []
    known = {"python", "numpy", "torch", *extra}
    for name, saved in streams.items():
        if name.startswith("cuda:"):
            live = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if int(name.removeprefix("cuda:")) >= live:
                problems.append((name, "present", f"{live} CUDA devices"))
                continue
        elif name not in known:
            problems.append((name, "present", None))
            continue
        if name in extra:
            kind = _capture(extra[name])["kind"]
            if kind != saved.get("kind"):
                problems.append((name, saved.get("kind"), kind))
                continue
        try:
            first_draw(saved)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            problems.append((name, f"malformed: {error}", "readable"))
    problems.extend((name, None, "present") for name in extra if name not in streams)
    return problems


def first_draw(saved: Mapping[str, Any]) -> str:
    """Digest of the next values a stream in this state will give; a copy is drawn from."""
    match saved["kind"]:
        case "python":
            copy = random.Random()  # noqa: S311  # a stream of training, not a secret
            copy.setstate(_python_state(saved["state"]))
            draw = repr([copy.random(), copy.gauss(0, 1)]).encode("ascii")
        case "numpy.RandomState":
            legacy = np.random.RandomState()
            _restore(legacy, saved)
            draw = legacy.random_sample(2).tobytes() + legacy.standard_normal(1).tobytes()
        case "numpy.Generator":
            name = saved["state"]["bit_generator"]
            if name not in _BIT_GENERATORS:
                raise ValueError(f"unknown bit generator {name!r}")
            bit_generator = getattr(np.random, name)()
            modern = np.random.Generator(bit_generator)
            _restore(modern, saved)
            draw = modern.random(2).tobytes()
        case "torch":
            generator = torch.Generator(device=saved["device"])
            generator.set_state(_torch_tensor(saved["state"]))
            draw = torch.rand(4, generator=generator, device=saved["device"]).cpu().numpy().tobytes()
        case other:
            raise ValueError(f"unknown kind of random stream {other!r}")
    return hashlib.sha256(draw).hexdigest()[:32]


def digest_streams(streams: Mapping[str, Any]) -> dict[str, str]:
    """`first_draw` of every stream."""
    return {name: first_draw(saved) for name, saved in streams.items()}


def _torch_bytes(state: torch.Tensor) -> bytes:
    return bytes(state.cpu().numpy().tobytes())


def _torch_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _python_state(state: Any) -> tuple[Any, ...]:
    version, internal, gauss = state
    return (version, tuple(internal), gauss)


def _capture(generator: Any) -> dict[str, Any]:
    match generator:
        case random.Random():
            return {"kind": "python", "state": generator.getstate()}
        case np.random.RandomState():
            state = generator.get_state(legacy=False)
            if (name := state["bit_generator"]) != "MT19937":
                raise UnsupportedStateError(f"numpy RandomState over {name} cannot be saved; use a np.random.Generator")
            keys, position = state["state"]["key"], state["state"]["pos"]
            has_gauss, cached = state["has_gauss"], state["gauss"]
            return {
                "kind": "numpy.RandomState",
                "state": {
                    "keys": np.asarray(keys, dtype="<u4").tobytes(),
                    "position": int(position),
                    "has_gauss": int(has_gauss),
                    "cached_gaussian": float(cached),
                },
            }
        case np.random.Generator():
            return {"kind": "numpy.Generator", "state": _plain(generator.bit_generator.state)}
        case torch.Generator():
            return {
                "kind": "torch",
                "device": str(generator.device),
                "state": _torch_bytes(generator.get_state()),
            }
    raise UnsupportedStateError(f"{type(generator).__qualname__} is no random generator that can be saved")


def _restore(generator: Any, saved: Mapping[str, Any]) -> None:
    state = saved["state"]
    match generator:
        case random.Random():
            generator.setstate(_python_state(state))
        case np.random.RandomState():
            keys = np.frombuffer(state["keys"], dtype="<u4")
            generator.set_state(("MT19937", keys, state["position"], state["has_gauss"], state["cached_gaussian"]))
        case np.random.Generator():
            generator.bit_generator.state = _unplain(state)
        case torch.Generator():
            generator.set_state(_torch_tensor(state))


def _plain(state: Any) -> Any:
    """Numpy's nested state with arrays as tagged bytes; its 128-bit ints stay ints."""
    if isinstance(state, Mapping):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return {
            "array": str(state.dtype.newbyteorder("<").str),
            "data": state.astype(state.dtype.newbyteorder("<")).tobytes(),
        }
    if isinstance(state, np.generic):
        return state.item()
    return state


def _unplain(state: Any) -> Any:
    if isinstance(state, Mapping):
        if set(state) == {"array", "data"}:
            return np.frombuffer(state["data"], dtype=np.dtype(state["array"])).copy()
        return {key: _unplain(value) for key, value in state.items()}
    return state
