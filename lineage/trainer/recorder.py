"""The writing side of a run: its store, its log, its session. No tensors here.

A disk that fails after the session began is warned about once and never raised: `run.json` is written again with the
next change, the log has its own backlog.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage.errors import UsageError
from lineage.log.writer import LogWriter
from lineage_schemas.events import FORMAT
from lineage_schemas.run import Continuation, Parent, Source, Start, Tolerance

if TYPE_CHECKING:
    from lineage.layout import RunDir
    from lineage.runs.store import RunStore
    from lineage.trainer.facts import Facts
    from lineage_schemas.run import SessionStatus


def warn(message: str) -> None:
    """One line for people, on stderr; never an exception, whatever stderr is."""
    with contextlib.suppress(Exception):  # closed, a broken pipe, None, or an object of somebody's
        sys.stderr.write(f"lineage: {message}\n")
        sys.stderr.flush()


def default_tolerance(device: object) -> Tolerance:
    """What a continuation may differ by when nobody said: nothing on a CPU, a thousandth on an accelerator.

    On one CPU with the same number of threads the usual kernels give the same bits again; on an accelerator many sum in
    an order of their own (docs/continuation.md, "Choosing a tolerance").

    Args:
        device: kind of the device that the tracked module is on; None where nothing is tracked.
    """
    if device in (None, "cpu"):
        return Tolerance(reason="default: exact on a CPU")
    return Tolerance(rtol=1e-3, reason=f"default: kernels on {device} need not sum in the same order twice")


class Recorder:
    """Writes one session of one run.

    Attributes:
        store: the open run, whose lock this process holds until `close`.
        is_new: whether this process made the run.
    """

    def __init__(self, store: RunStore, facts: Facts, *, is_new: bool = True, sync_interval_s: float = 5.0) -> None:
        self.store = store
        self.facts = facts
        self.is_new = is_new
        self._sync_interval_s = sync_interval_s
        self._log: LogWriter | None = None
        self._told_run_json = False
        self._source: Source | None = None
        self._started_in = Path.cwd()  # a script may go elsewhere before its first step
        self._closed = ""  # by what, in words
        self.append: Callable[[Mapping[str, Any]], None] = self._not_begun

    @property
    def is_ours(self) -> bool:
        """Whether this process may write the run: not after `close`, nor in a child forked from the one that may."""
        return self.store.lock.held

    def check_ours(self, what: str) -> None:
        """Refuse what would write into a run that this process no longer holds, or never did.

        Raises:
            UsageError: it ended here, or it is the run of the process that this one was forked from.
        """
        if self._closed:
            raise UsageError(
                f"{what} after {self._closed}",
                f"run {self.run_id}",
                "call it before the session ends (run.ended tells), or begin the next with lineage.init",
            )
        if not self.is_ours:
            raise UsageError(
                f"{what} in a process forked from the one that has the run",
                f"run {self.run_id}",
                "only the process that called lineage.init writes the run",
            )

    @property
    def run_id(self) -> str:
        return self.store.record.id

    @property
    def dir(self) -> RunDir:
        return self.store.dir

    @property
    def begun(self) -> bool:
        """Whether the session exists. True from the moment run.json may know it: a Ctrl-C can come at any line."""
        return self.store.session is not None

    @property
    def session_id(self) -> str | None:
        """This process's session; None until `begin`."""
        return self.store.session.id if self.store.session else None

    def begin(self, start: Start, runtime: Mapping[str, Any], *, parent: Parent | None = None) -> None:
        """Make the session exist: in run.json, then as the first line of its part of the log.

        Args:
            start: what it begins from.
            runtime: flags and shapes that change execution.
            parent: where a forked run comes from; of a run made by this process.

        Raises:
            OSError: run.json cannot be written; nothing was trained yet, so this is the moment to say so.
            LineageError: the log cannot be opened.
        """
        facts = self.facts
        source = self._keep_patch()
        if parent is not None:
            self.store.update_run(parent=parent)
        session = self.store.begin_session(
            recipe=facts.recipe,
            source=source,
            environment=facts.environment,
            start=start,
            argv=facts.argv,
            runtime=runtime,
            data=facts.data,
            tolerance=facts.tolerance or default_tolerance(runtime.get("device")),
            rank=facts.rank,
            world=facts.world,
        )
        self._log = LogWriter(
            self.dir.log, run=self.run_id, session=session.id, sync_interval_s=self._sync_interval_s, warn=self.warn
        )
        self.append = self._log.append
        self.event(
            "session_start",
            step=start.step,
            format=FORMAT.to_wire(),
            ordinal=session.ordinal,
            start=start.to_wire(),
            pid=os.getpid(),
            host=socket.gethostname(),
        )
        self._tell_shared_log(start.step)

    def _tell_shared_log(self, step: int) -> None:
        """A folder copied by hard links (`cp -al`) has its log in common with the original: say so, and go on."""
        with contextlib.suppress(OSError):
            num_names = os.lstat(self.dir.log).st_nlink
            if num_names > 1:
                message = (
                    f"{self.dir.log.name} has {num_names} names (hard links): what is logged here appears under the "
                    "others too; stop, and give this folder its own: cp metrics.jsonl own && mv own metrics.jsonl"
                )
                self.warn(f"{self.dir.log}: {message}")
                details = {"num_names": num_names}
                self.event("alert", step=step, code="log_shared", message=message, severity="warning", details=details)

    @property
    def source(self) -> Source:
        """The revision this process runs from, looked at once and without writing anything."""
        if self._source is None:
            from lineage.capture.source import capture_source

            self._source = capture_source(self._started_in)
        return self._source

    def _keep_patch(self) -> Source:
        """The revision, with the uncommitted changes kept in the run's folder now that the session begins."""
        if self._source is None or self._source.dirty:
            from lineage.capture.source import capture_source

            self._source = capture_source(self._started_in, self.dir.patch(self.store.reserve_session()))
        return self._source

    def step_base(self) -> dict[str, Any]:
        """The fields every step event begins with, in the order of the format."""
        return {"kind": "step", "ts": 0.0, "run": self.run_id, "session": self.session_id}

    def event(self, kind: str, *, step: int | None = None, **fields: Any) -> None:
        """Append one event that is no step; fields that are None are left out."""
        event = {"kind": kind, "ts": time.time(), "run": self.run_id, "session": self.session_id}
        if step is not None:
            event["step"] = step
        event.update({name: value for name, value in fields.items() if value is not None})
        self.append(event)

    def request_sync(self) -> None:
        """Ask for the log to become durable soon; returns at once."""
        if self._log is not None:
            self._log.request_sync()

    def sync(self) -> bool:
        """Wait until the log is durable; for the moment before a checkpoint's commit marker."""
        return self._log is None or self._log.sync()

    def lost_steps(self, session_id: str, step: int) -> int | None:
        """Steps that the last session before this one completed beyond `step`; None where this run has none before."""
        before = [session.last_step for session in self.store.record.sessions[:-1] if session.last_step is not None]
        if not any(session.id == session_id for session in self.store.record.sessions):
            return None
        return max(0, before[-1] - step) if before else None

    def add_checkpoint(self, name: str, step: int) -> None:
        self._tolerantly(lambda: self.store.add_checkpoint(name, step))

    def set_continuation(self, verdict: Continuation) -> None:
        """Record the verdict on this session's resume in run.json."""
        self._tolerantly(lambda: self.store.update_session(continuation=verdict))

    def end(self, status: SessionStatus, reason: str | None, step: int) -> None:
        """Write the last line and the last record, make both durable, and let go of the run."""
        if self._log is not None:
            self.event("session_end", step=step, status=status, reason=reason)
        if status != "completed":
            self._closed = f"the session ended as {status}"
        self._tolerantly(lambda: self.store.end_session(status, reason, last_step=step))
        self.close()

    def discard(self) -> None:
        """Let go before the session began: an existing run is as it was, one that this process made is gone."""
        if self.begun:
            return
        if self.is_new:
            for path in (self.dir.run_json, self.dir.lock):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.dir.path.rmdir()
        self.close()

    def close(self) -> None:
        """Close log and lock; a session that did not end counts as killed from now on."""
        self._closed = self._closed or "finish()"
        if self._log is not None:
            self._log.close()
        self.store.close()

    def warn(self, message: str) -> None:
        warn(message)

    def _tolerantly(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            if not self._told_run_json:
                self._told_run_json = True
                self.warn(f"{self.dir.run_json} cannot be written ({error.strerror or error}); training goes on")

    def _not_begun(self, fields: Mapping[str, Any]) -> None:
        raise RuntimeError(f"an event before the session began: {fields.get('kind')}")
