"""Whatever bytes a file holds, nothing but the error family comes out, and memory stays bounded.

`LINEAGE_LONG=1` tries fifty times as many. The cap on memory is one line of the longest legal length (16 MiB) plus
24 MiB, and 112 MiB for a log of nothing but empty lines; a header that claims ten gigabytes, and a sparse file of
twenty, allocate nothing.
"""

import contextlib
import hashlib
import json
import math
import os
import string
import struct
import tracemalloc
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lineage import cli
from lineage.checkpoint import discover, ledger, tensorfile
from lineage.errors import LineageError
from lineage.glance import glance
from lineage.log.columns import Columns
from lineage.log.reader import read_events
from lineage.log.repair import repair
from lineage.log.scan import fault_of, scan
from lineage.runs.store import parse_run, render_run
from lineage.view import read
from lineage_schemas import checkpoint as checkpoint_schema
from lineage_schemas import ids, tagged
from lineage_schemas.events import KINDS, parse_event

LONG = bool(os.environ.get("LINEAGE_LONG"))
CAP_BYTES = 24 << 20


def examples(count: int) -> settings:
    return settings(
        max_examples=count * 50 if LONG else count,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


NUMBERS = st.one_of(
    st.integers(-3, 100),
    st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63) - 1, -0.0, 5e-324, 1e308, -1e308]),
    st.floats(allow_nan=False, allow_infinity=False),
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", "nan", "inf", "\x1b[2J", "\u202e", "s01-0a1b2c3d", "step-00000007-s01-0a1b2c3d", "a" * 64, "$tuple"]
    ),
    st.text(max_size=12),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)

RUN, SESSION, GENERATION = "20251129-134012-x", "s01-0a1b2c3d", "step-00000007-s01-0a1b2c3d"
RIGHT: dict[str, object] = {
    "ts": 1.5, "run": RUN, "session": SESSION, "step": 7, "metrics": {"loss": 1.0}, "duration_s": 0.1, "tokens": 5,
    "ordinal": 1, "start": {"kind": "fresh"}, "format": {"name": "lineage-log", "version": "1.0"}, "phase": "eval",
    "status": "failed", "code": "x", "message": "y", "text": "z", "checkpoint": GENERATION, "size_bytes": 1,
    "manifest_sha256": "0" * 64, "from_run": RUN, "from_session": SESSION, "scale_before": 1.0, "scale_after": "inf",
    "verdict": "exact", "from_step": 3, "compared_steps": 2, "discarded_bytes": 1, "offset": 0, "groups": [],
    "witness": {"batch": "0" * 16, "lr": {"a": [1.0]}, "scale": {"s": 1.0}},
}  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn, right: dict[str, object]) -> dict[str, object]:
    """A right object with some fields gone and others replaced by anything, at its top or one level down."""
    fields = json.loads(json.dumps(right))
    for name in draw(st.lists(st.sampled_from(sorted(right)), max_size=3)):
        match draw(st.integers(0, 2)), fields.get(name):
            case 0, _:
                fields.pop(name, None)
            case 1, dict() as inner if inner:
                inner[draw(st.sampled_from(sorted(inner)))] = draw(VALUES)
            case _:
                fields[name] = draw(VALUES)
    return fields


EVENTS = spoiled(RIGHT).flatmap(lambda fields: st.sampled_from(KINDS).map(lambda kind: {"kind": kind, **fields}))
LINES = st.one_of(
    EVENTS.map(lambda event: json.dumps(event).encode()),
    st.binary(max_size=80),
    VALUES.map(lambda v: json.dumps(v).encode()),
)


def lone(data: bytes) -> bytes:
    return data.replace(b"\n", b" ")


@examples(250)
@given(LINES)
def test_a_line_is_an_event_or_a_fault_and_an_event_can_be_written_again(line: bytes) -> None:
    fault_of(line)
    try:
        event = parse_event(line)
    except LineageError:
        return
    again = parse_event(json.dumps(event.to_wire()))
    assert again.to_wire() == event.to_wire()


