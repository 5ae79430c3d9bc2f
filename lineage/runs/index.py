"""Find runs: what a person typed to one run or session, a folder to its runs, a name to what should be resumed."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lineage.errors import FormatError, LineageError, NotFoundError, RefError
from lineage.layout import RunDir
from lineage.runs.lock import probe
from lineage.runs.state import run_state
from lineage.runs.store import read_run, read_tail
from lineage_schemas.ids import Ref, parse_ref, slug
from lineage_schemas.run import Run, Session

_SHOWN: Final = 8
_OLDEST: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class RunEntry:
    """One folder that is a run: its record, or why that cannot be read; exactly one of the two is there."""

    dir: RunDir
    record: Run | None
    problem: LineageError | None = None

    @property
    def created_at(self) -> datetime:
        return self.record.created_at if self.record else _OLDEST


@dataclass(frozen=True)
class Resolved:
    """What a REF stands for; `session` is None for the whole run."""

    run_dir: RunDir
    record: Run
    session: Session | None = None


def list_runs(runs_dir: Path | str) -> list[RunEntry]:
    """The runs directly in a folder, newest first, broken ones last; a folder with neither run.json nor a log is none.

    Reads each run.json and nothing else.

    Raises:
        NotFoundError: there is no such folder.
        OSError: the folder itself cannot be listed.
    """
    runs_dir = Path(runs_dir)
    try:
        folders = sorted(path for path in runs_dir.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            "there is no such folder of runs", str(runs_dir), "lineage demo makes one; --runs DIR names another"
        ) from None
    entries = [entry for path in folders if (entry := read_entry(path)) is not None]
    return sorted(entries, key=lambda entry: (entry.created_at, entry.dir.path.name), reverse=True)


def read_entry(path: Path) -> RunEntry | None:
    """The run in this very folder; None when it holds neither run.json nor a log."""
    run_dir = RunDir(path)
    try:
        return RunEntry(run_dir, read_run(path))
    except NotFoundError:
        if not run_dir.log.is_file():
            return None
        hint = "put it back from a copy; lineage show, plot and tui tell the run from its log alone"
        return RunEntry(
            run_dir, None, FormatError("run.json is missing, its log is there", str(run_dir.run_json), hint)
        )
    except LineageError as error:
        return RunEntry(run_dir, None, error)
    except OSError as error:
        problem = FormatError(f"run.json cannot be read: {error.strerror or error}", str(run_dir.run_json))
        return RunEntry(run_dir, None, problem)


def resolve(ref: Ref | str, runs_dir: Path | str = "runs") -> Resolved:
    """The run, and the session where the REF names one.

    A run is looked for as: the path of its folder (or of a file right inside it); an id in `runs_dir`; a name that
    one run there has; a beginning or an end of one id there. A bare session id is looked for in all of `runs_dir`.

    Raises:
        NotFoundError: nothing fits; the hint has what comes close.
        RefError: more than one fits; they are listed. Or the text is no REF.
        FormatError, NewerFormatError: the run it names cannot be read.
    """
    if isinstance(ref, str):
        ref = parse_ref(ref)
    if ref.run is None:
        return _find_session(str(ref.session), Path(runs_dir))
    run_dir, record = _find_run(ref.run, Path(runs_dir))
    return Resolved(run_dir, record, pick_session(record, ref.session, run_dir))


def typed_path(text: str) -> Path:
    """The path a person typed; `~name` of nobody is a file of that name."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _find_run(text: str, runs_dir: Path) -> tuple[RunDir, Run]:
    for path in (typed_path(text), runs_dir / text):
        for folder in (path, path.parent) if path.is_file() else (path,):
            if RunDir(folder).run_json.exists():
                return RunDir(folder), read_run(folder)
    try:
        entries = list_runs(runs_dir)
    except NotFoundError:
        _refuse_path(text)
        raise NotFoundError(
            f"there is no run {text!r}",
            str(runs_dir),
            "there is no such folder of runs either; --runs DIR names another, or give a run's path",
        ) from None
    ids = {entry.dir.path.name: entry for entry in entries}
    named = [entry for entry in entries if entry.record and entry.record.name == text]
    started = [entry for name, entry in ids.items() if name.startswith(text)]
    ended = [entry for name, entry in ids.items() if name.endswith(text) and entry not in started]
    for found in (named, started + ended):
        if len(found) > 1:
            raise RefError(f"{text!r} fits {len(found)} runs", str(runs_dir), f"say which: {_some(found)}")
        if found:
            if found[0].problem:
                raise found[0].problem
            return found[0].dir, read_run(found[0].dir.path)
    _refuse_path(text)
    close = _close(text, entries)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    else:
        hint = f"there are {_some(entries)}" if entries else "that folder has no runs; --runs DIR names another"
    raise NotFoundError(f"there is no run {text!r}", str(runs_dir), hint)


def _close(text: str, entries: list[RunEntry]) -> list[str]:
    """Names and ids of runs that look like `text`, the likest first."""
    names = [entry.record.name for entry in entries if entry.record]
    written = {known.lower(): known for known in (*names, *(entry.dir.path.name for entry in entries))}
    return [written[found] for found in difflib.get_close_matches(text.lower(), written, n=3, cutoff=0.5)]


