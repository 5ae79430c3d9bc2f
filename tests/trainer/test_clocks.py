"""A machine whose clock is wrong, or is set while it trains: the training goes on, and every line can be read."""

import time

import pytest

import lineage
from lineage.clock import utc_now

CLOCKS = {
    "the-last-minute": 253_402_300_740.0,
    "beyond-the-calendar": 253_402_300_900.0,
    "far-beyond": 1e15,
    "none-set": 0.0,
    "before-1970": -1000.0,
    "far-before": -1e12,
}


@pytest.mark.parametrize("stands_at", CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize("when", ["before-init", "in-the-loop"])
@pytest.mark.parametrize("ends", ["finishes", "dies"])
def test_a_clock_anywhere_stops_no_training_and_spoils_no_file(make, start, abandon, *, stands_at, when, ends) -> None:
    with pytest.MonkeyPatch.context() as patch:
        real, began = time.time, time.time()

        def wrong() -> float:
            return stands_at + (real() - began)

        def set_clock(step: int) -> None:
            if step == 2:
                patch.setattr(time, "time", wrong)

        if when == "before-init":
            set_clock(2)
        trainer, run = make(), start(system_interval_s=0.0)
        trainer.track(run)
        run.restore()
        trainer.train(run, 8, save_every=3, each=set_clock, stop_after=None if ends == "finishes" else 7)
        run.finish() if ends == "finishes" else abandon(run)
    trainer, run = make(), start(resume=run.id)
    trainer.track(run)
    assert run.restore().position.step == 6
    trainer.train(run, 9)
    run.finish()
    view = lineage.read(run.path)
    assert list(view.damage) == []
    assert view.state == "completed"
    assert view.series("loss").step.tolist() == list(range(1, 10))
    assert [session.status for session in view.record.sessions] == [
        "completed" if ends == "finishes" else "killed",
        "completed",
    ]


@pytest.mark.parametrize(("stands_at", "year"), [(1e15, 9999), (253_402_300_800.0, 9999), (-1.0, 1970)])
def test_a_date_is_the_nearest_that_the_calendar_has(monkeypatch, stands_at, year) -> None:
    monkeypatch.setattr(time, "time", lambda: stands_at)
    assert utc_now().year == year
