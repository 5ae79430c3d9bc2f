from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lineage.log.reader as reader_module
from lineage.errors import DamagedError, LineageError, NewerFormatError, NotFoundError
from lineage.log.reader import check_log_format, read_events, read_lines
from lineage.log.scan import MAX_LINE_BYTES, Damage, Line, fault_of, scan
from lineage.log.writer import encode_event
from lineage_schemas.events import StepEvent, UnknownEvent

Event = Callable[..., dict[str, Any]]

GOOD = b'{"kind":"note","ts":1.0,"run":"r","session":"s01-00000000","text":"x"}'


@settings(deadline=None)
@given(
    pieces=st.lists(st.binary(max_size=30) | st.just(GOOD) | st.just(b"\n"), max_size=20),
    # A chunk is never larger than the longest line.
    limits=st.sampled_from([8, 40, 1000]).flatmap(lambda limit: st.tuples(st.just(limit), st.integers(1, limit))),
)
def test_every_byte_before_the_tail_is_in_a_line_or_in_damage_whatever_the_chunks(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], limits: tuple[int, int]
) -> None:
    data = b"".join(pieces)
    limit, chunk = limits
    path = tmp_path_factory.getbasetemp() / "chunks.jsonl"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "_CHUNK_BYTES", chunk)
        patch.setattr(reader_module, "MAX_LINE_BYTES", limit)
        found = list(read_lines(path))
    expected = scan(data)
    assert [(item.offset, item.end) for item in found] == [(line.offset, line.end) for line in expected.lines]
    for item, line in zip(found, expected.lines, strict=True):
        if len(line.data) >= limit:
            assert isinstance(item, Damage)
            assert "longer than" in item.reason
        elif isinstance(item, Line):
            assert item == line
            assert fault_of(line.data) is None
        else:
            assert item.reason == fault_of(line.data)