@examples(60)
@given(st.lists(LINES.map(lone), max_size=25), st.binary(max_size=20), st.integers(0, 3))
def test_a_log_of_any_lines_is_read_followed_and_mended(
    tmp_path_factory, lines: list[bytes], torn: bytes, copies: int
) -> None:
    folder = tmp_path_factory.mktemp("fuzzed") / RUN
    folder.mkdir()
    log = folder / "metrics.jsonl"
    log.write_bytes(b"".join(line + b"\n" for line in lines * (copies + 1)) + torn)
    assert (
        sum(len(line.data) + 1 for line in scan(log.read_bytes()).lines) + len(scan(log.read_bytes()).torn)
        == log.stat().st_size
    )
    try:
        events = list(read_events(log, on_damage=lambda damage: None))
        columns = Columns.open(folder, cache=False)
        view = read(folder, cache=False)
        for name in view.metrics:
            view.series(name)
            view.series(name, superseded=True)
        glance(view.dir, view.record)
    except LineageError:
        return
    assert len(events) == len(columns.rare) + sum(map(len, columns.sessions.values()))
    with log.open("ab") as out:
        out.write(b"\n" + json.dumps({"kind": "step", **RIGHT, "step": 9}).encode() + b"\n")
    view.refresh()
    repair(log)
    mended = Columns.open(folder, cache=False)
    assert not mended.damage
    assert len(mended.rare) >= len(columns.rare)


RIGHT_SESSION = {
    "id": SESSION, "ordinal": 1, "started_at": "2025-11-29T13:40:12Z", "ended_at": None, "status": "running", "pid": 1,
    "host": "h", "recipe": {"value": {"lr": 1}, "fingerprint": "0" * 64}, "source": {"commit": None}, "last_step": 5,
    "environment": "0" * 64, "start": {"kind": "resume", "step": 3, "checkpoint": GENERATION}, "checkpoints": [GENERATION],
    "continuation": {"verdict": "diverged", "from_step": 3, "compared_steps": 2, "first_difference": {"step": 4, "field": "loss"}},
    "runtime": {}, "data": {"train": {"fingerprint": "x"}}, "argv": [], "reason": "r", "rank": 0, "world": 1,
}  # fmt: skip
SESSIONS = st.lists(spoiled(RIGHT_SESSION), max_size=3).flatmap(
    lambda found: st.sampled_from(
        [found, [{**one, "id": f"s{n:02d}-0a1b2c3d", "ordinal": n} for n, one in enumerate(found, 1)]]
    )
)
RIGHT_RUN = {
    "format": {"name": "lineage-run", "version": "1.0"}, "id": RUN, "name": "x", "created_at": "2025-11-29T13:40:12Z",
    "tags": ["a"], "notes": "", "environments": {"0" * 64: {"python": "3", "implementation": "c", "platform": "p", "machine": "m"}},
    "parent": {"run": RUN, "checkpoint": GENERATION, "step": 3},
}  # fmt: skip


@examples(200)
@given(spoiled(RIGHT_RUN), SESSIONS)
def test_a_record_is_read_or_refused_and_survives_being_written(
    fields: dict[str, object], sessions: list[object]
) -> None:
    try:
        record = parse_run(json.dumps({"sessions": sessions, **fields}).encode(), where="x")
    except LineageError:
        return
    assert parse_run(render_run(record), where="y").to_wire() == record.to_wire()


@examples(60)
@given(spoiled(RIGHT_RUN), SESSIONS, st.lists(LINES.map(lone), max_size=10))
def test_every_reading_command_answers_whatever_record_and_log_say(
    tmp_path_factory, capsys, fields: dict[str, object], sessions: list[object], lines: list[bytes]
) -> None:
    runs = tmp_path_factory.mktemp("fuzzed")
    folder = runs / RUN
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"sessions": sessions, **fields}))
    (folder / "metrics.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    for argv in (["ls", str(runs)], ["show", str(folder), "--json"], ["show", f"{folder}@1"], ["log", str(folder)], ["audit", str(folder)],
                 ["explain", str(folder), "--step", "7"], ["plot", str(folder)]):  # fmt: skip
        code = cli.main(argv)
        seen = capsys.readouterr()
        assert code in {0, 1, 2, 3}, (argv, seen.err)
        assert "defect of Lineage" not in seen.err, (argv, seen.err)
        assert "\x1b" not in seen.out + seen.err


RIGHT_MANIFEST = {
    "format": {"name": "lineage-checkpoint", "version": "1.0", "min_reader": "1.0"}, "kind": "training", "name": GENERATION,
    "created_at": "2025-11-29T13:40:12Z", "run": {"run": RUN, "session": SESSION}, "position": {"step": 7, "num_updates": 7},
    "artifacts": [], "components": [{"name": "m", "family": "model"}], "optimizers": [], "recipe": {"fingerprint": "0" * 64},
    "writer": {"host": "h", "pid": 1}, "expected": {"lr": {"a": [1.0]}}, "timing": {"write_s": 0.1}, "aliases": {}, "code": {},
}  # fmt: skip
RIGHT_ARTIFACT = {
    "path": "model.safetensors", "component": "m", "bytes": 0, "sha256": hashlib.sha256(b"").hexdigest(),
    "tensors": {"w": {"dtype": "F32", "shape": [2, 2], "digest": "0" * 32}}, "rank": 0,
}  # fmt: skip


