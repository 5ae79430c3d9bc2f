"""Modules as components: parameters, buffers, aliases, and what a module's state_dict leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch

from lineage.checkpoint import names, tree
from lineage.checkpoint.components import Captured, Component, Problem, Saved, type_name
from lineage.checkpoint.tensors import copy_into


class ModuleComponent(Component):
    """A module: parameters and buffers under canonical names in a tensor file of its own.

    Also saved, beside it: buffers registered as non-persistent (a module's `state_dict` drops them, and some change),
    what `get_extra_state` gives, and which gradients were zero tensors instead of None (an optimizer steps on the
    one and skips the other).
    """

    obj: torch.nn.Module

    def __init__(self, name: str, obj: torch.nn.Module, family: str = "model") -> None:
        super().__init__(name, obj)
        self.family = family

    def owned(self) -> Iterator[object]:
        yield from self.obj.modules()

    @property
    def prefix(self) -> str:
        """What stands before this module's names where names of several modules meet."""
        return "" if self.name == "model" else f"{self.name}/"

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers by canonical name; a tied tensor once, under its first name."""
        return self._split()[0]

    def aliases(self) -> dict[str, str]:
        """Further names of tied tensors, to the name they are saved under."""
        return self._split()[1]

    def _split(self) -> tuple[dict[str, torch.Tensor], dict[str, str], dict[str, torch.Tensor]]:
        found: dict[str, torch.Tensor] = {}
        aliases: dict[str, str] = {}
        passing: dict[str, torch.Tensor] = {}
        first: dict[int, str] = {}
        for name, tensor, persistent in self._all():
            if not persistent:
                passing[name] = tensor
            elif id(tensor) in first:
                aliases[name] = first[id(tensor)]
            else:
                first[id(tensor)] = name
                found[name] = tensor
        return found, aliases, passing

    def _all(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        for name, parameter in names.named_parameters(self.obj):
            yield name, parameter, True
        yield from names.named_buffers(self.obj)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by canonical name, each once."""
        found: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for name, parameter in names.named_parameters(self.obj):
            found.setdefault(id(parameter), (name, parameter))
        return dict(found.values())

    def describe(self) -> dict[str, Any]:
        inner = names.unwrap(self.obj)
        frozen = sorted(n for n, p in self.parameters().items() if not p.requires_grad)
        return {"type": type_name(inner), "frozen": frozen}

    def gradients(self) -> Literal["cleared", "zeroed", "left over"]:
        """Whether gradients are None, zero tensors, or what the last step left (which no checkpoint keeps)."""
        state: Literal["cleared", "zeroed"] = "cleared"
        for parameter in self.parameters().values():
            if parameter.grad is not None:
                if bool(parameter.grad.any()):
                    return "left over"
                state = "zeroed"
        return state

    def capture(self) -> Captured:
        tensors, _, passing = self._split()
        value: dict[str, Any] = {}
        if passing:
            value["nonpersistent"] = passing
        extra_states = {name: owner.get_extra_state() for name, owner in self._with_extra_state()}
        if extra_states:
            value["extra_state"] = extra_states
        if self.gradients() == "zeroed":
            value["zero_grads"] = [n for n, p in self.parameters().items() if p.grad is not None]
        flat = tree.flatten(value, self.name, self.name)
        return Captured(wire=flat.wire, own=tensors, extra=flat.tensors)

    def _with_extra_state(self) -> Iterator[tuple[str, Any]]:
        for name, owner in names.unwrap(self.obj).named_modules():
            if type(owner).get_extra_state is not torch.nn.Module.get_extra_state:
                yield names.canonical(name), owner

    def check(self, saved: Saved) -> list[Problem]:
        value = tree.unflatten(saved.wire, saved.tensor, self.name)
        problems: list[Problem] = []
        live_passing = self._split()[2]
        for kind, live_names in (
            ("nonpersistent", set(live_passing)),
            ("extra_state", {name for name, _ in self._with_extra_state()}),
        ):
            saved_names = set(value.get(kind, ()))
            for name in sorted(saved_names ^ live_names):
                sides = ("present" if name in saved_names else None, "present" if name in live_names else None)
                path = f"component.{self.name}.{kind}.{name}"
                problems.append(Problem(path, *sides, "the model is built differently"))
        unknown = set(value.get("zero_grads", ())) - set(self.parameters())
        problems.extend(
            Problem(f"component.{self.name}.zero_grads.{n}", "present", None, "no such parameter")
            for n in sorted(unknown)
        )
        return problems

    def restore(self, saved: Saved) -> None:
        value = tree.unflatten(saved.wire, saved.tensor, self.name)
        for name, live in self.tensors().items():
            copy_into(live, saved.own[name])
        passing = value.get("nonpersistent", {})
        for prefix, owner in names.unwrap(self.obj).named_modules(remove_duplicate=False):
            for short in list(owner._buffers):
                tensor = passing.get(names.canonical(f"{prefix}.{short}" if prefix else short))
                live_buffer = owner._buffers[short]
                if tensor is None or live_buffer is None or short not in owner._non_persistent_buffers_set:
                    continue
                if live_buffer.shape == tensor.shape and live_buffer.dtype == tensor.dtype:
                    copy_into(live_buffer, tensor)
                else:  # a cache that grows with use
                    owner._buffers[short] = tensor.to(live_buffer.device)
        states = value.get("extra_state", {})
        for name, owner in self._with_extra_state():
            owner.set_extra_state(states[name])
        zeroed = set(value.get("zero_grads", ()))
        for name, parameter in self.parameters().items():
            parameter.grad = torch.zeros_like(parameter) if name in zeroed else None
