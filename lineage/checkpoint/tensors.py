"""Between torch tensors and the bytes of a tensor file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from lineage.checkpoint.errors import UnsupportedStateError
from lineage.checkpoint.tensorfile import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping


def _dtypes() -> dict[torch.dtype, str]:
    names = {
        torch.bool: "BOOL",
        torch.uint8: "U8",
        torch.int8: "I8",
        torch.int16: "I16",
        torch.int32: "I32",
        torch.int64: "I64",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.float32: "F32",
        torch.float64: "F64",
        torch.complex64: "C64",
    }
    # Newer or rarer types, where this torch has them.
    for attribute, name in {
        "uint16": "U16",
        "uint32": "U32",
        "uint64": "U64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "float8_e4m3fnuz": "F8_E4M3FNUZ",
        "float8_e5m2fnuz": "F8_E5M2FNUZ",
        "float8_e8m0fnu": "F8_E8M0",
    }.items():
        dtype = getattr(torch, attribute, None)
        if isinstance(dtype, torch.dtype):
            names[dtype] = name
    return names


DTYPE_NAMES: Final[Mapping[torch.dtype, str]] = _dtypes()
DTYPES: Final[Mapping[str, torch.dtype]] = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def check_supported(name: str, tensor: torch.Tensor) -> None:
    """Raise for a tensor that cannot be written byte for byte, with its name and the way on."""
    why = None
    if torch.nn.parameter.is_lazy(tensor):
        why = "is not initialised yet; run one forward pass first"
    elif type(tensor).__module__.startswith("torch.distributed"):
        why = "is sharded over several processes, which this engine does not save"
    elif tensor.layout != torch.strided:
        why = f"has layout {tensor.layout}, and only dense tensors can be saved"
    elif tensor.is_quantized:
        why = "is quantized, and its scale and zero point have no place in the format"
    elif tensor.device.type == "meta":
        why = "is on the meta device and has no bytes"
    elif tensor.dtype not in DTYPE_NAMES:
        why = f"has dtype {tensor.dtype}, which the safetensors format has no name for"
    if why is not None:
        raise UnsupportedStateError(
            f"tensor {name} {why}", hint="register it in another form, or declare it with run.absent(path, reason)"
        )


def spec_of(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Name, type and shape as a tensor file states them."""
    check_supported(name, tensor)
    return TensorSpec(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes in row-major order: its own memory where it is contiguous on the CPU, else a copy."""
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    plain = plain.cpu().contiguous()
    if not plain.numel():
        return memoryview(b"")
    raw: Any = plain.reshape(-1).view(torch.uint8).numpy()
    return memoryview(raw)


def empty_for(spec: TensorSpec) -> torch.Tensor:
    """Uninitialised CPU memory for a tensor of a file."""
    return torch.empty(spec.shape, dtype=DTYPES[spec.dtype])


def copy_into(live: torch.Tensor, saved: torch.Tensor) -> None:
    """Put saved values into live memory, which keeps its identity, strides and device."""
    plain = live.device.type == "cpu" and live.is_contiguous() and not (live.is_conj() or live.is_neg())
    if plain and saved.is_contiguous() and live.dtype == saved.dtype and live.shape == saved.shape and live.numel():
        # One memcpy: torch's own copy spreads over threads that then spin, at three times the CPU.
        bytes_of(live)[:] = bytes_of(saved)
        torch.autograd.graph.increment_version(live)
        return
    with torch.no_grad():
        live.detach().copy_(saved)
