"""run.json of one run: created, opened, resumed, and rewritten whole so that a crash leaves the old file or the new.

A change is first made in memory and then written. When the disk refuses, the caller gets the OSError, the change stays
in memory (`RunStore.is_unsaved`), and the next write carries it: training goes on, and nothing is half written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import orjson
from pydantic import ValidationError

from lineage import fs
from lineage.clock import utc_now
from lineage.errors import FormatError, LockedError, NotFoundError, UsageError
from lineage.layout import RunDir
from lineage.runs.lock import RunLock, locked_error, probe
from lineage_schemas.base import Format, check_format
from lineage_schemas.ids import MAX_STEP, GenerationName, SessionId, make_run_id, make_session_id
from lineage_schemas.run import (
    FORMAT_MAJOR,
    FORMAT_NAME,
    DataIdentity,
    Environment,
    Parent,
    Recipe,
    Run,
    Session,
    SessionStatus,
    Source,
    Start,
    Tolerance,
)

R = TypeVar("R", Run, Session)

_MAX_RUN_JSON: Final = 256 << 20
_TAIL_CHUNK: Final = 64 << 10
_TAIL_LIMIT: Final = 4 << 20


@dataclass(frozen=True)
class LogTail:
    """What the end of a log says about one session, read without reading the log.

    Attributes:
        last_event_at: Unix seconds of its last event; None when the part read has none.
        last_step: its last completed step; None when the part read has no `step` event.
        end: status and reason of its `session_end`, None when it recorded none.
    """

    last_event_at: float | None = None
    last_step: int | None = None
    end: tuple[SessionStatus, str | None] | None = None


_STATUSES: Final[dict[str, SessionStatus]] = {
    "completed": "completed",
    "failed": "failed",
    "interrupted": "interrupted",
    "preempted": "preempted",
    "killed": "killed",
}


def read_tail(run_dir: RunDir, session: str) -> LogTail:
    """What the last lines of metrics.jsonl say about `session`.

    Reads backwards, at most 4 MiB, until the session's last `step` event is found. Torn and damaged lines are passed
    over: they are the log reader's to report. An unreadable log tells nothing.
    """
    try:
        fd = _open_regular(run_dir.log)
    except (OSError, FormatError):
        return LogTail()
    try:
        size = os.fstat(fd).st_size
        want = _TAIL_CHUNK
        while True:
            start = max(0, size - want)
            data = os.pread(fd, size - start, start)
            tail = _scan_tail(data if start == 0 else data[data.find(b"\n") + 1 :], session)
            if tail.last_step is not None or start == 0 or want >= _TAIL_LIMIT:
                return tail
            want *= 8
    except OSError:
        return LogTail()
    finally:
        os.close(fd)


def _scan_tail(data: bytes, session: str) -> LogTail:
    last_event_at: float | None = None
    end: tuple[SessionStatus, str | None] | None = None
    for line in reversed(data[: data.rfind(b"\n") + 1].split(b"\n")):
        # Parsing each line of a foreign session would be wasted: the id stands in the line as it is.
        if session.encode() not in line:
            continue
        with contextlib.suppress(orjson.JSONDecodeError):
            fields = orjson.loads(line)
            if not isinstance(fields, dict) or fields.get("session") != session:
                continue
            ts, step = fields.get("ts"), fields.get("step")
            if last_event_at is None and (moment := _moment(ts)) is not None:
                last_event_at = moment.timestamp()
            if fields.get("kind") == "session_end" and end is None:
                status, reason = _STATUSES.get(str(fields.get("status"))), fields.get("reason")
                if status is not None:
                    end = status, reason if isinstance(reason, str) else None
            if fields.get("kind") == "step" and type(step) is int and 0 < step <= MAX_STEP:
                return LogTail(last_event_at, step, end)
    return LogTail(last_event_at, None, end)


def _moment(ts: object) -> datetime | None:
    """The time of a line; None when it has none, or one beyond the calendar, which is damage."""
    if not isinstance(ts, int | float) or isinstance(ts, bool):
        return None
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(ts, UTC)
    return None


def _open_regular(path: Path) -> int:
    """A descriptor of a plain file; a link, FIFO or device in its place neither leads away nor hangs."""
    try:
        return fs.open_plain(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FormatError(
                f"{path.name} is a symbolic link; it must be a file of the run's own folder", str(path)
            ) from error
        if error.errno in {errno.EINVAL, errno.ENXIO}:
            raise FormatError(f"{path.name} is no plain file", str(path)) from error
        raise


def read_run(path: Path | str) -> Run:
    """run.json of the run at `path` (its folder, or the file itself), without taking the lock.

    Raises:
        NotFoundError: there is no run.json.
        NewerFormatError: a newer major version wrote it.
        FormatError: it is damaged, or another format's; every problem is named, up to eight.
        OSError: the disk refuses to read it.
    """
    path = Path(path)
    file = path if path.name == "run.json" else RunDir(path).run_json
    try:
        fd = _open_regular(file)
    except (FileNotFoundError, NotADirectoryError):
        hint = "lineage ls shows the runs of a folder"
        raise NotFoundError("there is no run here: no run.json", str(file.parent), hint) from None
    with os.fdopen(fd, "rb") as stream:
        if os.fstat(fd).st_size > _MAX_RUN_JSON:
            raise FormatError(f"run.json is larger than {_MAX_RUN_JSON >> 20} MiB", str(file))
        data = stream.read(_MAX_RUN_JSON)
    return parse_run(data, where=str(file))


def parse_run(data: bytes, *, where: str) -> Run:
    """The record in the bytes of a run.json; raises as `read_run` does."""
    damaged = "the original is not changed; a newer copy may be in a backup, the log and checkpoints are apart"
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"run.json is damaged: {error}", where, damaged) from None
    # The format first: what else a newer major version holds is nobody's guess.
    try:
        check_format(Format.model_validate(fields["format"]), name=FORMAT_NAME, major=FORMAT_MAJOR, where=where)
    except (KeyError, TypeError, ValidationError) as error:
        raise FormatError("run.json does not say its format", where, damaged) from error
    try:
        return Run.model_validate_json(data)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise FormatError(f"run.json is damaged: {'; '.join(problems[:8])}{more}", where, damaged) from error


def render_run(record: Run) -> bytes:
    """The bytes of run.json: UTF-8, two spaces, a newline at the end, unknown fields as they came."""
    wire = record.to_wire()
    try:
        return orjson.dumps(wire, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # an int beyond 64 bits, in a field of a newer minor version
        return (json.dumps(wire, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def create_run(
    runs_dir: Path | str,
    name: str,
    *,
    tags: Sequence[str] = (),
    notes: str = "",
    parent: Parent | None = None,
    created_at: datetime | None = None,
) -> RunStore:
    """A new run, locked and durable: folder `runs_dir/<id>`, made exclusively, and its run.json.

    Two runs of one name in one second get `-2`, `-3` behind their ids. `runs_dir` is made when missing.

    Raises:
        UsageError: the name is empty or has control characters.
        OSError: the disk refuses; an empty folder may be left, which no reader takes for a run.
    """
    if not name.strip() or not name.isprintable():
        raise UsageError(f"{name!r} cannot name a run", hint="a name has letters, and no control characters")
    runs_dir = Path(runs_dir)
    created_at = created_at or utc_now()
    runs_dir.mkdir(parents=True, exist_ok=True)
    base = make_run_id(name, created_at)
    for attempt in range(1, 10_000):
        run_id = base if attempt == 1 else f"{base}-{attempt}"
        run_dir = RunDir(runs_dir / run_id)
        try:
            run_dir.path.mkdir()
        except FileExistsError:
            continue
        break
    else:
        raise UsageError(f"ten thousand runs are called {base}", str(runs_dir))
    record = Run(id=run_id, name=name, created_at=created_at, tags=list(tags), notes=notes, parent=parent)
    lock = RunLock.acquire(run_dir)
    try:
        fs.write_atomic(run_dir.run_json, render_run(record))
        fs.fsync_dir(runs_dir)
    except BaseException:
        lock.close()
        raise
    return RunStore(run_dir, record, lock)


def open_run(path: Path | str) -> RunStore:
    """The run at `path`, locked for writing; sessions that died without an end are marked first.

    Such a session becomes `killed`, with the time of its last event as its end, unless its last line in the log says
    how it ended (it died between that line and run.json).

    Raises:
        NotFoundError, FormatError, NewerFormatError: as `read_run`; nothing was changed.
        LockedError: another live process writes the run.
        OSError: the disk refuses.
    """
    run_dir = RunDir(Path(path))
    read_run(run_dir.path)  # refuses before a lock file appears in a folder that is no run
    lock = RunLock.acquire(run_dir)
    try:
        _remove_leftovers(run_dir)
        record = read_run(run_dir.path)
        marked = _mark_dead(record, run_dir)
        if marked is not record:
            fs.write_atomic(run_dir.run_json, render_run(marked))
    except BaseException:
        lock.close()
        raise
    return RunStore(run_dir, marked, lock)


def _remove_leftovers(run_dir: RunDir) -> None:
    """Unlink the temporary files of writers that died before their rename; only the lock's holder may."""
    for leftover in run_dir.path.glob(".run.json.*.tmp"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def _mark_dead(record: Run, run_dir: RunDir) -> Run:
    """`record` with every session that says `running` ended; the same object when there is none."""
    sessions = [
        _end_dead(session, read_tail(run_dir, session.id)) if session.status == "running" else session
        for session in record.sessions
    ]
    if all(after is before for after, before in zip(sessions, record.sessions, strict=True)):
        return record
    return _changed(record, sessions=sessions)


def _end_dead(session: Session, tail: LogTail) -> Session:
    at = _moment(tail.last_event_at)
    status: SessionStatus = "killed"
    reason: str | None = "no end recorded; " + (
        "no event" if at is None else f"last event at {at.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    )
    if tail.end is not None:
        status, reason = tail.end
    steps = [step for step in (session.last_step, tail.last_step) if step is not None]
    return _changed(
        session, status=status, reason=reason, ended_at=at or session.started_at, last_step=max(steps, default=None)
    )


def _changed(record: R, **changes: Any) -> R:
    """A validated copy with some fields changed; fields of a newer minor version stay.

    Raises:
        TypeError: a field that the schema does not know: it would be kept in silence.
    """
    unknown = sorted(set(changes) - set(type(record).model_fields))
    if unknown:
        raise TypeError(f"{type(record).__name__} has no field {', '.join(unknown)}")
    return type(record).model_validate({**dict(record), **changes})


class RunStore:
    """One run, held for writing until `close` (or the death of this process).

    Safe to use from several threads. In a forked child every change raises LockedError: the lock is the parent's.

    Attributes:
        dir: paths of the run's folder.
        record: run.json as this process knows it.
        session: the session begun here, ended or not; None before `begin_session`.
        is_unsaved: whether a refused write left `record` ahead of the disk.
    """

    def __init__(self, run_dir: RunDir, record: Run, lock: RunLock) -> None:
        self.dir = run_dir
        self.record = record
        self.lock = lock
        self.is_unsaved = False
        self._mutex = threading.RLock()
        self._reserved: SessionId | None = None
        self._session_id: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def session(self) -> Session | None:
        if self._session_id is None:
            return None
        return next(session for session in self.record.sessions if session.id == self._session_id)

    def reserve_session(self) -> SessionId:
        """The id the next session will have, so that files named after it can be written before it begins."""
        with self._mutex:
            if self._reserved is None:
                ordinal = max((session.ordinal for session in self.record.sessions), default=0) + 1
                self._reserved = make_session_id(ordinal, secrets.randbits(32))
            return self._reserved

    def begin_session(
        self,
        *,
        recipe: Recipe,
        source: Source,
        environment: Environment,
        start: Start,
        argv: Sequence[str] = (),
        runtime: Mapping[str, Any] | None = None,
        data: Mapping[str, DataIdentity] | None = None,
        tolerance: Tolerance | None = None,
        rank: int = 0,
        world: int = 1,
        started_at: datetime | None = None,
    ) -> Session:
        """Append a session of this process, `running`, and write it; its environment is stored once by digest.

        Raises:
            ValueError: this store has begun a session before: one process, one session.
            OSError: the disk refused; the session stands in memory, and the next write carries it.
        """
        from lineage.capture.environment import environment_digest

        with self._mutex:
            self._check_held()
            if self._session_id is not None:
                raise ValueError(f"session {self._session_id} was begun here already")
            session_id = self.reserve_session()
            digest = environment_digest(environment)
            session = Session(
                id=session_id,
                ordinal=int(session_id[1:].split("-")[0]),
                started_at=started_at or utc_now(),
                pid=os.getpid(),
                host=socket.gethostname(),
                rank=rank,
                world=world,
                argv=list(argv),
                recipe=recipe,
                source=source,
                environment=digest,
                runtime=dict(runtime or {}),
                data=dict(data or {}),
                start=start,
                tolerance=tolerance,
            )
            self._session_id = session_id
            self.lock.name_session(session_id)
            self._replace(
                _changed(
                    self.record,
                    sessions=[*self.record.sessions, session],
                    environments={digest: environment, **self.record.environments},
                )
            )
            return session

    def update_session(self, **changes: Any) -> Session:
        """Change fields of the session begun here and write run.json; atomic and durable on return.

        Raises:
            TypeError: no such field. ValidationError: a value it cannot have. Nothing was changed.
            ValueError: no session was begun here.
            OSError: the disk refused; the change stands in memory, and the next write carries it.
        """
        with self._mutex:
            self._check_held()
            session = self.session
            if session is None:
                raise ValueError("no session was begun here")
            if "id" in changes or "ordinal" in changes:
                raise TypeError("the id of a session never changes")
            changed = _changed(session, **changes)
            self._replace(
                _changed(
                    self.record,
                    sessions=[changed if other.id == changed.id else other for other in self.record.sessions],
                )
            )
            return changed

    def add_checkpoint(self, name: GenerationName | str, last_step: int | None = None) -> Session:
        """Record a committed generation of this session; raises as `update_session`."""
        with self._mutex:
            session = self.session
            changes: dict[str, Any] = {} if last_step is None else {"last_step": last_step}
            if session is not None:
                changes["checkpoints"] = [*session.checkpoints, name]
            return self.update_session(**changes)

    def update_run(self, **changes: Any) -> Run:
        """Change `name`, `tags`, `notes` or `parent` of the run and write it; raises as `update_session`."""
        with self._mutex:
            self._check_held()
            refused = sorted(set(changes) - {"name", "tags", "notes", "parent"})
            if refused:
                raise TypeError(f"{', '.join(refused)} cannot be changed here")
            self._replace(_changed(self.record, **changes))
            return self.record

    def end_session(
        self,
        status: SessionStatus,
        reason: str | None = None,
        *,
        ended_at: datetime | None = None,
        **changes: Any,
    ) -> Session:
        """Record how the session ended, with any last changes, in one write; the lock stays until `close`.

        Raises:
            ValueError: `running` is no end. Otherwise as `update_session`.
        """
        if status == "running":
            raise ValueError("running is no end of a session")
        return self.update_session(status=status, reason=reason, ended_at=ended_at or utc_now(), **changes)

    def flush(self) -> None:
        """Write what a refused write left in memory; does nothing when there is nothing.

        Raises:
            OSError: the disk still refuses.
        """
        with self._mutex:
            if self.is_unsaved:
                self._check_held()
                self._replace(self.record)

    def close(self) -> None:
        """Give up the lock, after a last try to write what is unsaved. A session still running counts as killed.

        Never raises for the disk.
        """
        with self._mutex:
            if self.lock.held:
                with contextlib.suppress(OSError):
                    self.flush()
            self.lock.close()

    def _check_held(self) -> None:
        if self.lock.held:
            return
        owner = probe(self.dir)
        if owner is not None:
            raise locked_error(self.dir.path, owner)
        raise LockedError("this process no longer holds the run", str(self.dir.path), "open the run again")

    def _replace(self, record: Run) -> None:
        self.record = record
        self.is_unsaved = True
        fs.write_atomic(self.dir.run_json, render_run(record))
        self.is_unsaved = False
