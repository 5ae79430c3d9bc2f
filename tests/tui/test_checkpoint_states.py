"""One checkpoint, one word: the screens and `lineage checkpoints` say the same of it."""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lineage.checkpoint import ledger
from lineage.cli import main
from lineage.layout import RunDir
from lineage_schemas import checkpoint as schema

PAYLOAD = b"tensors"


def commit(run_dir: Path, name: str, session: str, *, kind: str = "training") -> Path:
    """A committed generation of one small file."""
    folder = run_dir / ("checkpoints" if kind == "training" else "exports") / name
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(PAYLOAD)
    manifest = schema.Manifest(
        kind=kind,
        name=name,
        created_at=datetime(2025, 11, 29, tzinfo=UTC),
        run=schema.RunPoint(run=run_dir.name, session=session),
        position=schema.Position(step=int(name.split("-")[1]) if kind == "training" else 400, num_updates=1),
        artifacts=[
            schema.Artifact(
                path="model.bin",
                component="model",
                bytes=len(PAYLOAD),
                sha256=hashlib.sha256(PAYLOAD).hexdigest(),
            )
        ],
        components=[],
        recipe=schema.RecipePoint(fingerprint="0" * 64),
        writer=schema.Writer(host="node", pid=1),
    )
    data = json.dumps(manifest.to_wire()).encode()
    (folder / "manifest.json").write_bytes(data)
    (folder / "COMMIT").write_bytes(schema.format_commit(hashlib.sha256(data).hexdigest()))
    return folder


@pytest.fixture
def states(run_dir: Path) -> dict[str, str]:
    """A run with a generation in every state there is: name to the word for it."""
    record = json.loads((run_dir / "run.json").read_text())
    session = record["sessions"][-1]
    book = RunDir(run_dir).ledger
    names = [f"step-{step:08d}-s03-{step:08x}" for step in range(310, 400, 10)]
    session["checkpoints"] = names
    (run_dir / "run.json").write_text(json.dumps(record))
    committed, verified, restored, held, faulty, short, bare, lost, pruned = names
    for name in names[:-2]:
        commit(run_dir, name, session["id"])
        ledger.append(book, "committed", name)
    for name in (verified, restored, held):
        ledger.append(book, "verified", name)
    ledger.append(book, "restored", restored)
    ledger.append(book, "quarantined", held, details={"reason": "the next loss was another"})
    ledger.append(book, "verified", faulty)
    ledger.append(book, "verified", faulty, ok=False)
    (run_dir / "checkpoints" / short / "model.bin").write_bytes(PAYLOAD[:-1])
    (run_dir / "checkpoints" / bare / "model.bin").unlink()
    ledger.append(book, "committed", pruned)
    ledger.append(book, "deleted", pruned)
    (run_dir / "checkpoints" / "step-00000399-s03-0badcafe").mkdir()
    commit(run_dir, "weights", session["id"], kind="weights")
    return {
        committed: "committed",
        verified: "verified",
        restored: "restorable",
        held: "quarantined",
        faulty: "damaged",
        short: "damaged",
        bare: "gone",
        lost: "gone",
        pruned: "gone",
        "step-00000399-s03-0badcafe": "unfinished",
        "weights": "export",
    }


def test_every_state_has_its_word_and_a_mark_of_its_own(states: dict[str, str]) -> None:
    from lineage.checkpoint.generations import STATES as WORDS
    from lineage_tui.screens.checkpoints import STATES
    from lineage_tui.screens.help import help_content

    assert set(states.values()) == set(WORDS) == set(STATES)
    assert len({glyph for glyph, _, _ in STATES.values()}) == len(STATES)
    assert len({flat for _, flat, _ in STATES.values()}) == len(STATES)
    for place in ("checkpoints", "tree"):
        told = help_content(place, 100).plain
        assert all(f"  {STATES[word][0]}        {word}: " in told for word in WORDS)
        assert "quarantined: " not in help_content("runs", 100).plain
    page = Path(__file__).parents[2].joinpath("docs", "checkpoints.md").read_text()
    assert all(f"\n| {word} | " in page for word in WORDS)


