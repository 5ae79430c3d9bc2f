"""A long log is drawn while it is read: seldom enough to cost little, and the bar moves in between."""

from pathlib import Path

import pytest

from benchmarks.synthetic import write_run
from lineage_tui import follower
from lineage_tui.follower import RunFollower
from lineage_tui.messages import ReadProgress, SnapshotReady


@pytest.fixture(scope="module")
def long_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    return write_run(folder, steps=9000, sessions=3, metrics=4, overlap=50, checkpoint_every=1000, eval_every=500)


@pytest.fixture
def in_pieces(monkeypatch, long_run):
    """The log is read in some forty pieces, and has no cache."""
    size = (long_run / "metrics.jsonl").stat().st_size
    monkeypatch.setattr(follower, "FIRST_BYTES", size // 40)
    monkeypatch.setattr(follower, "PIECE_BYTES", size // 40)
    monkeypatch.setattr(follower, "PROGRESS_S", 0.0)
    monkeypatch.setattr(follower, "DRAW_S", 0.0)
    (long_run / ".cache" / "columns-1.bin").unlink(missing_ok=True)
    return long_run


def follow(run: Path, until) -> list:
    """What a follower says, up to the message of which `until` is true."""
    said = []

    def post(message) -> None:
        said.append(message)
        if until(message):
            reader.stop()

    reader = RunFollower(run, post)
    reader.run()
    return said


def is_whole(message) -> bool:
    return isinstance(message, SnapshotReady) and not message.snapshot.num_unread


def test_while_a_long_log_is_read_every_message_knows_more_of_it_than_the_one_before(in_pieces) -> None:
    said = follow(in_pieces, is_whole)
    unread = [m.num_unread if isinstance(m, ReadProgress) else m.snapshot.num_unread for m in said]
    assert unread == sorted(set(unread), reverse=True)
    assert unread[-1] == 0
    assert len(said) > 30


@pytest.mark.parametrize(("share", "most"), [(0, 41), (1_000_000, 2)])
def test_pictures_come_the_more_seldom_the_longer_one_takes(in_pieces, monkeypatch, share, most) -> None:
    """The last of them is the whole: none comes when less is left to read than was read since the one before."""
    monkeypatch.setattr(follower, "READING", share)
    said = follow(in_pieces, is_whole)
    pictures = [m.snapshot for m in said if isinstance(m, SnapshotReady)]
    assert 2 <= len(pictures) <= most
    begin = pictures[0].num_unread
    for picture in pictures[1:-1]:
        assert picture.num_unread > begin // 2
        begin = picture.num_unread


def test_the_columns_are_kept_once_the_whole_was_shown_and_not_before(in_pieces) -> None:
    cache = in_pieces / ".cache" / "columns-1.bin"
    follow(in_pieces, is_whole)  # left as soon as it was shown
    assert not cache.exists()
    said = follow(in_pieces, lambda message: is_whole(message) and message.snapshot.resumes)
    assert is_whole(said[-1])
    assert cache.exists()


def test_the_bar_moves_between_two_pictures(drive, in_pieces, monkeypatch, wait, text_of) -> None:
    shown = follow(in_pieces, lambda m: isinstance(m, SnapshotReady))[0].snapshot
    monkeypatch.setattr(RunFollower, "run", lambda self: self._post(SnapshotReady(shown)))

    async def script(app, pilot):
        await wait(app, pilot, lambda: "reading" in text_of(app)[0])
        before = text_of(app)[0]
        app.post_message(ReadProgress(shown.key, shown.num_bytes // 4, shown.num_bytes))
        await wait(app, pilot, lambda: "75%" in text_of(app)[0])
        assert "75%" not in before

    drive(script, in_pieces, in_pieces.parent)
