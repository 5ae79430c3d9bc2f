"""The columns are what a reader that goes line by line would say, however the bytes arrive."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.synthetic import write_run
from lineage.errors import LineageError, NewerFormatError
from lineage.log import column_cache, columns
from lineage.log.columns import Columns
from lineage.log.writer import encode_event
from lineage_schemas.events import StepEvent, parse_event

SESSION = "s01-00000001"
OTHER = "s02-00000002"


def step(number: int, metrics: dict, session: str = SESSION, **fields) -> bytes:
    event = {"kind": "step", "ts": 1.7e9 + number, "run": "r", "session": session, "step": number, "metrics": metrics}
    return encode_event(event | fields)


def slowly(data: bytes) -> dict:
    """What a reader says that knows nothing of blocks and layouts: the specification of `Columns`."""
    sessions: dict[str, list[StepEvent]] = {}
    rare, bad = [], []
    offset = 0
    for line in data.split(b"\n")[:-1]:
        try:
            orjson.loads(line)
            event = parse_event(line)
        except (LineageError, orjson.JSONDecodeError):
            bad.append(offset)
        else:
            rows = sessions.setdefault(event.session, [])
            if isinstance(event, StepEvent):
                rows.append(event)
            else:
                rare.append(line)
        offset += len(line) + 1
    return {"sessions": sessions, "rare": rare, "bad": bad, "offset": offset}


def bits(values) -> list[int]:
    return np.asarray(values, dtype=np.float64).view(np.int64).tolist()


def same(values, expected) -> bool:
    """Equal to the last bit, but any NaN equals any NaN."""
    left, right = np.asarray(values, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    if left.shape != right.shape or (np.isnan(left) != np.isnan(right)).any():
        return False
    number = ~np.isnan(left)
    return bits(left[number]) == bits(right[number])


def check(found: Columns, data: bytes) -> None:
    expected = slowly(data)
    assert found.offset == expected["offset"]
    assert [line.data for line in found.rare] == expected["rare"]
    assert found.num_damaged == len(expected["bad"])
    assert list(found.sessions) == list(expected["sessions"])
    for session, events in expected["sessions"].items():
        read = found.sessions[session]
        assert read.step.tolist() == [event.step for event in events]
        assert same(read.ts, [event.ts for event in events])
        for name in ("duration_s", "tokens", "samples"):
            values = [getattr(event, name) for event in events]
            column = read.optional(name)
            if column is None:
                assert not any(value is not None for value in values)
            else:
                assert same(column, [math.nan if value is None else value for value in values])
        names = list(dict.fromkeys(name for event in events for name in event.metrics))
        assert set(read.metrics) == set(names)
        for name in names:
            rows = [row for row, event in enumerate(events) if name in event.metrics]
            column = read.metrics[name]
            assert same(column.values, [events[row].metrics[name] for row in rows])
            held = np.arange(len(events)) if column.rows is None else column.rows
            assert held.tolist() == rows


numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(min_value=-1e3, max_value=1e3),
    st.integers(min_value=-(2**62), max_value=2**62),
    st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, 3e-5, 0.1, 1e22, 1e23]),
)
names = st.sampled_from(["loss", "lr", 'a"b', "komma,}]", "\u202e", "x" * 50])


@st.composite
def logs(draw) -> bytes:
    """Stretches of lines of one layout, between them everything else that may stand in a log."""
    out = []
    number = 0
    for _ in range(draw(st.integers(1, 5))):
        metrics = draw(st.lists(names, max_size=4, unique=True))
        session = draw(st.sampled_from([SESSION, OTHER]))
        extra = draw(st.sets(st.sampled_from(["duration_s", "tokens", "samples", "witness", "spare"])))
        for _ in range(draw(st.integers(1, 40))):
            number += 1
            fields = {}
            if "duration_s" in extra:
                fields["duration_s"] = draw(st.floats(0, 1e6))
            if "tokens" in extra:
                fields["tokens"] = draw(st.integers(0, 10**9))
            if "samples" in extra:
                fields["samples"] = 8
            if "witness" in extra:
                fields["witness"] = {"batch": f"{number:016x}", "lr": {"adamw": [draw(st.floats(0, 1)), 0.5]}}
            if "spare" in extra:
                fields["spare"] = {"deep": [1, number, "text"]}
            out.append(step(number, {name: draw(numbers) for name in metrics}, session, **fields))
        out.append(draw(st.sampled_from(BETWEEN)))
    tail = draw(st.sampled_from([b"", b'{"kind":"step","ts":1', b"\0\0"]))
    return b"".join(out) + tail


BETWEEN = [
    b"",
    b"\n",
    b"garbage\n",
    b"\xff\xfe\n",
    b'{"kind":"eval","ts":1.0,"run":"r","session":"s01-00000001","step":3,"metrics":{"loss":null}}\n',
    b'{"kind":"new_kind","ts":1.0,"run":"r","session":"s01-00000001"}\n',
    b'{"kind":"step","ts":1.0,"run":"r","session":"s01-00000001","step":0,"metrics":{}}\n',
    b'{"kind":"step","ts":1.0,"run":"r","session":"s01-00000001","step":7,"metrics":{"loss":true}}\n',
    b'{"kind":"step","ts":1.0,"run":"r","session":"s01-00000001","step":8,"metrics":{"loss":1,"loss":2}}\r\n',
    b'{"kind":"step","ts":1,"run":"r","session":"s01-00000001","step":9,"metrics":{"loss":null}}\n',
    b"[" * 5000 + b"\n",
]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=logs(), block=st.sampled_from([1, 37, 300, 5000, 1 << 20]), steps=st.integers(1, 6), ahead=st.booleans())
def test_columns_are_what_the_lines_say_however_they_are_cut(
    tmp_path_factory, monkeypatch, *, data, block, steps, ahead
):
    monkeypatch.setattr(columns, "_BLOCK_BYTES", block)
    monkeypatch.setattr(columns, "_AHEAD_FROM_BYTES", 0 if ahead else 1 << 30)
    monkeypatch.setattr(columns, "_LEARN_AFTER", 2)
    folder = tmp_path_factory.mktemp("run")
    log = folder / "metrics.jsonl"
    found = Columns(folder)
    for index in range(steps):  # as a writer appends
        log.write_bytes(data[: len(data) * (index + 1) // steps])
        found.refresh()
    check(found, data)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(), min_size=60, max_size=200))
def test_every_float_comes_back_to_the_last_bit(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("run")
    (folder / "metrics.jsonl").write_bytes(b"".join(step(i + 1, {"loss": value}) for i, value in enumerate(values)))
    column = Columns.open(folder).sessions[SESSION].metrics["loss"]
    assert same(column.values, values)


# Each is a step line that only looks like the others; what it holds is not what the schema allows there.
SPOILED = {
    "a string for a number": (b'"loss":0.5', b'"loss":"NaN"'),
    "a number JSON has not": (b'"loss":0.5', b'"loss":1-2'),
    "NaN as a word": (b'"loss":0.5', b'"loss":NaN'),
    "true for a number": (b'"loss":0.5', b'"loss":true'),
    "an opened bracket": (b'"loss":0.5', b'"loss":1['),
    "a leading zero": (b'"loss":0.5', b'"loss":00.5'),
    "step zero": (b'"step":77,', b'"step":0,'),
    "half a step": (b'"step":77,', b'"step":77.5,'),
    "no step": (b'"step":77,', b'"step":null,'),
    "a negative duration": (b'"duration_s":0.25', b'"duration_s":-0.25'),
    "half a token": (b'"tokens":64', b'"tokens":64.5'),
    "negative tokens": (b'"tokens":64', b'"tokens":-64'),
    "no time": (b'"ts":1700000077.0', b'"ts":null'),
    "another kind of session": (b"s01-00000001", b"s01-0000000Z"),
    "a digest that is none": (b'"batch":"00000000000000ab"', b'"batch":"00000000000000AB"'),
    "words behind the end": (b"}}\n", b"}} no\n"),
    "a changed key": (b'"loss"', b'"los\x00"'),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_a_line_among_many_of_its_layout_is_refused_for_its_own_fault(tmp_path, fault):
    before, after = SPOILED[fault]
    lines = [
        step(n, {"loss": 0.5}, duration_s=0.25, tokens=64, witness={"batch": f"{0xAB:016x}"}) for n in range(1, 201)
    ]
    assert before in lines[76]
    lines[76] = lines[76].replace(before, after)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    found = Columns.open(tmp_path)
    assert found.num_damaged == 1
    assert found.damage[0].offset == sum(map(len, lines[:76]))
    assert found.sessions[SESSION].step.tolist() == [n for n in range(1, 201) if n != 77]
    check(found, b"".join(lines))


def test_a_torn_tail_is_neither_read_nor_damage_until_its_newline_comes(tmp_path):
    log = tmp_path / "metrics.jsonl"
    whole = step(1, {"loss": 1.0}) + step(2, {"loss": 2.0})
    log.write_bytes(whole[:-1])
    found = Columns.open(tmp_path)
    assert found.sessions[SESSION].step.tolist() == [1]
    assert (found.damage, found.num_unread_bytes > 0) == ([], True)
    assert not found.refresh()
    log.write_bytes(whole)
    assert found.refresh()
    assert found.sessions[SESSION].step.tolist() == [1, 2]
    assert found.num_unread_bytes == 0


def test_a_refresh_reads_the_appended_bytes_and_no_others(tmp_path, monkeypatch):
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b"".join(step(n, {"loss": 0.5}) for n in range(1, 3001)))
    found = Columns.open(tmp_path)
    before = log.stat().st_size
    reads = []
    real = os.pread

    def counting(fd, count, offset):
        reads.append((offset, count))
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", counting)
    assert not found.refresh()
    assert reads == []
    with log.open("ab") as out:
        out.write(step(3001, {"loss": 0.25}))
    assert found.refresh()
    assert min(offset for offset, _ in reads) == before
    assert found.sessions[SESSION].metrics["loss"].values[-1] == 0.25


def test_arrays_handed_out_stay_as_they_were_while_the_log_grows(tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b"".join(step(n, {"loss": float(n)}) for n in range(1, 101)))
    found = Columns.open(tmp_path)
    held = found.sessions[SESSION].metrics["loss"].values
    for n in range(101, 1000):
        with log.open("ab") as out:
            out.write(step(n, {"loss": -1.0}))
        found.refresh()
    assert held.tolist() == list(map(float, range(1, 101)))
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 7.0


@pytest.mark.parametrize("how", ["replaced", "cut", "deleted"])
def test_a_log_that_is_no_longer_the_one_read_is_read_anew(tmp_path, how):
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b"".join(step(n, {"loss": 0.5}) for n in range(1, 50)))
    found = Columns.open(tmp_path)
    if how == "deleted":
        log.unlink()
        assert found.refresh()
        assert found.sessions == {}
        return
    new = step(7, {"loss": 7.0})
    if how == "replaced":
        (tmp_path / "new").write_bytes(new + b"".join(step(n, {"loss": 7.0}) for n in range(100, 300)))
        (tmp_path / "new").replace(log)
    else:
        log.write_bytes(new)
    assert found.refresh()
    assert found.num_rebuilds == 1
    assert found.sessions[SESSION].step[0] == 7


def test_sessions_and_names_without_end_cost_no_more_than_their_bytes(tmp_path):
    lines = [step(n, {f"m{n}": 1.0}) for n in range(1, 4001)]
    lines += [step(1, {"loss": 1.0}, f"s{n}-{n:08x}") for n in range(10, 10 + columns.MAX_SESSIONS)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    found = Columns.open(tmp_path)
    assert len(found.sessions) == columns.MAX_SESSIONS
    assert found.num_damaged == 1
    assert "beyond the first" in found.damage[0].reason
    wide = found.sessions[SESSION]
    assert sum(len(column.values) for column in wide.metrics.values()) == 4000


def test_a_line_that_is_too_long_is_one_damage_and_its_neighbours_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "MAX_LINE_BYTES", 5000)
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(columns, "_AHEAD_FROM_BYTES", 0)
    long = step(2, {"x" * 9000: 1.0})
    (tmp_path / "metrics.jsonl").write_bytes(step(1, {"loss": 1.0}) + long + step(3, {"loss": 3.0}))
    found = Columns.open(tmp_path)
    assert found.sessions[SESSION].step.tolist() == [1, 3]
    assert [(d.offset, d.size_bytes) for d in found.damage] == [(len(step(1, {"loss": 1.0})), len(long))]


def test_a_log_of_a_newer_major_version_is_refused_by_name(tmp_path):
    line = {
        "kind": "session_start",
        "ts": 1.0,
        "run": "r",
        "session": SESSION,
        "format": {"name": "lineage-log", "version": "2.0"},
    }
    (tmp_path / "metrics.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    with pytest.raises(NewerFormatError, match="2"):
        Columns.open(tmp_path)


@pytest.mark.parametrize("what", ["fifo", "folder", "link"])
def test_something_else_in_the_place_of_the_log_is_refused_at_once(tmp_path, what):
    log = tmp_path / "metrics.jsonl"
    if what == "fifo":
        os.mkfifo(log)
    elif what == "folder":
        log.mkdir()
    else:
        log.symlink_to("/etc/hostname")
    with pytest.raises(LineageError):
        Columns.open(tmp_path)


class TestCache:
    """What `.cache/` holds saves time and is never believed."""

    @pytest.fixture
    def run(self, tmp_path) -> Path:
        return write_run(tmp_path, steps=4500, metrics=5, checkpoint_every=500)

    def cached(self, run: Path) -> Path:
        Columns.open(run)
        return run / ".cache" / column_cache.NAME

    def parsed(self, monkeypatch) -> list[int]:
        """Sizes of the blocks that were parsed from now on."""
        sizes = []
        real = Columns._take
        monkeypatch.setattr(
            Columns, "_take", lambda self, block: (sizes.append(block.size_bytes), real(self, block))[1]
        )
        return sizes

    def test_a_second_reader_parses_nothing_and_says_the_same(self, run, monkeypatch):
        assert self.cached(run).exists()
        sizes = self.parsed(monkeypatch)
        found = Columns.open(run)
        assert sizes == []
        check(found, (run / "metrics.jsonl").read_bytes())

    def test_what_was_appended_is_all_that_is_parsed(self, run, monkeypatch):
        self.cached(run)
        last = Columns.open(run).rare[-1]
        line = step(99_999, {"loss": 1.5}, last.session)
        with (run / "metrics.jsonl").open("ab") as out:
            out.write(line)
        sizes = self.parsed(monkeypatch)
        found = Columns.open(run)
        assert sizes == [len(line)]
        check(found, (run / "metrics.jsonl").read_bytes())

    @pytest.mark.parametrize("seed", range(40))
    def test_a_cache_with_a_flipped_byte_is_rebuilt(self, run, monkeypatch, seed):
        path = self.cached(run)
        data = bytearray(path.read_bytes())
        at = np.random.default_rng(seed).integers(0, 400 if seed % 2 else len(data))
        data[at] ^= 1 << (seed % 8)
        path.write_bytes(data)
        sizes = self.parsed(monkeypatch)
        found = Columns.open(run)
        assert sum(sizes) == found.offset
        check(found, (run / "metrics.jsonl").read_bytes())

    @pytest.mark.parametrize("junk", [b"", b"x", b"LNGCOLS1", b"LNGCOLS1" + b"\xff" * 100, b"\0" * 4096])
    def test_a_cache_that_is_none_is_rebuilt(self, run, junk):
        path = self.cached(run)
        path.write_bytes(junk)
        check(Columns.open(run), (run / "metrics.jsonl").read_bytes())
        assert path.stat().st_size > 4096

    def test_a_cut_cache_is_rebuilt(self, run):
        path = self.cached(run)
        path.write_bytes(path.read_bytes()[:-100])
        check(Columns.open(run), (run / "metrics.jsonl").read_bytes())

    @pytest.mark.parametrize("how", ["cut", "overwritten"])
    def test_a_cache_that_is_cut_or_overwritten_under_a_reader_changes_nothing_for_it(self, run, how):
        """In a process of its own: a mapped file that is cut ends its reader by a signal."""
        path = self.cached(run)
        script = """if True:
            import sys
            from pathlib import Path
            from lineage.log.columns import Columns
            columns = Columns.open(Path(sys.argv[1]))
            assert columns.sessions
            cache = Path(sys.argv[2])
            size = cache.stat().st_size
            with cache.open("r+b") as out:
                out.truncate(0) if sys.argv[3] == "cut" else out.write(bytes(size))
            print([int(session.step.sum()) for session in columns.sessions.values()])
        """
        sums = [int(session.step.sum()) for session in Columns.open(run).sessions.values()]
        command = [sys.executable, "-c", script, str(run), str(path), how]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{sums}\n", "")

    def test_the_cache_of_another_log_is_ignored(self, run, monkeypatch):
        self.cached(run)
        copy = run.with_name("copy")
        shutil.copytree(run, copy)
        sizes = self.parsed(monkeypatch)
        found = Columns.open(copy)
        assert sum(sizes) == found.offset

    def test_a_log_edited_in_place_is_read_anew(self, run):
        self.cached(run)
        log = run / "metrics.jsonl"
        data = bytearray(log.read_bytes())
        middle = data.index(b'"loss":', len(data) // 2) + len(b'"loss":')
        data[middle] = ord("7")
        with log.open("r+b") as out:
            out.write(data)
        status = log.stat()
        os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        check(Columns.open(run), bytes(data))

    def test_a_folder_that_takes_no_cache_is_read_all_the_same(self, run):
        (run / ".cache").write_bytes(b"a file, not a folder")
        check(Columns.open(run), (run / "metrics.jsonl").read_bytes())

    def test_without_cache_nothing_is_written(self, run):
        Columns.open(run, cache=False)
        assert not (run / ".cache").exists()

    def test_no_temporary_file_stays(self, run):
        self.cached(run)
        assert [path.name for path in (run / ".cache").iterdir()] == [column_cache.NAME]

    def test_a_cache_that_leads_out_of_the_folder_is_not_followed(self, run, tmp_path):
        outside = tmp_path / "outside"
        outside.mkdir()
        (run / ".cache").symlink_to(outside)
        Columns.open(run)
        assert list(outside.iterdir()) == []


def test_reading_in_portions_ends_where_reading_at_once_does(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 10_000)
    run = write_run(tmp_path, steps=900)
    data = (run / "metrics.jsonl").read_bytes()
    found = Columns.open(run, cache=False, max_bytes=20_000)
    portions = 1
    while found.num_unread_bytes:
        left = found.num_unread_bytes
        found.refresh(max_bytes=20_000)
        assert found.num_unread_bytes < left
        portions += 1
    assert portions >= len(data) // 40_000
    check(found, data)


def test_json_says_what_python_says(tmp_path):
    """The reference above trusts the schema; this one trusts nobody but the standard library."""
    run = write_run(tmp_path, steps=300, sessions=2)
    found = Columns.open(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for session, read in found.sessions.items():
        expected = [line for line in lines if line["session"] == session and line["kind"] == "step"]
        assert read.metrics["grad_norm"].values.tolist() == [line["metrics"]["grad_norm"] for line in expected]


@pytest.mark.parametrize("second", [b'"metrics"', b'"metr\\u0069cs"'])
def test_of_a_key_that_comes_twice_the_last_one_counts_however_many_such_lines_there_are(tmp_path, second):
    lines = [
        step(n, {"loss": 1.0, "gone": 2.0}).replace(b"}}", b"}," + second + b':{"loss":' + str(n).encode() + b".5}}")
        for n in range(1, 60)
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    found = Columns.open(tmp_path)
    check(found, b"".join(lines))
    assert list(found.sessions[SESSION].metrics) == ["loss"]
    assert found.sessions[SESSION].metrics["loss"].values[0] == 1.5


def test_lines_that_take_the_place_of_a_torn_tail_of_their_length_are_read(tmp_path):
    whole, more = step(1, {"loss": 1.0}), step(2, {"loss": 2.0})
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(whole + b"x" * len(more))
    found = Columns.open(tmp_path, cache=False)
    assert found.num_torn_bytes == len(more)
    with log.open("r+b") as out:
        out.truncate(len(whole))
        out.seek(len(whole))
        out.write(more)
    assert found.refresh()
    check(found, whole + more)


def test_a_newer_major_version_met_again_and_again_adds_nothing_to_what_was_read(tmp_path):
    newer = {"kind": "session_start", "ts": 1.0, "run": "r", "session": OTHER}
    newer |= {"format": {"name": "lineage-log", "version": "2.0"}}
    rare = b'{"kind":"new_kind","ts":1.0,"run":"r","session":"s01-00000001"}\nbad\n'
    (tmp_path / "metrics.jsonl").write_bytes(rare + orjson.dumps(newer) + b"\n")
    found = Columns(tmp_path, cache=False)
    for _ in range(3):
        with pytest.raises(NewerFormatError):
            found.refresh()
        assert (found.offset, found.rare, found.damage) == (0, [], [])