def _refuse_path(text: str) -> None:
    """Say of a path that leads to something else than a run what it is.

    Raises:
        NotFoundError: there is something at the path, or the text can be nothing but a path.
    """
    path = typed_path(text)
    if not path.exists():
        if "/" in text:
            runs = list_runs(path.parent) if path.parent.is_dir() else []
            close = [str(path.with_name(name)) for name in _close(path.name, runs) if (path.parent / name).is_dir()]
            hint = f"did you mean {' or '.join(close)}?" if close else "lineage ls DIR shows the runs of a folder"
            raise NotFoundError("there is no such folder or file", text, hint)
        return
    above = (*path.parents, *path.absolute().parents)
    inside = [folder for folder in above if _is_run(folder)]
    if inside:
        raise NotFoundError("this is inside of a run, and not the run", text, f"the run is {inside[0]}")
    if not path.is_dir():
        raise NotFoundError("this file is no part of a run", text, "a run is the folder that has run.json in it")
    runs = list_runs(path)
    if runs:
        raise NotFoundError("this folder holds runs, and is none itself", text, f"one of them: {_some(runs, path)}")
    raise NotFoundError("this folder is no run: it has no run.json", text, "lineage ls DIR shows the runs of a folder")


def run_around(folder: Path) -> Path | None:
    """The nearest run that a folder is, or is inside of, links followed; None for none. It need not be there."""
    whole = Path(os.path.realpath(folder))  # `resolve` raises for links in a circle
    return next((found for found in (whole, *whole.parents) if _is_run(found)), None)


def _is_run(folder: Path) -> bool:
    try:
        return RunDir(folder).run_json.is_file()
    except OSError:
        return False  # a folder above that may not be entered


def _some(entries: list[RunEntry], under: Path | None = None) -> str:
    shown = [entry.dir.path.name for entry in entries[:_SHOWN]]
    text = ", ".join(shown if under is None else [str(under / name) for name in shown])
    return text + (f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else "")


def pick_session(record: Run, wanted: int | str | None, run_dir: RunDir) -> Session | None:
    """The session of a run by ordinal, id or `last`; None when none was asked for.

    Raises:
        NotFoundError: the run has no such session; the hint has those it has.
    """
    if wanted is None:
        return None
    if wanted == "last":
        found = record.sessions[-1:]
    else:
        found = [session for session in record.sessions if wanted in {session.ordinal, session.id}]
    if found:
        return found[-1]
    count = len(record.sessions)
    have = f"it has {', '.join(f'@{session.ordinal}' for session in record.sessions[-_SHOWN:])}" if count else ""
    raise NotFoundError(f"the run has no session {wanted}", str(run_dir.path), have or "it has no session yet")


def _find_session(session_id: str, runs_dir: Path) -> Resolved:
    found = [
        Resolved(entry.dir, entry.record, session)
        for entry in list_runs(runs_dir)
        if entry.record
        for session in entry.record.sessions
        if session.id == session_id
    ]
    if len(found) > 1:
        runs = ", ".join(f"{one.run_dir.path.name}@{session_id}" for one in found[:_SHOWN])
        raise RefError(f"session {session_id} stands in {len(found)} runs", str(runs_dir), f"say which: {runs}")
    if not found:
        raise NotFoundError(f"no run has a session {session_id}", str(runs_dir), "write RUN@N, or a run's path first")
    return found[0]


def newest_unfinished(runs_dir: Path | str, name: str, *, or_completed: bool = False) -> RunEntry | None:
    """The newest run of that name that is not completed, which `resume="auto"` goes on with; None when there is none.

    It may be live: opening it then raises LockedError, which is the right answer to a second start.

    Args:
        runs_dir: folder of runs.
        name: of the run.
        or_completed: where none is unfinished, give the newest completed one (`resume="must"`).

    Raises:
        FormatError, NewerFormatError: a newer run that may be the one (by its id) cannot be read. Starting another
            beside it would quietly abandon it.
    """
    try:
        entries = list_runs(runs_dir)
    except NotFoundError:
        return None
    found = next((entry for entry in entries if entry.record and _is_unfinished(entry.dir, entry.record, name)), None)
    if found is None and or_completed:
        found = next((entry for entry in entries if entry.record and entry.record.name == name), None)
    # A broken run is known by its id alone, which begins with the time and ends with the name.
    may_be = re.compile(rf".*-{re.escape(slug(name))}(-\d+)?")
    for entry in sorted(entries, key=lambda entry: entry.dir.path.name, reverse=True):
        is_newer = found is None or entry.dir.path.name > found.dir.path.name
        if entry.problem and is_newer and may_be.fullmatch(entry.dir.path.name):
            raise entry.problem
    return found


def _is_unfinished(run_dir: RunDir, record: Run, name: str) -> bool:
    if record.name != name:
        return False
    last = record.sessions[-1] if record.sessions else None
    end = read_tail(run_dir, last.id).end if last and last.status == "running" else None
    state = run_state(record, owner=probe(run_dir), last_event_at=None, now=0.0, logged_end=end[0] if end else None)
    return state != "completed"
