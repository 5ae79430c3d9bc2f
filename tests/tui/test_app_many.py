"""Many runs laid over each other: every one has a thread that reads it, whatever the machine has of cores."""

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copies(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`copies(n)`: so many runs, on a machine that says it has one core."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)

    def make(count: int) -> list[Path]:
        folder = tmp_path / "many"
        made = [folder / f"20260101-0000{number:02d}-copy" for number in range(count)]
        for path in made:
            shutil.copytree(run_dir, path)
        return made

    return make


def test_twelve_runs_are_all_read_and_drawn_and_one_of_them_can_be_verified(
    drive, copies, tmp_path, wait, monkeypatch
) -> None:
    runs = copies(12)
    told: list[str] = []
    monkeypatch.setattr("lineage_tui.app.LineageApp.on_answer", lambda _app, message: told.append(message.topic))

    async def script(app, pilot):
        await wait(app, pilot, lambda: app.folder is not None)
        app.open_runs(runs)
        await wait(app, pilot, lambda: len(app.snapshots) == len(runs), 30)
        await wait(app, pilot, lambda: len(app.screen.charts[0].model.series) >= len(runs))
        app.verify(str(runs[0]))
        await wait(app, pilot, lambda: "verify" in told)

    drive(script, None, tmp_path / "many")


def test_more_runs_than_can_be_open_are_cut_off_and_told(
    drive, copies, tmp_path, monkeypatch, *, wait, text_of
) -> None:
    monkeypatch.setattr("lineage_tui.app.MAX_OPEN", 3)
    runs = copies(5)

    async def script(app, pilot):
        app.open_runs(runs)
        assert app.open_keys == tuple(map(str, runs[:3]))
        await wait(app, pilot, lambda: any("the first 3 of 5 runs are shown" in line for line in text_of(app)))
        assert not app._notifications

    drive(script, None, tmp_path / "many")
