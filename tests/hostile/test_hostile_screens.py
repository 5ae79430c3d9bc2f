"""The screens over every hostile folder of runs: they open, every screen key is pressed, nothing crashes or leaks."""

import asyncio
import os
from pathlib import Path

import hostile_corpus as corpus
import pytest
from hostile_watch import Watch, is_raw, snapshot

LONG = bool(os.environ.get("LINEAGE_LONG"))
HARD = (
    "escape-sequences-and-markup-everywhere",
    "ten-kilobytes-of-name-everywhere",
    "checkpoints-that-link-out",
    "fifos-in-place-of-files",
    "a-log-of-a-newer-major",
    "huge-numbers-in-the-log",
    "times-beyond-every-calendar",
    "forks-in-a-ring",
    "deep-nesting-everywhere",
)
"""Those whose harm reaches a screen by a way of its own; LINEAGE_LONG=1 takes all."""


@pytest.mark.parametrize("name", corpus.ENTRIES if LONG else HARD)
def test_the_screens_open_and_take_every_screen_key(name: str, tmp_path: Path, good_run: Path, watch: Watch) -> None:
    from lineage_tui import keys
    from lineage_tui.app import LineageApp, Options

    place = corpus.build(name, tmp_path, good_run)
    before = list(snapshot(place.outside))
    app = LineageApp(place.run, place.runs, Options(state_dir=tmp_path / "state"))
    raw: set[str] = set()

    async def main() -> None:
        async with app.run_test(size=(100, 30)) as pilot:
            for _ in range(100):
                if app.snapshot is not None or app.problems:
                    break
                await pilot.pause(0.02)
            for digit, *_ in [*keys.SCREENS, ("exclamation_mark",), ("question_mark",)]:
                await pilot.press(digit)
                await pilot.pause(0.06)
                for strip in app.screen._compositor.render_strips():
                    for segment in strip:
                        raw.update(char for char in segment.text if is_raw(char))
                        assert corpus.CANARY not in segment.text
                if digit in {"exclamation_mark", "question_mark"}:
                    await pilot.press("escape")

    with watch.forbidding(place.outside) as opened:
        asyncio.run(asyncio.wait_for(main(), 40))
    assert not app.crash_text
    assert not raw, [f"U+{ord(char):04X}" for char in sorted(raw)]
    assert list(snapshot(place.outside)) == before
    assert not opened
