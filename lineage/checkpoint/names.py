"""Canonical names: the same tensor has the same name with and without DDP, `torch.compile`, and tied aliases."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_WRAPPERS = ("module.", "_orig_mod.")


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The user's own module inside DataParallel, DistributedDataParallel and `torch.compile` wrappers."""
    while True:
        inner = module._modules.get("_orig_mod")
        if inner is None and type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = module._modules.get("module")
        if inner is None:
            return module
        module = inner


def canonical(name: str) -> str:
    """A dotted name without the part that `torch.compile` of a submodule adds."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def strip_wrappers(name: str) -> str:
    """A name from somebody else's file without leading `module.` and any `_orig_mod.`; used to recognise exports."""
    changed = True
    while changed:
        changed = False
        for prefix in _WRAPPERS:
            if name.startswith(prefix):
                name, changed = name[len(prefix) :], True
    return canonical(name)


def named_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Every name of every parameter, aliases of tied ones included, in the module's own order."""
    for name, parameter in unwrap(module).named_parameters(remove_duplicate=False):
        yield canonical(name), parameter


def named_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """`(name, buffer, persistent)` of every buffer, aliases included."""
    for prefix, owner in unwrap(module).named_modules(remove_duplicate=False):
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                full = f"{prefix}.{name}" if prefix else name
                yield canonical(full), buffer, name not in owner._non_persistent_buffers_set