def test_the_screens_and_the_command_call_a_checkpoint_by_the_same_word(
    states: dict[str, str], drive, run_dir: Path, runs_dir: Path, *, wait, capsys
) -> None:
    on_screens: dict[str, dict[str, str]] = {}

    async def script(app, pilot) -> None:
        for key, place, column in (("5", "checkpoints", 2), ("6", "tree", 1)):
            await pilot.press(key)
            await wait(app, pilot, lambda place=place: app.screen.place == place and len(app.screen.table.rows) > 6)
            rows = app.screen.table.rows
            on_screens[place] = {row.key.rpartition("/")[2]: row.cells[column].text.split()[-1] for row in rows}

    drive(script, run_dir, runs_dir)
    assert {name: on_screens["checkpoints"][name] for name in states} == states
    in_the_tree = {name: on_screens["tree"][name] for name in states if name in on_screens["tree"]}
    assert in_the_tree == {name: states[name] for name in in_the_tree}
    assert len(in_the_tree) == 9
    assert main(("checkpoints", str(run_dir), "--json")) == 1
    document = json.loads(capsys.readouterr().out)
    said = {one["name"]: one["state"] for one in document["generations"]}
    assert said == {name: state for name, state in states.items() if name in said}
    assert len(said) == 8
    main(("checkpoints", str(run_dir)))
    table = capsys.readouterr().out.splitlines()
    for name, state in said.items():
        (line,) = [line for line in table if name in line]
        assert f" {state} " in line


def test_a_fault_that_a_verification_found_is_in_the_list_and_the_code_is_1(
    run_dir: Path, tmp_path: Path, capsys
) -> None:
    record = json.loads((run_dir / "run.json").read_text())
    folder = commit(run_dir, "step-00000310-s03-00000001", record["sessions"][-1]["id"])
    assert main(("checkpoints", str(run_dir))) == 0
    (folder / "model.bin").write_bytes(PAYLOAD[::-1])
    assert main(("checkpoints", str(run_dir))) == 0  # the size is right, and nobody looked inside
    capsys.readouterr()
    assert main(("verify", str(run_dir))) == 1
    assert ": 0 of 1 verified" in capsys.readouterr().out
    assert main(("checkpoints", str(run_dir))) == 1
    assert "damaged: step-00000310-s03-00000001: the last verification found a fault" in capsys.readouterr().err
    shutil.copy(folder / "manifest.json", tmp_path)
    (folder / "model.bin").write_bytes(PAYLOAD)
    assert main(("verify", str(run_dir))) == 0
    assert main(("checkpoints", str(run_dir))) == 0


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
def test_a_pin_is_seen_beside_the_name_at_any_width_and_told(
    states: dict[str, str], drive, run_dir: Path, runs_dir: Path, *, wait, text_of, size: tuple[int, int]
) -> None:
    name = next(name for name, state in states.items() if state == "verified")

    async def script(app, pilot) -> None:
        await pilot.press("5")
        await wait(app, pilot, lambda: len(app.screen.table.rows) > 6)
        app.screen.table.select([row.key for row in app.screen.table.rows].index(name))
        await pilot.pause(0.05)
        before = text_of(app)
        assert not any(" pin  step-" in line for line in before)
        await pilot.press("p")
        await wait(
            app,
            pilot,
            lambda: any(line.split()[:1] == ["▌"] and "320" in line and " pin  step-" in line for line in text_of(app)),
        )
        assert f"pinned {name}" in text_of(app)[-1]
        await pilot.press("p")
        await wait(app, pilot, lambda: f"unpinned {name}" in text_of(app)[-1])
        await wait(app, pilot, lambda: not any(" pin  step-" in line for line in text_of(app)))
        assert not app._notifications
        app.screen.said.say("")
        await pilot.pause(0.05)
        assert [line.split() for line in text_of(app)[1:]] == [line.split() for line in before[1:]]

    drive(script, run_dir, runs_dir, size)
    pinned = [line.action for line in ledger.read(RunDir(run_dir).ledger) if "pinned" in line.action]
    assert pinned == ["pinned", "unpinned"]


