"""From the REF a person typed to a run, also one whose run.json is missing or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lineage.errors import FormatError, LineageError, NewerFormatError, NotFoundError, UsageError
from lineage.layout import RunDir
from lineage.runs.index import pick_session, resolve, typed_path
from lineage_schemas.ids import Ref, parse_ref
from lineage_schemas.run import Run, Session


@dataclass(frozen=True)
class Target:
    """What a REF stands for.

    Attributes:
        record: run.json, or what the log alone tells.
        session: None for the whole run.
        problem: why run.json could not be read; None when it could.
    """

    dir: RunDir
    record: Run
    session: Session | None = None
    problem: LineageError | None = None


def find(text: str, runs_dir: str | Path) -> Target:
    """The run and session a REF names.

    A folder that has a log but no readable run.json is a run too.

    Raises:
        NotFoundError, RefError, NewerFormatError: as `lineage.runs.index.resolve`.
        FormatError: run.json is damaged, and there is no log either.
    """
    ref = parse_ref(text)
    try:
        found = resolve(ref, runs_dir)
    except NewerFormatError:
        raise
    except (NotFoundError, FormatError):
        alone = _folder_with_log(ref, Path(runs_dir))
        if alone is None:
            raise
        return _from_log(*alone, ref)
    return Target(found.run_dir, found.record, found.session)


def check_metrics(names: Sequence[str], logged: Sequence[str]) -> None:
    """Refuse a metric's name that the run never logged.

    Raises:
        UsageError: the hint has those it logged.
    """
    for name in names:
        if name not in logged:
            raise UsageError(f"no metric is called {name!r}", hint=f"logged are {', '.join(logged) or 'nothing yet'}")


def _folder_with_log(ref: Ref, runs_dir: Path) -> tuple[RunDir, LineageError] | None:
    """The folder a REF names by path or id when it has a log but no run.json that can be read, and why it cannot."""
    from lineage.runs.store import read_run

    for path in (typed_path(ref.run), runs_dir / ref.run) if ref.run else ():
        folder = path.parent if path.is_file() else path
        if RunDir(folder).log.is_file():
            try:
                read_run(folder)
            except NotFoundError:
                return RunDir(folder), FormatError(
                    "run.json is missing", str(RunDir(folder).run_json), "put it back from a copy"
                )
            except FormatError as error:
                return RunDir(folder), error
    return None


def _from_log(run_dir: RunDir, problem: LineageError, ref: Ref) -> Target:
    from lineage.view import read

    record = read(run_dir.path).record
    return Target(run_dir, record, pick_session(record, ref.session, run_dir), problem)