@examples(120)
@given(spoiled(RIGHT_MANIFEST), st.lists(spoiled(RIGHT_ARTIFACT), max_size=2), st.booleans())
def test_a_manifest_is_a_candidate_or_a_reason(tmp_path_factory, capsys, fields, artifacts, trusted: bool) -> None:
    run = tmp_path_factory.mktemp("fuzzed") / RUN
    folder = run / "checkpoints" / GENERATION
    folder.mkdir(parents=True)
    text = json.dumps(fields | ({"artifacts": artifacts} if artifacts else {})).encode()
    (folder / "manifest.json").write_bytes(text)
    (folder / "model.safetensors").write_bytes(b"")
    sha = hashlib.sha256(text if trusted else b"x").hexdigest()
    (folder / "COMMIT").write_bytes(checkpoint_schema.format_commit(sha))
    found = discover.discover(run)
    assert len(found.candidates) + len(found.rejected) == 1
    for argv in (
        ["verify", str(run)],
        ["checkpoints", str(run)],
        ["whence", str(folder)],
        ["whence", str(folder / "model.safetensors")],
    ):
        code = cli.main(argv)
        assert code in {0, 1, 3}
        assert "defect of Lineage" not in capsys.readouterr().err, argv


@examples(150)
@given(st.one_of(st.binary(max_size=200), VALUES.map(lambda v: json.dumps(v).encode())), st.binary(max_size=60))
def test_a_marker_a_ledger_and_a_lock_of_any_bytes_are_read_or_passed_over(
    tmp_path_factory, data: bytes, more: bytes
) -> None:
    from lineage.runs.lock import RunLock, probe

    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "ledger.jsonl").write_bytes(data + b"\n" + more)
    ledger.standings(ledger.read(folder / "ledger.jsonl"))
    (folder / "run.lock").write_bytes(data + more)
    assert probe(folder) is None
    RunLock.acquire(folder).close()
    with contextlib.suppress(LineageError):
        checkpoint_schema.parse_commit(data, "x")


@pytest.mark.parametrize("step", [2**53, 2**53 + 1, 2**63 - 1, 2**63, 10**30])
def test_a_step_is_read_alike_alone_and_among_many(tmp_path: Path, step: int) -> None:
    """Many lines of one layout are read at once, a single one through the schema: both must draw the same line."""
    line = json.dumps({"kind": "step", **RIGHT, "metrics": {"loss": 1.0}, "step": step}).encode() + b"\n"
    counts = []
    for copies in (1, 400):
        folder = tmp_path / f"{RUN}-{copies}"
        folder.mkdir()
        (folder / "metrics.jsonl").write_bytes(line * copies)
        counts.append(sum(map(len, Columns.open(folder, cache=False).sessions.values())))
    assert counts == ([1, 400] if step <= ids.MAX_STEP else [0, 0])


SHAPES = st.lists(st.one_of(st.integers(0, 5), st.sampled_from([2**31, 2**62, 10**30, -1])), max_size=4)
TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*tensorfile.ITEM_BITS, "F4", ""]),
        "shape": SHAPES,
        "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2),
    }
)
HEADERS = st.dictionaries(st.one_of(TEXTS, st.just("__metadata__")), st.one_of(TENSOR, VALUES), max_size=3)


