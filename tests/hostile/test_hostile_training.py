"""A training that goes on with a hostile run: it trains or is refused in words, and writes nothing outside."""

import signal
from pathlib import Path

import hostile_corpus as corpus
import pytest
from hostile_watch import Watch, is_raw, snapshot

import lineage


def train(place: corpus.Place, resume: str) -> None:
    """A session of three steps, as a script without torch would have it."""
    run = lineage.init(place.runs, name="victim", resume=resume)
    with run:
        for number in range(3):
            with run.phase("eval"):
                run.log_eval(loss=0.5)
            run.log(loss=1.0 / (number + 1))
        run.note("a remark")
        run.alert("an alert", code="mine")


@pytest.mark.parametrize("name", corpus.ENTRIES)
def test_a_training_on_a_hostile_run_ends_well_or_is_refused_in_words(
    name: str, tmp_path: Path, good_run: Path, watch: Watch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = corpus.build(name, tmp_path, good_run)
    live(place)
    before = list(snapshot(place.outside))
    told = ""
    previous = signal.getsignal(signal.SIGTERM)
    with watch.forbidding(place.outside) as opened:
        for resume in (str(place.run), "auto", "must"):
            try:
                train(place, resume)
            except (lineage.LineageError, OSError) as error:
                told += str(error)
    assert signal.getsignal(signal.SIGTERM) is previous
    assert not opened
    assert list(snapshot(place.outside)) == before
    assert corpus.CANARY not in told
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert not {char for char in out + err if is_raw(char)}


def live(place: corpus.Place) -> None:
    """Make the last session look as if it had died without an end, so that opening the run has to find its end."""
    path = place.run / "run.json"
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 20:
        return
    try:
        record = place.record
        record["sessions"][-1] |= {"status": "running"}
        for name in ("ended_at", "last_step"):
            record["sessions"][-1].pop(name, None)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    place.write_record(record)