def test_a_part_is_read_from_the_beginning_of_a_line_to_the_last_one_that_ends_in_it(
    tmp_path: Path, real_log: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(real_log)
    lines = scan(real_log).lines
    for first in lines:
        for stop in (first.offset, first.end - 1, first.end, first.end + 1, len(real_log), len(real_log) + 99):
            expected = [line for line in lines if line.offset >= first.offset and line.end <= stop]
            assert list(read_lines(path, first.offset, stop)) == expected


@pytest.mark.parametrize("data", [b"", b"\0" * 1_000_000, b"no newline at all", GOOD, b"{" * 5_000_000])
def test_a_file_without_a_newline_has_no_lines_and_no_damage(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(data)
    assert list(read_lines(path)) == []
    assert list(read_events(path)) == []


def test_lines_with_carriage_returns_are_read(tmp_path: Path, real_log: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(real_log.replace(b"\n", b"\r\n"))
    assert len(list(read_events(path))) == real_log.count(b"\n")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\0" * 4096, "not JSON"),
        (b'{"kind":"note","text":"\xff\xfe"}', "not JSON"),
        (b"[" * 1_000_000, "not JSON"),
        (b'{"kind":"note","x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "not JSON"),
        (b'{"kind":"note","x":' + b"[" * 500 + b"]" * 500 + b"}", "not"),
        (b"", "the line is empty"),
        (b"\r", "the line is empty"),
        (GOOD + GOOD, "not JSON"),
        (b'{"kind":"step","ts":1.0,"run":"r","session":"s01-00000000","step":1}', "not an event: metrics"),
        (b'{"kind":"note","ts":"1.0","run":"r","session":"s01-00000000","text":"x"}', "not an event: ts"),
        (b'{"kind":"note","ts":1.0,"run":"../r","session":"s01-00000000","text":"x"}', "not an event: run"),
        (b'{"kind":"step","ts":1e999,"run":"r","session":"s01-00000000","step":1,"metrics":{}}', "not"),
    ],
)
def test_a_bad_line_is_reported_with_its_place_and_costs_no_other(tmp_path: Path, bad: bytes, reason: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(GOOD + b"\n" + bad + b"\n" + GOOD + b"\n")
    damage: list[Damage] = []
    assert len(list(read_events(path, on_damage=damage.append))) == 2
    (found,) = damage
    assert (found.offset, found.size_bytes) == (len(GOOD) + 1, len(bad) + 1)
    assert found.reason.startswith(reason)


def test_a_line_of_100_mb_is_passed_over_without_being_loaded(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    size = 100 * 1024 * 1024
    with path.open("wb") as out:
        out.write(GOOD + b"\n")
        out.truncate(len(GOOD) + 1 + size)
        out.seek(0, os.SEEK_END)
        out.write(b"\n" + GOOD + b"\n")
    tracemalloc.start()
    try:
        first, long, last = read_lines(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(first, Line)
    assert isinstance(last, Line)
    assert long == Damage(len(GOOD) + 1, size + 1, f"the line is longer than {MAX_LINE_BYTES} bytes")
    assert peak < 3 * MAX_LINE_BYTES


def test_damage_that_nobody_listens_for_is_raised_after_every_good_event(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(GOOD + b"\nbad\nworse\n" + GOOD + b"\n\n")
    found = []
    with pytest.raises(DamagedError, match=r"3 damaged lines.*bytes 71 to 81, 2 lines") as raised:
        found.extend(read_events(path))
    assert len(found) == 2
    assert raised.value.where == str(path)


def test_kinds_and_sessions_are_picked(tmp_path: Path, step_event: Event, event: Event) -> None:
    path = tmp_path / "metrics.jsonl"
    other = step_event(7) | {"session": "s02-00000000"}
    lines = [step_event(1), event("note", text="x"), other, event("from_the_future", x=1)]
    path.write_bytes(b"".join(encode_event(line) for line in lines))
    assert [type(e) for e in read_events(path, kinds={"step"})] == [StepEvent, StepEvent]
    assert [e.step for e in read_events(path, session="s02-00000000")] == [7]
    assert [e.step for e in read_events(path, kinds=["step"], session="s01-0a1b2c3d")] == [1]
    (unknown,) = read_events(path, kinds=["from_the_future"])
    assert isinstance(unknown, UnknownEvent)
    assert unknown.to_wire() == lines[3]


def start_of(version: str, name: str = "lineage-log") -> bytes:
    return (
        b'{"format": {"version": "%b", "name": "%b"}, "kind": "session_start", "ts": 1.0, "run": "r", '
        b'"session": "s02-00000000", "ordinal": 2, "start": {"kind": "fresh"}}' % (version.encode(), name.encode())
    )


def test_a_newer_major_version_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        start_of("1.0") + b"\n" + GOOD + b"\n" + start_of("2.3").replace(b'"ordinal": 2', b'"n": []') + b"\n"
    )
    with pytest.raises(NewerFormatError, match=r"lineage-log version 2\.x is newer.*\(1\.x\)"):
        list(read_events(path))
    with pytest.raises(NewerFormatError):
        check_log_format(path)


def test_a_newer_minor_version_is_read_and_its_fields_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(start_of("1.97").replace(b'"ordinal"', b'"mood": "calm", "ordinal"') + b"\n")
    check_log_format(path)
    (found,) = read_events(path)
    assert found.to_wire()["mood"] == "calm"


@pytest.mark.parametrize("version", ["", "x", "1", "99999999999999999999.0", "-2.0", "\u0662.0"])
def test_a_version_that_is_none_is_damage_and_not_a_crash(tmp_path: Path, version: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(start_of(version) + b"\n")
    damage: list[Damage] = []
    try:
        events = list(read_events(path, on_damage=damage.append))
    except NewerFormatError:
        assert version.startswith("9")
    else:
        assert len(events) + len(damage) == 1


@pytest.mark.parametrize("kind", ["missing", "link", "fifo", "folder", "device"])
def test_only_a_regular_file_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "metrics.jsonl"
    if kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    with pytest.raises(NotFoundError if kind == "missing" else LineageError, match=str(path)):
        list(read_lines(path))


def test_reading_closes_the_file_when_the_reader_stops_early(tmp_path: Path, real_log: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(real_log)
    before = len(list(Path("/proc/self/fd").iterdir()))
    lines = read_lines(path)
    next(lines)
    lines.close()  # type: ignore[attr-defined]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
