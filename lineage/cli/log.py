"""`lineage log`: the events of a run, as they are or as sentences."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, note, repair_hint
from lineage.cli.output import Output
from lineage.cli.refs import Target, find
from lineage.cli.values import whole
from lineage.cli.words import moment, number, size
from lineage.errors import NotFoundError, UsageError
from lineage.log.reader import check_line_format, follow, read_lines
from lineage.log.scan import Damage, Line, merge_damage
from lineage.runs.index import pick_session
from lineage_schemas.events import KINDS

_POLL_S: Final = 0.2
_HEADER: Final = frozenset({"kind", "ts", "run", "session", "step"})


class LogCommand(Command):
    """Print the events of a run in order of its log.

    On a terminal each event is a sentence; in a pipe, or with --json, each is its line of metrics.jsonl as it is, but
    for characters a terminal would obey, which become JSON escapes. --pretty asks for sentences anywhere.

    Damaged lines are told on stderr with their offsets, neighbours as one, and the exit code is then 1. Ctrl-C ends
    --follow (130).
    """

    name = "log"
    summary = "the events of a run"
    examples = (
        ("lineage log tiny-gpt", "all of them"),
        ("lineage log tiny-gpt@2 --kind eval", "the evaluations of the second session"),
        (
            "lineage log tiny-gpt --kind fp16_skip --kind lr_restore --pretty",
            "skipped steps and restores, as sentences",
        ),
        ("lineage log tiny-gpt -n 20", "the last twenty"),
        ("lineage log tiny-gpt --kind step --json | tail -n 1", "the last step, for scripts"),
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="REF", help="a run, or RUN@N for one session")
        parser.add_argument(
            "--kind", action="append", metavar="KIND", help=f"only this kind; may repeat: {', '.join(KINDS)}"
        )
        parser.add_argument("--session", metavar="N", help="only this session: N, last, or its id")
        parser.add_argument("-n", "--last", type=whole(), metavar="N", help="only the last N")
        parser.add_argument("--follow", action="store_true", help="go on with what is appended, until Ctrl-C")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--json", action="store_true", help="the lines as they are")
        how.add_argument("--pretty", action="store_true", help="sentences, also in a pipe")

    def run(self, args: argparse.Namespace) -> ExitCode:
        _check_kinds(args.kind)
        target = find(args.ref, args.runs)
        if not target.dir.log.exists():
            hint = f"put it back from a copy; lineage show {args.ref} tells what run.json knows"
            raise NotFoundError("this run has no log", str(target.dir.log), hint)
        session = target.session.id if target.session else None
        if args.session is not None:
            wanted = _pick(target, args.session)
            if session not in {None, wanted}:
                hint = "RUN@N, or RUN and --session N; one of the two is enough"
                raise UsageError(f"{args.ref} and --session {args.session} are two sessions", hint=hint)
            session = wanted
        output = Output()
        pretty = args.pretty or (output.is_terminal and not args.json)
        ordinals = {known.id: known.ordinal for known in target.record.sessions}
        teller = _Teller(output, pretty=pretty, ordinals=ordinals)
        choose = _Filter(set(args.kind or ()), session, str(target.dir.log), teller.damaged)
        lines = choose.of(read_lines(target.dir.log, check=True))
        end = 0
        if args.last is not None:
            lines = iter(deque(lines, maxlen=args.last))
        for line, fields in lines:
            teller.tell(line, fields)
        end = choose.end
        if not teller.num_told and args.last != 0 and not args.follow:
            note("no event was logged" if not (args.kind or session) else "no such event was logged")
        if args.follow:
            output.flush()
            for batch in follow(target.dir.log, start=end, stop=lambda: False, poll_s=_POLL_S):
                for line, fields in choose.of(batch):
                    teller.tell(line, fields)
                output.flush()
        if teller.num_damaged:
            note(f"  try: {repair_hint(args.ref)}")
        return ExitCode.FAILED if teller.num_damaged else ExitCode.OK


def _check_kinds(kinds: list[str] | None) -> None:
    for kind in kinds or ():
        if kind not in KINDS:
            import difflib

            close = difflib.get_close_matches(kind, KINDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(KINDS)}"
            raise UsageError(f"no event is of kind {kind!r}", hint=hint)


def _pick(target: Target, wanted: str) -> str | None:
    number = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) <= 9 else wanted
    session = pick_session(target.record, number, target.dir)
    return session.id if session is not None else None


class _Filter:
    """Chooses lines; remembers where the next one begins."""

    def __init__(self, kinds: set[str], session: str | None, path: str, on_damage: Callable[[Damage], None]) -> None:
        self.end = 0
        self._kinds = kinds
        self._session = session
        self._path = path
        self._on_damage = on_damage

    def of(self, items: Iterable[Line | Damage]) -> Iterator[tuple[Line, Mapping[str, Any]]]:
        """The chosen ones of `items`; of damaged lines, those that stand one after another are told as one."""
        held: list[Damage] = []
        for item in items:
            self.end = item.end
            if isinstance(item, Damage):
                *passed, last = merge_damage([*held, item])
                self._tell(passed)
                held = [last]
                continue
            self._tell(held)
            held = []
            check_line_format(item.data, where=f"{self._path}, byte {item.offset}")
            fields = orjson.loads(item.data)
            # A damaged session may be anything, also a list, which no set takes.
            is_wanted = self._session is None or fields.get("session") == self._session
            if is_wanted and (not self._kinds or fields["kind"] in self._kinds):
                yield item, fields
        self._tell(held)

    def _tell(self, damage: Iterable[Damage]) -> None:
        for found in damage:
            self._on_damage(found)


class _Teller:
    """Writes events, and what is damaged to stderr."""

    def __init__(self, output: Output, *, pretty: bool, ordinals: Mapping[str, int]) -> None:
        self.num_told = 0
        self.num_damaged = 0
        self._output = output
        self._pretty = pretty
        self._ordinals = ordinals

    def tell(self, line: Line, fields: Mapping[str, Any]) -> None:
        self.num_told += 1
        if not self._pretty:
            self._output.raw_line(line.data)
            return
        session = fields.get("session")
        ordinal = self._ordinals.get(session) if isinstance(session, str) else None
        who = f"@{ordinal}" if ordinal else str(session)
        ts, step = fields.get("ts"), fields.get("step")
        when = moment(ts) if isinstance(ts, int | float) else str(ts)
        place = f"{step:>8,}" if isinstance(step, int) else " " * 8
        self._output.line(f"{when}  {who:<4} {place}  {fields['kind']:<19} {describe(fields)}".rstrip())

    def damaged(self, damage: Damage) -> None:
        if damage.restart:
            note(f"note: {damage.reason}")
            return
        self.num_damaged += damage.num_lines
        note(f"damaged: {damage}")


def describe(fields: Mapping[str, Any]) -> str:
    """What an event says, without its kind, time, session and step; any fields at all are taken."""
    try:
        return _DESCRIBERS.get(str(fields.get("kind")), _rest)(fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        return _rest(fields)  # not what the kind promises: shown as it is


def _value(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _rest(fields: Mapping[str, Any]) -> str:
    return "  ".join(f"{key} {_value(value)}" for key, value in fields.items() if key not in _HEADER)


def _metrics(fields: Mapping[str, Any]) -> str:
    names = fields.get("nonfinite", {})
    return "  ".join(
        f"{name} {names.get(name, 'nan') if value is None else _value(value)}"
        for name, value in fields["metrics"].items()
    )


def _step(fields: Mapping[str, Any]) -> str:
    duration = fields.get("duration_s")
    return _metrics(fields) + (f"  in {number(duration)} s" if duration is not None else "")


def _start(fields: Mapping[str, Any]) -> str:
    start = fields["start"]
    text = "from the beginning" if start["kind"] == "fresh" else f"{start['kind']} of {start['checkpoint']}"
    return f"session {fields['ordinal']}, {text}" + (f", on {fields['host']}" if fields.get("host") else "")


def _restore_lr(fields: Mapping[str, Any]) -> str:
    groups = ", ".join(
        f"{group['optimizer']}[{group['group']}] {_value(group['before'])} -> {_value(group['after'])}"
        for group in fields["groups"]
    )
    return groups + ("" if fields.get("ok", True) else "  NOT what the checkpoint expects")


def _verdict(fields: Mapping[str, Any]) -> str:
    text = f"{fields['verdict']} from step {fields['from_step']}, {fields['compared_steps']} steps compared"
    first = fields.get("first_difference")
    if first:
        values = f"{_value(first.get('before'))} -> {_value(first.get('after'))}"
        text += f", first difference at {first['step']}: {first['field']} {values}"
    return text + (f" ({fields['reason']})" if fields.get("reason") else "")


_DESCRIBERS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "step": _step,
    "eval": lambda f: f"{f.get('name', 'eval')}: {_metrics(f)}",
    "system": _metrics,
    "session_start": _start,
    "session_end": lambda f: f"{f['status']}" + (f": {f['reason']}" if f.get("reason") else ""),
    "phase_start": lambda f: str(f["phase"]),
    "phase_end": lambda f: f"{f['phase']} took {number(f['duration_s'])} s" + ("" if f.get("ok", True) else ", failed"),
    "fp16_skip": lambda f: f"scale {_value(f['scale_before'])} -> {_value(f['scale_after'])}",
    "lr_restore": _restore_lr,
    "checkpoint_saved": lambda f: (
        f"{f['checkpoint']}, {size(f['size_bytes'])}"
        + (f" in {number(f['duration_s'])} s" if f.get("duration_s") is not None else "")
    ),
    "checkpoint_restored": lambda f: f"{f['checkpoint']} of {f['from_session']}",
    "continuation": _verdict,
    "alert": lambda f: f"{f.get('severity', 'warning')} {f['code']}: {f['message']}",
    "note": lambda f: str(f["text"]),
    "log_recovered": lambda f: f"{f['discarded_bytes']} bytes of a torn append were cut at byte {f['offset']}",
}
