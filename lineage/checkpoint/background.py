"""Saving beside the training: copy the state into buffers that are reused, and write those from a thread.

Worth it where compute runs on an accelerator; on a CPU trainer the writer competes for the same cores, so there it is
only done on request. One save is in flight at most, and its error is raised at the next boundary, never lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from lineage.checkpoint.errors import BackgroundSaveError
from lineage.checkpoint.registry import Registry, Snapshot
from lineage.checkpoint.store import CheckpointStore, PlannedFile, SaveContext, SavedGeneration, plan_files, publish
from lineage_schemas import checkpoint as schema


@dataclass
class PendingSave:
    """A save in flight.

    Attributes:
        step: completed steps of what is being saved.
        snapshot_s: seconds the training was held up: the copy into the buffers.
    """

    step: int
    snapshot_s: float
    _done: threading.Event = field(default_factory=threading.Event)
    _saved: SavedGeneration | None = None
    _error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, timeout_s: float | None = None) -> SavedGeneration:
        """Wait for it; the committed generation.

        Raises:
            BackgroundSaveError: it failed, with the cause.
            TimeoutError: it is still under way.
        """
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"the save of step {self.step} is still under way")
        if self._error is not None or self._saved is None:
            raise BackgroundSaveError(
                f"the background save of step {self.step} failed: {self._error}",
                hint="the generation before it is untouched",
            ) from self._error
        return self._saved


class BackgroundSaver:
    """Saves one generation at a time without holding up the training for longer than the copy.

    Use::

        saver = BackgroundSaver(CheckpointStore(run_dir, registry))
        saver.save(position, context)      # at a boundary; first waits for (and reports) the one before
        ...
        done = saver.poll()                # at every boundary: None, or a generation that has become durable
        ...
        saver.close()                      # before the process ends: waits for the last one

    `SaveContext.before_commit` is called on the writer's thread.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self._pending: PendingSave | None = None
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}

    def save(self, position: schema.Position, context: SaveContext) -> PendingSave:
        """Copy the state and go on; the write happens beside the training.

        Raises:
            BackgroundSaveError: the save before this one failed; nothing new was begun.
            Whatever `CheckpointStore.save` raises before it writes.
        """
        self.wait()
        self.store.require_boundary(position)
        started = time.perf_counter()
        snapshot = self.store.registry.capture()
        self._copy(snapshot)
        files = plan_files(snapshot, self.store.rank)
        pending = PendingSave(position.step, time.perf_counter() - started)
        self._pending = pending
        arguments = (pending, snapshot, files, position, context)
        # Not a daemon: an interpreter that ends waits for it, and the generation is whole.
        threading.Thread(target=self._write, args=arguments, name="lineage-save").start()
        return pending

    def _write(
        self,
        pending: PendingSave,
        snapshot: Snapshot,
        files: list[PlannedFile],
        position: schema.Position,
        context: SaveContext,
    ) -> None:
        try:
            pending._saved = publish(
                self.store.dir,
                snapshot,
                files,
                position,
                context,
                snapshot_s=pending.snapshot_s,
                rank=self.store.rank,
            )
            self.store.retain(context)
        except BaseException as error:  # noqa: BLE001  # it is raised again, on the training thread, by `result`
            pending._error = error
        finally:
            pending._done.set()

    @property
    def pending(self) -> PendingSave | None:
        """The save whose outcome nobody has asked for yet."""
        return self._pending

    def poll(self) -> SavedGeneration | None:
        """The generation that has become durable since the last call, or None; never waits.

        Raises:
            BackgroundSaveError: the save failed.
        """
        if self._pending is None or not self._pending.done:
            return None
        return self.wait()

    def wait(self) -> SavedGeneration | None:
        """Wait for the save in flight; None when there is none.

        Raises:
            BackgroundSaveError: it failed.
        """
        pending, self._pending = self._pending, None
        return pending.result() if pending is not None else None

    close = wait

    def _copy(self, snapshot: Snapshot) -> None:
        """Replace live tensors of a snapshot by copies in buffers that the next save uses again."""
        devices: set[torch.device] = set()
        for component, tensors in snapshot.files.items():
            for name, live in tensors.items():
                key = (component, name)
                buffer = self._buffers.get(key)
                if buffer is None or buffer.shape != live.shape or buffer.dtype != live.dtype:
                    pinned = live.device.type == "cuda"
                    buffer = torch.empty(live.shape, dtype=live.dtype, device="cpu", pin_memory=pinned)
                    self._buffers[key] = buffer
                # Only into pinned memory: elsewhere "non-blocking" may mean that nobody waits for the copy.
                buffer.copy_(live.detach(), non_blocking=live.device.type == "cuda")
                devices.add(live.device)
                tensors[name] = buffer
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        self._forget(snapshot.files)

    def _forget(self, files: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        for key in [key for key in self._buffers if key[1] not in files.get(key[0], {})]:
            del self._buffers[key]


def wants_background(registry: Registry) -> bool:
    """Whether saving beside the training is worth it here: some tracked parameter is on an accelerator."""
    return any(p.device.type != "cpu" for module in registry.modules() for p in module.parameters().values())