@examples(200)
@given(
    st.one_of(HEADERS.map(lambda h: json.dumps(h).encode()), st.binary(max_size=60)),
    st.one_of(st.none(), st.sampled_from([0, 7, 10 << 30, 100_000_000, 2**63, 2**64 - 1])),
    st.binary(max_size=64),
)
def test_a_tensor_file_is_read_or_refused_within_the_cap(
    tmp_path_factory, header: bytes, claim: int | None, rest: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzzed") / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if claim is None else claim) + header + rest)
    tracemalloc.start()
    try:
        found = tensorfile.read_header(path)
        assert sum(spec.num_bytes for spec in found.tensors) == len(rest)
    except LineageError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20


@examples(300)
@given(VALUES)
def test_tagged_json_of_any_shape_decodes_or_is_refused(value: object) -> None:
    try:
        decoded = tagged.decode(value)
    except LineageError:
        return
    again = tagged.decode(tagged.encode(decoded))
    assert same(again, decoded)


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


REF_CHARS = st.text(alphabet=string.ascii_letters + string.digits + "@/.-_~ s\0\x1b\u202e\u0661", max_size=30)


@examples(300)
@given(st.one_of(REF_CHARS, st.text(max_size=20), st.builds("{}@{}".format, REF_CHARS, st.integers(-5, 10**12))))
def test_a_ref_is_parsed_or_refused_and_says_itself_again(text: str) -> None:
    try:
        ref = ids.parse_ref(text)
    except LineageError:
        return
    assert ids.parse_ref(str(ref)) == ref


WORDS = st.one_of(
    st.sampled_from(
        [*cli.VERBS, "plot", "--json", "--step", "--kind", "--session", "--runs", "--", "-h", "--version", "--debug", "-", "--tree",
         "--all", "--since", "--metric", "--x", "--width", "loss", "@1", "x@last", "7", "-1", "nan", "1e99", "--dry-run", "--state"]
    ),
    st.text(max_size=8),
)  # fmt: skip


@examples(150)
@given(st.lists(WORDS, max_size=6))
def test_any_words_end_in_a_documented_exit_code_and_no_traceback(
    tmp_path_factory, monkeypatch, capsys, words: list[str]
) -> None:
    if "demo" in words or "tui" in words or "--follow" in words or "-f" in words:
        return  # a minute of training; a screen; an end that only Ctrl-C brings
    monkeypatch.chdir(tmp_path_factory.mktemp("fuzzed"))
    code = cli.main(words)
    seen = capsys.readouterr()
    assert code in {0, 1, 2, 3, 5}
    if "--debug" not in words:
        assert "Traceback" not in seen.err
        assert "defect of Lineage" not in seen.err
    assert not set(seen.out + seen.err) & {"\x1b", "\x07", "\x9b", "\u202e"}


@pytest.mark.parametrize(
    "fill", [b"x", b"\n", b'{"a":', b"\xff", b'{"kind":"note","ts":1,"run":"r","session":"s01-00000000","text":"y"}\n']
)
def test_a_log_of_forty_megabytes_of_anything_is_read_within_the_cap(tmp_path: Path, fill: bytes) -> None:
    """The cap is one line of the longest legal length and a chunk, beside what is kept of good lines and damage."""
    log = tmp_path / "metrics.jsonl"
    with log.open("wb") as out:
        block = fill * ((1 << 20) // len(fill))
        for _ in range({1: 40, 5: 40}.get(len(fill), 4) if fill != b"\n" else 1):
            out.write(block)
    tracemalloc.start()
    try:
        for _ in read_events(log, on_damage=lambda damage: None):
            pass
    except LineageError:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A chunk of a megabyte may hold a million empty lines, each an object for the moment.
    assert peak < (112 << 20 if fill == b"\n" else (16 << 20) + CAP_BYTES)


@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "checkpoints/ledger.jsonl",
        f"checkpoints/{GENERATION}/manifest.json",
        ".cache/columns-1.bin",
        ".cache/whence.json",
    ],
)
def test_a_sparse_file_of_twenty_gigabytes_allocates_nothing(tmp_path: Path, capsys, name: str) -> None:
    run = tmp_path / RUN
    path = run / name
    path.parent.mkdir(parents=True)
    (run / "metrics.jsonl").write_bytes(
        orjson.dumps({"kind": "note", "ts": 1.0, "run": RUN, "session": SESSION, "text": "x" * 1000}) * 1 + b"\n"
    )
    (run / "metrics.jsonl").write_bytes(
        (run / "metrics.jsonl").read_bytes() * 1200
    )  # enough for a cache to be looked at
    with path.open("wb") as out:
        out.write(b"LNGCOLS1" + struct.pack("<QI", (20 << 30) - 20, 0) if name.endswith(".bin") else b"{")
        out.truncate(20 << 30)
    if "manifest" in name:
        (path.parent / "COMMIT").write_bytes(checkpoint_schema.format_commit("0" * 64))
    tracemalloc.start()
    for argv in (
        ["ls", str(tmp_path)],
        ["show", str(run)],
        ["checkpoints", str(run)],
        ["audit", str(run)],
        ["whence", str(run / "metrics.jsonl")],
    ):
        assert cli.main(argv) in {0, 1, 3}
        assert "defect of Lineage" not in capsys.readouterr().err, argv
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < CAP_BYTES + (8 << 20)
