"""`lineage show`: a run or a session in full, one fact a line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

import orjson

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note
from lineage.cli.output import Output
from lineage.cli.refs import Target, find
from lineage.cli.words import NEVER, moment, number, size
from lineage.glance import glance, session_glances
from lineage.runs.state import State
from lineage_schemas.ids import SessionId
from lineage_schemas.run import Environment, Run, Session

_Glances = dict[SessionId, tuple[State, int | None]]


class ShowCommand(Command):
    """Show a run with its sessions, or one session (RUN@N) with its recipe, source, environment and data.

    One fact a line, a label before each, nothing drawn: made to be read aloud and searched. What was masked when it was
    recorded shows as masked.

    When run.json is missing or damaged, what the log tells is shown, the reason is on stderr, and the exit code is 1;
    as it is when the log is missing or empty and run.json tells of steps.
    """

    name = "show"
    summary = "a run, or one of its sessions, in full"
    examples = (
        ("lineage show tiny-gpt", "a run and its sessions"),
        ("lineage show tiny-gpt@2", "everything about its second session"),
        ("lineage show tiny-gpt@last --json", "the newest one, for scripts"),
        ("lineage show tiny-gpt --tree", "its sessions, checkpoints, exports and forks as a tree"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run, or RUN@N, RUN@last for one session")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--json", action="store_true", help="one JSON document")
        how.add_argument(
            "--tree", action="store_true", help="the run's family in its folder: sessions, checkpoints, forks, exports"
        )

    def run(self, args: argparse.Namespace) -> ExitCode:
        target = find(args.ref, args.runs)
        if args.tree:
            return _show_tree(target)
        glances = session_glances(target.dir, target.record)
        output = Output()
        if args.json:
            output.json(_document(target, glances))
        else:
            lines = _session(target.record, target.session, glances) if target.session else _run(target, glances)
            for line in lines:
                output.line(line)
        if target.problem is not None:
            note(f"damaged: {target.problem.what}; this is what the log tells")
            note("  try: put run.json back from a copy")
            return ExitCode.FAILED
        return _tell_lost_log(target)


def _tell_lost_log(target: Target) -> ExitCode:
    """Say that the log is gone where the record tells of steps; of a log only the end was read."""
    last_step = max((session.last_step or 0 for session in target.record.sessions), default=0)
    try:
        is_empty = target.dir.log.lstat().st_size == 0
    except FileNotFoundError:
        what = "missing"
    else:
        what = "empty" if is_empty else ""
    if not last_step or not what:
        return ExitCode.OK
    note(f"damaged: metrics.jsonl is {what}, though run.json tells of {last_step:,} steps")
    note("  try: put it back from a copy")
    return ExitCode.FAILED


def _show_tree(target: Target) -> ExitCode:
    """Draw the family, and say what of it may not be entered."""
    from lineage.history.evidence import leaves_of, read_family
    from lineage.history.tree import family_of, render_tree

    runs, leaves = read_family(target.dir.path.resolve().parent)
    if target.record.id not in runs:  # its run.json is damaged: what the log tells stands in for it
        runs[target.record.id] = target.record
        leaves[target.record.id] = leaves_of(target.dir, target.record)
    output = Output()
    encoding = getattr(output.stream, "encoding", None) or "utf-8"
    for line in render_tree(runs, leaves, only=target.record.id, ascii_only="utf" not in encoding.lower()):
        output.line(line)
    family = family_of(runs, target.record.id) if any(found.unread for found in leaves.values()) else ()
    unread = [f"{id_}/{name}: {why}" for id_ in sorted(family) for name, why in leaves[id_].unread.items()]
    if not unread:
        return ExitCode.OK
    more = f", and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    note(f"cannot be read: {unread[0]}{more}")
    note("  try: ls -l shows whose it is; its owner can let you in with chmod")
    return ExitCode.FAILED


def _document(target: Target, glances: _Glances) -> dict[str, Any]:
    record = target.record
    wire = record.to_wire()
    chosen = {target.session.id} if target.session else {session.id for session in record.sessions}
    sessions = []
    for fields in wire.pop("sessions", []):
        if fields["id"] in chosen:
            state, last_step = glances[SessionId(fields["id"])]
            known = {"checkpoint": None, "step": 0} | fields["start"]
            sessions.append({"continuation": None} | fields | {"state": state, "start": known, "last_step": last_step})
    return (
        {"id": record.id, "name": record.name, "state": glance(target.dir, record).state, "parent": None}
        | wire
        | ({"created_at": None} if record.created_at == NEVER else {})
        | {"path": target.dir.path, "sessions": sessions}
    )


def _run(target: Target, glances: _Glances) -> Iterator[str]:
    record = target.record
    seen = glance(target.dir, record)
    yield f"run: {record.id}"
    yield f"name: {record.name}"
    yield f"state: {seen.state}"
    yield f"path: {target.dir.path}"
    yield f"created: {moment(record.created_at)}"
    if record.tags:
        yield f"tags: {', '.join(record.tags)}"
    if record.notes:
        yield f"notes: {record.notes}"
    if record.parent:
        parent = record.parent
        yield f"forked from: {parent.run}, checkpoint {parent.checkpoint}, step {parent.step:,}"
    if seen.last_step is not None:
        loss = f", loss {number(seen.last_loss)}" if seen.last_loss is not None else ""
        yield f"last step: {seen.last_step:,}{loss}"
    yield f"last event: {moment(seen.last_event_at)}"
    yield f"sessions: {len(record.sessions)}"
    for session in record.sessions:
        yield ""
        yield from _brief(session, glances)


def _brief(session: Session, glances: _Glances) -> Iterator[str]:
    state, last_step = glances[SessionId(session.id)]
    yield f"session {session.ordinal}: {session.id}"
    yield f"  state: {state}" + (f" ({session.reason})" if session.reason else "")
    yield f"  start: {_start(session)}"
    yield f"  last step: {'none' if last_step is None else f'{last_step:,}'}"
    ended = f", ended {moment(session.ended_at)}" if session.ended_at else ""
    yield f"  started: {moment(session.started_at)} on {session.host}, pid {session.pid}{ended}"
    if session.checkpoints:
        yield f"  checkpoints: {len(session.checkpoints)}, newest {session.checkpoints[-1]}"
    if session.continuation:
        yield f"  continuation: {_continuation(session)}"


def _start(session: Session) -> str:
    start = session.start
    if start.kind == "fresh":
        return f"fresh, from step {start.step:,}"
    made_by = f" of session {start.session}" if start.session else ""
    other = f" of run {start.run}" if start.run else ""
    forced = ", forced past differences" if start.forced else ""
    return f"{start.kind} from step {start.step:,}, checkpoint {start.checkpoint}{made_by}{other}{forced}"


def _continuation(session: Session) -> str:
    found = session.continuation
    if found is None:
        return "none"
    text = f"{found.verdict}, {found.compared_steps:,} steps compared"
    if found.first_difference:
        first = found.first_difference
        text += f", first difference at step {first.step:,}: {first.field} {first.before} -> {first.after}"
    if found.proven:
        text += f", proven at the restore: {', '.join(found.proven)}"
    return text + (f" ({found.reason})" if found.reason else "")


def _session(record: Run, session: Session, glances: _Glances) -> Iterator[str]:
    yield f"run: {record.id}"
    yield from _brief(session, glances)
    if session.world > 1 or session.rank:
        yield f"  rank: {session.rank} of {session.world}"
    if session.argv:
        yield f"  command: {shlex.join(session.argv)}"
    if session.tolerance:
        declared = session.tolerance
        yield f"  tolerance: rtol {declared.rtol:g}, atol {declared.atol:g} {declared.reason}".rstrip()
    for finding in session.start.findings:
        yield f"  finding at the restore: {finding.path}: saved {_json(finding.saved)}, live {_json(finding.live)}"
    for rejected in session.start.rejected:
        yield f"  rejected checkpoint: {rejected.name}: {rejected.reason}"
    for name in session.checkpoints:
        yield f"  checkpoint: {name}"
    source = session.source
    yield ""
    yield "source:"
    for label, value in (("commit", source.commit), ("branch", source.branch), ("remote", source.remote)):
        if value:
            yield f"  {label}: {value}"
    if source.dirty is not None:
        patch = f", diff kept as {source.patch}" if source.patch else ""
        yield f"  working tree: {'changed' if source.dirty else 'clean'}{patch}"
    if source.problem:
        yield f"  problem: {source.problem}"
    yield ""
    yield f"recipe: fingerprint {session.recipe.fingerprint}"
    for path, value in flatten(session.recipe.value):
        yield f"  {path or 'value'}: {_json(value)}"
    if session.recipe.masked:
        yield f"  masked: {', '.join(session.recipe.masked)}"
    for name, identity in session.data.items():
        files = f", {identity.num_files:,} files" if identity.num_files is not None else ""
        volume = f", {size(identity.size_bytes)}" if identity.size_bytes is not None else ""
        yield ""
        yield f"data {name}: {identity.fingerprint} ({identity.method}){files}{volume}"
    if session.runtime:
        yield ""
        yield "runtime:"
        for path, value in flatten(session.runtime):
            yield f"  {path}: {_json(value)}"
    yield ""
    yield f"environment: {session.environment}"
    environment = record.environments.get(session.environment)
    if environment is not None:
        yield from _environment(environment)


def _environment(environment: Environment) -> Iterator[str]:
    wire = environment.to_wire()
    packages = wire.pop("packages", {})
    for path, value in flatten(wire):
        yield f"  {path}: {_json(value)}"
    for name in sorted(packages):
        yield f"  package {name}: {packages[name]}"


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts by dotted path; lists are leaves, and so is an empty dict."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _json(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return str(value)