def test_what_is_gone_is_not_pinned_and_the_screen_says_why(
    states: dict[str, str], drive, run_dir: Path, runs_dir: Path, *, wait, text_of
) -> None:
    name = next(name for name, state in states.items() if state == "gone")

    async def script(app, pilot) -> None:
        await pilot.press("5")
        await wait(app, pilot, lambda: len(app.screen.table.rows) > 6)
        app.screen.table.select([row.key for row in app.screen.table.rows].index(name))
        await pilot.press("p")
        await wait(app, pilot, lambda: f"{name} is gone" in text_of(app)[-1])

    drive(script, run_dir, runs_dir, (80, 24))
    assert not any(line.action == "pinned" for line in ledger.read(RunDir(run_dir).ledger))


def test_keys_about_a_checkpoint_say_so_where_there_is_none(
    drive, run_dir: Path, runs_dir: Path, wait, text_of
) -> None:
    record = json.loads((run_dir / "run.json").read_text())
    for session in record["sessions"]:
        session["checkpoints"] = []
    (run_dir / "run.json").write_text(json.dumps(record))

    async def script(app, pilot) -> None:
        await pilot.press("5")
        await wait(app, pilot, lambda: any("this run saved no checkpoint" in line for line in text_of(app)))
        for key, word in (("p", "pin"), ("v", "verify"), ("w", "ask about")):
            await pilot.press(key)
            await wait(app, pilot, lambda word=word: f"there is no checkpoint to {word}" in text_of(app)[-1])
        assert not app.screen.verifying

    drive(script, run_dir, runs_dir, (80, 24))


def test_the_checkpoint_under_the_cursor_says_what_its_state_means_and_its_times(
    states: dict[str, str], drive, run_dir: Path, runs_dir: Path, *, wait, text_of
) -> None:
    from lineage_tui.screens.checkpoints import MEANINGS

    told: dict[str, str] = {}

    async def script(app, pilot) -> None:
        await pilot.press("5")
        await wait(app, pilot, lambda: len(app.screen.table.rows) > 6)
        for at, row in enumerate(list(app.screen.table.rows)):
            app.screen.table.select(at)
            await pilot.pause(0.05)
            lines = text_of(app)
            border = next(y for y, line in enumerate(lines) if line.startswith("───"))
            assert row.key in lines[border + 1]
            told[row.key] = " ".join(line.strip() for line in lines[border + 1 : -1])

    drive(script, run_dir, runs_dir, (80, 24))
    for name, state in states.items():
        assert f" {state}" in told[name]
        if state in {"committed", "verified", "restorable", "export", "unfinished"}:
            assert MEANINGS[state] in told[name]
    restored = next(name for name, state in states.items() if state == "restorable")
    assert "committed just now, verified just now, restored just now" in told[restored]
    held = next(name for name, state in states.items() if state == "quarantined")
    assert "the next loss was another" in told[held]


def test_the_help_tells_every_verdict_a_list_can_show() -> None:
    from lineage_tui.screens.help import help_content
    from lineage_tui.widgets.words import VERDICT_GLYPHS

    for place in ("runs", "sessions", "tree"):
        told = help_content(place, 100).plain
        for verdict, glyph in VERDICT_GLYPHS.items():
            word = {"nothing_restored": "not restored"}.get(verdict, verdict.replace("_", " "))
            assert any(line.startswith(f"  {glyph} ") and f"{word}:" in line for line in told.splitlines()), verdict
