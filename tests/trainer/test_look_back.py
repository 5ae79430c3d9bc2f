"""What a resumed session reads of the log before it: the right place, in little memory, whatever others do to the file."""

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.trainer import continuity
from lineage.trainer.continuity import _begin_of_reference

NAME = "step-00000010-s01-7f3a9c1e"
SAVED = f'{{"kind":"checkpoint_saved","ts":1.0,"step":10,"checkpoint":"{NAME}"}}\n'.encode()
RESTORED = f'{{"kind":"checkpoint_restored","ts":1.0,"step":10,"checkpoint":"{NAME}"}}\n'.encode()
STEP = b'{"kind":"step","ts":1.0,"step":10,"metrics":{"loss":1.5}}\n'
NOTE = f'{{"kind":"note","text":"\\"checkpoint\\":\\"{NAME}\\""}}\n'.encode()


def naive(data: bytes, before: int) -> int:
    """The same place, looked for in lines held all at once."""
    start, offset = -1, 0
    for line in data.splitlines(keepends=True):
        start = offset if line == SAVED else start
        offset += len(line)
    if start < 0 or start <= before:
        return 0
    return data.find(b"\n", start - before) + 1


@given(
    lines=st.lists(
        st.sampled_from([SAVED, RESTORED, STEP, NOTE, b"not json\n", b"\n", b"x" * 300 + b"\n"]), max_size=40
    ),
    torn=st.sampled_from([b"", SAVED[:-1], SAVED[: len(SAVED) // 2]]),
    block=st.integers(90, 400),
    before=st.integers(1, 200),
)
@settings(max_examples=200, deadline=None)
def test_the_place_is_found_wherever_the_edges_of_the_blocks_fall(tmp_path_factory, lines, torn, block, before) -> None:
    data = b"".join(lines) + torn
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(continuity, "_BLOCK_BYTES", block)
        patch.setattr(continuity, "_BYTES_BEFORE", before)
        found = _begin_of_reference(path, NAME)
    wanted = naive(data if torn != SAVED[:-1] else data + b"\n", before)
    assert found == wanted
    assert found == 0 or data[found - 1 : found] == b"\n"


def large(path: Path, size: int) -> None:
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(STEP * 10_000)


@pytest.mark.parametrize("checkpoint", [NAME, None])
def test_a_log_of_any_length_is_searched_in_a_few_megabytes(tmp_path, checkpoint) -> None:
    path = tmp_path / "metrics.jsonl"
    large(path, 40 << 20)
    tracemalloc.start()
    try:
        assert _begin_of_reference(path, checkpoint) == 0
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("checkpoint", [NAME, None])
def test_a_log_that_is_cut_while_it_is_searched_ends_nothing(tmp_path, checkpoint, monkeypatch) -> None:
    path = tmp_path / "metrics.jsonl"
    large(path, 4 << 20)
    monkeypatch.setattr(continuity, "_MAX_TAIL_BYTES", 1 << 20)
    size = path.stat().st_size
    read = os.pread

    def cut(fd: int, num_bytes: int, offset: int) -> bytes:
        os.truncate(path, 100)
        return read(fd, num_bytes, offset)

    monkeypatch.setattr(os, "pread", cut)
    assert 0 <= _begin_of_reference(path, checkpoint) <= size


def test_a_log_that_is_a_link_is_not_followed(tmp_path) -> None:
    (tmp_path / "elsewhere").write_bytes(SAVED)
    path = tmp_path / "metrics.jsonl"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        _begin_of_reference(path, NAME)


def test_of_millions_of_losses_the_last_ones_are_kept(make, start, abandon, monkeypatch) -> None:
    monkeypatch.setattr(continuity, "_NUM_LOSSES", 4)
    trainer, run = make(), start()
    trainer.track(run)
    run.restore()
    losses = trainer.train(run, 30, stop_after=25)
    abandon(run)
    record = run._recorder.store.record
    session = record.sessions[0].model_copy(
        update={"id": "s02-00000000", "ordinal": 2, "start": record.sessions[0].start.model_copy(update={"step": 20})}
    )
    record = record.model_copy(update={"sessions": [*record.sessions, session]})
    before = continuity.look_back(run.path / "metrics.jsonl", record, session, [])
    assert 4 <= len(before.losses) < 8
    assert before.losses == losses[20 - len(before.losses) : 20]
