"""The registry of state: what is tracked, how it is captured, and what a resumed process must have in common.

Use::

    registry = Registry()
    registry.track("model", model)
    registry.track("optimizer", optimizer)
    registry.track("train_loader", loader)
    registry.absent("scaler", "bfloat16 needs none")      # only where the audit asks
    registry.seal()                                       # raises UndeclaredStateError

Random streams (Python, NumPy, torch, CUDA) and counters need no tracking: they are always there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from lineage.checkpoint import audit, rng
from lineage.checkpoint.components import FAMILIES, Component, GeneratorComponent, ObjectComponent
from lineage.checkpoint.errors import (
    PoisonedError,
    SaveRefusedError,
    UndeclaredStateError,
    UnsupportedStateError,
)
from lineage.checkpoint.loaders import LoaderComponent, is_stateful_dataloader, loader_component
from lineage.checkpoint.modules import ModuleComponent
from lineage.checkpoint.optimizers import OptimizerComponent
from lineage.checkpoint.schedulers import ScalerComponent, SchedulerComponent
from lineage.checkpoint.tensors import DTYPE_NAMES
from lineage.errors import UsageError
from lineage_schemas import checkpoint as schema

_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
_RESERVED: Final = frozenset({"optim", "extra", "state", "manifest", "rng", "counters"})
_AUTO_REASON: Final = "none handed in and none found"


@dataclass(frozen=True)
class Description:
    """What two processes must have in common to continue one experiment; made from a manifest or from live objects."""

    components: list[schema.Component]
    tensors: dict[str, dict[str, str]]
    optimizers: list[schema.OptimizerLayout]
    aliases: dict[str, str]
    loaders: dict[str, dict[str, Any]]


@dataclass
class Snapshot:
    """The whole state at one boundary. Tensors are live memory until a background save copies them.

    Attributes:
        files: tensors by component whose file they go to (a module's name, `optim` or `extra`).
        values: plain state by component, ready for JSON.
    """

    files: dict[str, dict[str, torch.Tensor]]
    values: dict[str, Any]
    streams: dict[str, Any]
    description: Description
    expected: schema.ExpectedNext
    gradients: str = "cleared"


@dataclass
class _Absence:
    what: str
    reason: str


@dataclass
class Registry:
    """Everything that could change the next step, by name.

    Attributes:
        components: tracked, in the order they were tracked.
        poisoned: why nothing here may be trained on or saved any more; None while all is well.
    """

    components: dict[str, Component] = field(default_factory=dict)
    poisoned: str | None = None
    _absences: dict[str, _Absence] = field(default_factory=dict)
    _sealed: bool = False

    # ---- declaring ---------------------------------------------------------------------------------------------------

    def track(self, name: str, obj: Any, family: str | None = None) -> Component:
        """Register one object.

        Modules, optimizers, schedulers, scalers, data loaders and random generators are recognised; anything else
        needs `state_dict` and `load_state_dict`. Track everything before the training loop starts, since constants
        are compared as they stand now.

        Args:
            name: unique; letters, digits, `_`, `-`, `.`. A module named `model` gives the file its usual name.
            obj: the object itself, wrapped or compiled as it is.
            family: overrides what was recognised (`"ema"` for a module that averages another, `"loader"` for a loader
                of your own).

        Raises:
            UsageError: the name is taken or malformed, or the registry is sealed.
            LoaderRefusedError: a loader whose position cannot be saved; the hint is the line to write.
            UnsupportedStateError: an object with no way to save it.
        """
        if self._sealed:
            raise UsageError(f"{name!r} is tracked after the first save or restore", hint="track everything before")
        if not _NAME.match(name) or name in _RESERVED:
            raise UsageError(f"{name!r} cannot name a component", hint="use letters, digits, _ and -")
        if name in self.components:
            if self.components[name].obj is obj:
                return self.components[name]
            raise UsageError(f"two components are named {name!r}")
        component = make_component(name, obj, family)
        if component.family in self._absences:
            raise UsageError(f"{component.family} was declared absent, and {name!r} is one")
        self.components[name] = component
        return component

    def absent(self, what: str, reason: str) -> None:
        """Declare that a family has no state here, or that the object at an audit's path needs no saving.

        Args:
            what: a family (`"loader"`), or a path as `UndeclaredStateError` names it (`"model.cache"`).
            reason: why; it is stored in every manifest.
        """
        if not reason.strip():
            raise UsageError(f"absent({what!r}) needs a reason")
        if any(component.family == what for component in self.components.values()):
            raise UsageError(f"{what} is tracked, and cannot be absent")
        self._absences[what] = _Absence(what, reason)

    def seal(self) -> None:
        """Close the set and audit it; idempotent. Called by the first save or restore at the latest.

        Raises:
            UndeclaredStateError: every path to stateful objects that nobody declared.
            UsageError: nothing was tracked.
        """
        if self._sealed:
            return
        if not self.components:
            raise UsageError("nothing is tracked, so there is nothing to save", hint="run.track(model=..., ...)")
        self._bind_optimizers()
        self._audit()
        self._sealed = True

    def _bind_optimizers(self) -> None:
        by_id: dict[int, str] = {}
        by_name: dict[str, int] = {}
        for module in self.modules():
            for name, parameter in module.parameters().items():
                full = module.prefix + name
                if by_name.setdefault(full, id(parameter)) != id(parameter):
                    raise UsageError(f"two tracked modules have a parameter named {full!r}")
                by_id.setdefault(id(parameter), full)
        for optimizer in self.optimizers():
            optimizer.bind(by_id)

    def _audit(self) -> None:
        roots = {name: component.obj for name, component in self.components.items()}
        owned = {id(obj) for component in self.components.values() for obj in component.owned()}
        for module in self.modules():
            owned.update(id(p) for p in module.parameters().values())
        excused = set(self._absences)
        found = audit.walk(roots, owned, excused)
        declared = {component.family for component in self.components.values()} | excused
        parameter_ids = {id(p) for module in self.modules() for p in module.parameters().values()}
        optimizers = [component.obj for component in self.optimizers()]
        found += [
            item
            for item in audit.in_memory(optimizers, parameter_ids, owned, declared)
            if item.path not in excused and not any(known.kind in item.kind for known in found)
        ]
        if found:
            listed = "; ".join(f"{item.path} ({item.kind})" for item in found[:10])
            more = f" and {len(found) - 10} more" if len(found) > 10 else ""
            raise UndeclaredStateError(
                f"nobody said how this state is saved: {listed}{more}",
                hint=f"track it, or say why not: absent({found[0].path!r}, reason)",
                paths=[item.path for item in found],
            )

    # ---- looking -----------------------------------------------------------------------------------------------------

    @property
    def sealed(self) -> bool:
        return self._sealed

    def modules(self) -> Iterator[ModuleComponent]:
        return (c for c in self.components.values() if isinstance(c, ModuleComponent))

    def optimizers(self) -> Iterator[OptimizerComponent]:
        return (c for c in self.components.values() if isinstance(c, OptimizerComponent))

    def loaders(self) -> dict[str, LoaderComponent]:
        """Tracked loaders by name."""
        return {name: c for name, c in self.components.items() if isinstance(c, LoaderComponent)}

    def loader(self, which: Any = None) -> LoaderComponent:
        """The tracked loader with this name or that is this object; without an argument, the only one.

        Raises:
            UsageError: there is no such loader, or several and none was named.
        """
        loaders = self.loaders()
        if which is None and len(loaders) == 1:
            return next(iter(loaders.values()))
        for name, component in loaders.items():
            if which is not None and (which == name if isinstance(which, str) else which in (component, component.obj)):
                return component
        named = ", ".join(loaders) or "none"
        raise UsageError(f"this loader is not tracked (tracked loaders: {named})", hint="run.track(train_loader=...)")

    def generators(self) -> dict[str, Any]:
        """Random generators beside the global ones, by stream name."""
        found = {name: c.obj for name, c in self.components.items() if isinstance(c, GeneratorComponent)}
        for loader in self.loaders().values():
            found |= loader.generators()
        return found

    def require_usable(self) -> None:
        """Raise when a restore failed midway.

        Raises:
            PoisonedError: it did.
        """
        if self.poisoned is not None:
            raise PoisonedError(
                f"this run's state is half restored and cannot be used: {self.poisoned}",
                hint="start a fresh process",
            )

    # ---- describing and capturing ------------------------------------------------------------------------------------

    def describe(self) -> Description:
        """What the live objects are; touches no tensor's bytes."""
        components = [
            schema.Component(
                name=c.name, family=c.family, scope=c.scope, version=c.version, state="present", details=c.describe()
            )
            for c in self.components.values()
        ]
        components.append(schema.Component(name="rng", family="rng", scope="rank", details=self._stream_names()))
        components.append(schema.Component(name="counters", family="counters"))
        present = {c.family for c in components}
        for family in FAMILIES:
            if family not in present:
                given = self._absences.get(family)
                reason = given.reason if given else _AUTO_REASON
                components.append(schema.Component(name=family, family=family, state="absent", reason=reason))
        components.extend(
            schema.Component(name=what, family="declared", state="absent", reason=absence.reason)
            for what, absence in self._absences.items()
            if what not in FAMILIES
        )
        aliases: dict[str, str] = {}
        tensors: dict[str, dict[str, str]] = {}
        for module in self.modules():
            aliases |= {module.prefix + a: module.prefix + n for a, n in module.aliases().items()}
            tensors[module.name] = {n: describe_tensor(t) for n, t in module.tensors().items()}
        return Description(
            components=components,
            tensors=tensors,
            optimizers=[optimizer.layout() for optimizer in self.optimizers()],
            aliases=aliases,
            loaders={name: loader.geometry() for name, loader in self.loaders().items()},
        )

    def _stream_names(self) -> dict[str, Any]:
        return {"generators": sorted(self.generators())}

    def capture(self) -> Snapshot:
        """The whole state now. Random streams come first, and are as they were when this returns.

        Raises:
            PoisonedError, SaveRefusedError, UndeclaredStateError, UnsupportedStateError.
        """
        self.require_usable()
        self.seal()
        generators = self.generators()
        streams = rng.capture_streams(generators)
        files: dict[str, dict[str, torch.Tensor]] = {"optim": {}, "extra": {}}
        values: dict[str, Any] = {}
        gradients = "cleared"
        for name, component in self.components.items():
            captured = component.capture()
            if captured.wire is not None and not isinstance(component, GeneratorComponent):
                values[name] = captured.wire
            if isinstance(component, ModuleComponent):
                files[name] = captured.own
                gradients = max(gradients, component.gradients(), key=_GRADIENTS.index)
            _merge(files["optim"], captured.optim)
            _merge(files["extra"], captured.extra)
        if rng.capture_streams(generators) != streams:
            # A state_dict that draws (StatefulDataLoader before its first batch does) must not move the training.
            rng.restore_streams(streams, generators)
        expected = schema.ExpectedNext(
            lr={optimizer.name: optimizer.learning_rates() for optimizer in self.optimizers()},
            loader={name: loader.cursor_digest() for name, loader in self.loaders().items()},
            rng=rng.digest_streams(streams),
        )
        return Snapshot(
            files={name: tensors for name, tensors in files.items() if tensors or name in self.components},
            values=values,
            streams=streams,
            description=self.describe(),
            expected=expected,
            gradients=gradients,
        )


_GRADIENTS: Final = ("cleared", "zeroed", "left over")


def _merge(into: dict[str, torch.Tensor], more: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in more.items():
        if name in into:
            raise SaveRefusedError(f"two tensors would be saved as {name!r}", hint="rename one of the components")
        into[name] = tensor


def describe_tensor(tensor: torch.Tensor) -> str:
    """`F32[2,3]`: type and shape as a manifest's table states them."""
    name = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))
    return f"{name}[{','.join(map(str, tensor.shape))}]"


