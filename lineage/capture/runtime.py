"""The flags that change how the same recipe executes, flat, so that two sessions can be compared name by name."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

Flag = bool | int | str | None

_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "deterministic_algorithms": lambda t: t.are_deterministic_algorithms_enabled(),
    "deterministic_warn_only": lambda t: t.is_deterministic_algorithms_warn_only_enabled(),
    "cudnn_enabled": lambda t: t.backends.cudnn.enabled,
    "cudnn_benchmark": lambda t: t.backends.cudnn.benchmark,
    "cudnn_deterministic": lambda t: t.backends.cudnn.deterministic,
    # TF32 by its new names: torch refuses to read the old ones (`allow_tf32`) once a program has set a new one.
    "cuda_matmul_fp32_precision": lambda t: t.backends.cuda.matmul.fp32_precision,
    "cudnn_conv_fp32_precision": lambda t: t.backends.cudnn.conv.fp32_precision,
    "cudnn_rnn_fp32_precision": lambda t: t.backends.cudnn.rnn.fp32_precision,
    "fp32_precision": lambda t: t.backends.fp32_precision,
    "float32_matmul_precision": lambda t: t.get_float32_matmul_precision(),
    "fp16_reduced_precision_reduction": lambda t: t.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "bf16_reduced_precision_reduction": lambda t: t.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "flash_sdp": lambda t: t.backends.cuda.flash_sdp_enabled(),
    "mem_efficient_sdp": lambda t: t.backends.cuda.mem_efficient_sdp_enabled(),
    "math_sdp": lambda t: t.backends.cuda.math_sdp_enabled(),
    "mkldnn": lambda t: t.backends.mkldnn.enabled,
    "default_dtype": lambda t: str(t.get_default_dtype()).removeprefix("torch."),
}


def loaded_torch(*, load: bool = False) -> Any:
    """The torch module where this process has it (or imports it, with `load`), else None."""
    if load:
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401  # into sys.modules
    torch_module = sys.modules.get("torch")
    # A module still being imported, or a user's own file of that name, has no facts to give.
    return torch_module if hasattr(torch_module, "backends") and hasattr(torch_module, "__version__") else None


def torch_flags(torch_module: Any) -> dict[str, Flag]:
    """Name to value of torch's process-wide flags; None where this torch cannot say."""
    flags: dict[str, Flag] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading a flag that torch is about to rename is no affair of the user's
        for name, read in _READ.items():
            try:
                value = read(torch_module)
            except (AttributeError, RuntimeError):
                value = None
            flags[name] = value if value is None or isinstance(value, bool | int | str) else str(value)
    return flags


def device_kind(device: object) -> str | None:
    """`cuda` of a torch.device, of `"cuda:1"`, of a device number; None for None."""
    if device is None:
        return None
    if isinstance(device, int):
        return "cuda"
    kind = getattr(device, "type", device)
    return str(kind).partition(":")[0]


def capture_runtime(
    device: object = None, precision: str | None = None, accumulation: int = 1, rank: int = 0, world: int = 1
) -> dict[str, Any]:
    """Flat name to plain value of everything beside the recipe that changes execution.

    Args:
        device: a torch.device or its text; only its kind counts, since a number names the same hardware elsewhere.
        precision: the user's word (`float16`, `bf16-mixed`, ...), None for what the default dtype says.
        accumulation: microbatches to a step.
        rank: of the writer.
        world: how many processes train.

    Facts of torch are there only when the process has loaded it.
    """
    runtime: dict[str, Any] = {
        "device": device_kind(device),
        "precision": str(precision).removeprefix("torch.") if precision is not None else None,
        "accumulation": accumulation,
        "rank": rank,
        "world": world,
    }
    torch_module = loaded_torch()
    if torch_module is not None:
        runtime["torch"] = str(torch_module.__version__)
        runtime["threads"] = int(torch_module.get_num_threads())
        runtime.update(torch_flags(torch_module))
    return runtime
