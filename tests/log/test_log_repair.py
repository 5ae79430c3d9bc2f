from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lineage.log.repair as repair_module
from lineage.errors import LineageError, NewerFormatError, NotFoundError
from lineage.log.reader import read_events, read_lines
from lineage.log.repair import plan_repair, repair
from lineage.log.scan import Damage, scan
from lineage.log.writer import encode_event

Event = Callable[..., dict[str, Any]]

GOOD = b'{"session":"s01-00000000", "ts":1.00, "kind":"note","run":"r","text":"x"}'
FUTURE = b'{"kind":"tachyon","ts":1.0,"run":"r","session":"s01-00000000","speed":[1,2]}\r'


def test_good_lines_stay_byte_for_byte_and_the_rest_goes(tmp_path: Path, real_log: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    damaged = real_log + b"bad\n\0\0\n" + GOOD + b"\n\n" + FUTURE + b'\n{"kind":"step"}\n' + GOOD + b'\n{"ki'
    path.write_bytes(damaged)
    result = repair(path)
    assert path.read_bytes() == real_log + GOOD + b"\n" + FUTURE + b"\n" + GOOD + b"\n"
    assert result.copy_path is not None
    assert result.copy_path.read_bytes() == damaged
    assert re.fullmatch(r"metrics\.jsonl\.damaged-\d{8}T\d{6}Z", result.copy_path.name)
    assert result.size_bytes == path.stat().st_size
    plan = result.plan
    assert (plan.num_good, plan.num_damaged, plan.torn_bytes) == (real_log.count(b"\n") + 3, 4, 4)
    assert plan.damaged_bytes == len(b"bad\n\0\0\n\n" + b'{"kind":"step"}\n')
    assert result.size_bytes + plan.damaged_bytes + plan.torn_bytes == plan.size_bytes
    assert (plan.damage[0].offset, plan.damage[0].num_lines) == (len(real_log), 2)
    assert list(read_events(path))


def test_planning_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"bad\n" + GOOD + b"\ntorn")
    plan = plan_repair(path)
    assert (plan.num_good, plan.num_damaged, plan.torn_offset, plan.torn_bytes) == (1, 1, 4 + len(GOOD) + 1, 4)
    assert not plan.is_clean
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert path.read_bytes() == b"bad\n" + GOOD + b"\ntorn"


@pytest.mark.parametrize("data", [b"", GOOD + b"\n"])
def test_a_clean_log_is_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(data)
    before = path.stat()
    assert repair(path).copy_path is None
    assert path.stat().st_ino == before.st_ino
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@settings(deadline=None)
@given(st.lists(st.sampled_from([GOOD, FUTURE, b"bad", b"", b"\0"]) | st.binary(max_size=9), max_size=12), st.binary())
def test_a_repaired_log_has_no_damage_and_every_line_that_was_good(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], tail: bytes
) -> None:
    folder = tmp_path_factory.mktemp("repair")
    path = folder / "metrics.jsonl"
    data = b"".join(line + b"\n" for line in lines) + tail
    path.write_bytes(data)
    repair(path)
    assert plan_repair(path).is_clean
    assert [line.data for line in scan(path.read_bytes()).lines] == [
        line.data for line in scan(data).lines if line.data in (GOOD, FUTURE)
    ]


def test_a_second_repair_does_not_replace_the_first_copy(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    copies = []
    for bad in (b"first\n", b"second\n"):
        path.write_bytes(bad)
        copy_path = repair(path).copy_path
        assert copy_path is not None
        copies.append(copy_path)
    assert [copy_path.read_bytes() for copy_path in copies] == [b"first\n", b"second\n"]


def test_the_mode_of_the_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"bad\n")
    path.chmod(0o640)
    result = repair(path)
    assert result.copy_path is not None
    assert {stat.S_IMODE(p.stat().st_mode) for p in (path, result.copy_path)} == {0o640}


def test_a_log_that_grows_meanwhile_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"bad\n" + GOOD + b"\n")
    copy_aside = repair_module._copy_aside

    def grow(path: Path) -> Path:
        found = copy_aside(path)
        with path.open("ab") as out:
            out.write(GOOD + b"\n")
        return found

    monkeypatch.setattr(repair_module, "_copy_aside", grow)
    with pytest.raises(LineageError, match="changed while it was repaired"):
        repair(path)
    assert path.read_bytes() == b"bad\n" + GOOD + b"\n" + GOOD + b"\n"
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def test_a_disk_that_fails_meanwhile_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"bad\n" + GOOD + b"\n")

    def fail(out: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(repair_module, "_make_durable", fail)
    with pytest.raises(LineageError, match="No space left"):
        repair(path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("metrics.jsonl", b"bad\n" + GOOD + b"\n")]


def test_a_log_of_a_newer_major_version_is_not_touched(tmp_path: Path, event: Event) -> None:
    path = tmp_path / "metrics.jsonl"
    start = event("session_start", format={"name": "lineage-log", "version": "2.0"})
    path.write_bytes(encode_event(start) + b"bad\n")
    with pytest.raises(NewerFormatError):
        repair(path)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_file_full_of_garbage_is_one_place_in_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n" * 100_000)
    plan = plan_repair(path)
    assert (plan.num_damaged, plan.damaged_bytes) == (100_000, 100_000)
    assert plan.damage == (Damage(0, 100_000, "the line is empty", num_lines=100_000),)


def test_places_beyond_the_list_are_still_counted_and_mended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes((GOOD + b"\nbad\n") * 1_500)
    plan = plan_repair(path)
    assert (len(plan.damage), plan.num_damaged, plan.num_good) == (repair_module.MAX_LISTED, 1_500, 1_500)
    repair(path)
    assert len(list(read_lines(path))) == 1_500


def test_a_missing_log_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        repair(tmp_path / "metrics.jsonl")