def make_component(name: str, obj: Any, family: str | None) -> Component:
    """The component for an object, by what it is; `family` overrides.

    Raises:
        UnsupportedStateError, LoaderRefusedError: it has no way to be saved.
    """
    if family == "loader" or isinstance(obj, torch.utils.data.DataLoader | LoaderComponent):
        return loader_component(name, obj)
    if isinstance(obj, torch.nn.Module):
        return ModuleComponent(name, obj, family or "model")
    if isinstance(obj, torch.optim.Optimizer):
        return OptimizerComponent(name, obj)
    if isinstance(obj, torch.optim.lr_scheduler.LRScheduler):
        return SchedulerComponent(name, obj)
    if isinstance(obj, torch.amp.GradScaler):
        return ScalerComponent(name, obj)
    if isinstance(obj, rng.GENERATOR_TYPES):
        return GeneratorComponent(name, obj)
    if callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None)):
        counts = hasattr(obj, "num_samples") and callable(getattr(obj, "__iter__", None))
        if is_stateful_dataloader(obj) or (family is None and ("loader" in name or counts)):
            return loader_component(name, obj)
        return ObjectComponent(name, obj, family or "user")
    if family is None and "loader" in name:
        return loader_component(name, obj)
    raise UnsupportedStateError(
        f"{name!r} is a {type(obj).__qualname__}, with neither state_dict nor load_state_dict",
        hint="give it both, or do not track it",
    )
