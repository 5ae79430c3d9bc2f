"""Every command over every hostile folder of runs (the corpus is built here, nothing of it is committed)."""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import hostile_corpus as corpus
import pytest
from hostile_watch import EXIT_CODES, NOT_RUN, Watch, command_lines, is_raw, snapshot, verbs

from tests.without_rights import UNDER_NO_RIGHTS

LONG = bool(os.environ.get("LINEAGE_LONG"))
THOROUGH = {
    "escape-sequences-and-markup-everywhere",
    "huge-numbers-in-the-log",
    "times-beyond-every-calendar",
    "only-non-finite-values",
}
"""Entries over which each flag and each choice of each command is tried, too; LINEAGE_LONG=1 makes it all of them, and
aims each command also at the run's path and at its last session."""

HEAVY = {
    "a-record-of-a-hundred-megabytes",
    "a-recipe-of-tens-of-thousands-of-values",
    "events-by-the-hundred-thousand",
    "ten-thousand-entries-in-checkpoints",
    "a-thousand-sessions-and-tags",
}
"""Entries over which the short form tries each verb bare and once."""


@pytest.mark.parametrize("name", corpus.ENTRIES)
def test_every_command_answers_and_touches_nothing_outside(
    name: str, tmp_path: Path, good_run: Path, watch: Watch
) -> None:
    place = corpus.build(name, tmp_path, good_run)
    before = list(snapshot(place.outside))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    targets = place.targets if LONG else [place.targets[0], *place.targets[3:]]
    brief = name in HEAVY and not LONG
    faults = []
    for line in command_lines(every=LONG or name in THOROUGH, scratch=scratch):
        if brief and line.words and not line.changes and line.num_targets:
            continue
        aims = [str(place.runs)] if line.verb == "ls" else targets[:1] if line.endless else targets
        for target in aims if line.num_targets else [""]:
            outcome = watch.run(
                line.argv(target, place.runs, f"{place.run.name}@2"),
                place.outside,
                interrupt_after_s=0.2 if line.endless else None,
            )
            faults += [str(outcome)] if outcome.faults else []
            if line.is_json and outcome.code == 0 and line.verb != "log":
                json.loads(outcome.out)
            assert corpus.CANARY not in outcome.out + outcome.err, outcome.argv
    assert list(snapshot(place.outside)) == before
    assert not faults, "\n".join(faults)


def test_every_verb_is_tried_but_those_with_a_reason(tmp_path: Path) -> None:
    from lineage import cli

    tried = {line.verb for line in command_lines(every=False, scratch=tmp_path)}
    assert tried | set(NOT_RUN) == {*cli.VERBS, *cli._entry_points()}
    assert {"tui", "plot", "repair", "verify", "audit"} <= tried
    assert all(parser.format_help() for parser in verbs().values())


def test_an_interrupt_that_meets_the_garbage_collector_is_not_lost(tmp_path: Path, watch: Watch, monkeypatch) -> None:
    class Thing:
        pass

    def endless(_argv: list[str]) -> int:
        def _remove(_ref: object) -> None:
            time.sleep(0.3)

        thing = Thing()
        kept = weakref.ref(thing, _remove)
        del thing  # the interrupt comes while the callback runs
        while kept() is None:
            time.sleep(0.01)
        return 0

    from lineage import cli

    monkeypatch.setattr(cli, "main", endless)
    outcome = watch.run([], tmp_path, limit_s=10, interrupt_after_s=0.1)
    assert str(outcome.code).startswith("raised KeyboardInterrupt")


def test_the_watch_sees_a_read_outside_a_raw_character_and_a_hang(tmp_path: Path, watch: Watch, monkeypatch) -> None:
    """A net without a hole in it: each of the things it must catch is done once."""
    from lineage import cli

    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary.json").write_text(corpus.CANARY)
    (tmp_path / "link").symlink_to(outside / "canary.json")

    def wicked(words: list[str]) -> int:
        if words == ["hang"]:
            time.sleep(30)
        sys.stdout.write((tmp_path / "link").read_text() + "\x1b[2J")
        return 7

    monkeypatch.setattr(cli, "main", wicked)
    faults = " ".join(watch.run(["read"], outside).faults)
    assert "exit code 7" in faults
    assert "U+001B" in faults
    assert f"opened open {outside}/canary.json" in faults
    assert "none within" in str(watch.run(["hang"], outside, limit_s=0.2).code)


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "LINEAGE_RUNS"}
    return subprocess.run(
        [sys.executable, "-m", "lineage", *words], capture_output=True, timeout=30, cwd=cwd, env=environment, stdin=subprocess.DEVNULL
    )  # fmt: skip


@pytest.mark.parametrize("words", [["ls", "--json"], ["show"], ["log"], ["tui"], ["plot"], ["checkpoints"]])
def test_a_real_process_says_nothing_a_terminal_obeys(words: list[str], tmp_path: Path, good_run: Path) -> None:
    place = corpus.build("escape-sequences-and-markup-everywhere", tmp_path, good_run)
    done = run([*words, str(place.runs if words[0] == "ls" else place.run)], tmp_path)
    assert done.returncode in EXIT_CODES
    assert (done.returncode == 2) == (words == ["tui"])  # no terminal, no screens
    assert b"Traceback" not in done.stderr
    text = (done.stdout + done.stderr).decode("utf-8")
    assert not {char for char in text if is_raw(char)}


def test_a_reader_that_follows_ends_on_ctrl_c_with_130(tmp_path: Path, good_run: Path) -> None:
    place = corpus.build("garbage-between-good-lines", tmp_path, good_run)
    process = subprocess.Popen(
        [sys.executable, "-m", "lineage", "log", str(place.run), "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_fifo_in_place_of_every_file_hangs_no_real_process(tmp_path: Path, good_run: Path) -> None:
    place = corpus.build("fifos-in-place-of-files", tmp_path, good_run)
    corpus.ENTRIES["fifos-in-checkpoints"](place)
    for words in (["ls", str(place.runs)], ["verify", str(place.run)], ["checkpoints", str(place.run)]):
        assert run(words, tmp_path).returncode in {0, 1, 3}


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["show", "--tree"],
        ["log"],
        ["export"],
        ["audit"],
        ["diff"],
        ["explain", "--step", "5"],
        ["plot"],
        ["checkpoints"],
        ["checkpoints", "pin", "newest"],
        ["verify"],
        ["repair"],
        ["repair", "--dry-run"],
        ["whence"],
    ],
    ids="-".join,
)
def test_what_may_not_be_entered_is_told_with_a_next_step(words: list[str], tmp_path: Path, good_run: Path) -> None:
    place = corpus.build("folders-without-permission", tmp_path, good_run)
    try:
        for target in ("closed", str(place.runs / "closed"), place.run.name):
            if target == "closed" and words == ["whence"]:
                continue  # takes paths alone
            line = [words[0], "--runs", str(place.runs), target, *words[1:]]
            command = [sys.executable, "-c", UNDER_NO_RIGHTS, *line]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
            if done.returncode == 77:
                pytest.skip("the rights of root cannot be given away here")
            assert done.returncode in EXIT_CODES - {2, 5, 130}
            assert "Traceback" not in done.stderr
            assert "defect of Lineage" not in done.stderr
            if target != place.run.name:
                assert done.returncode == 1, done.stderr
                assert "Permission denied" in done.stderr
                assert "  try: ls -l shows whose it is" in done.stderr
                assert done.stdout == ""
    finally:
        for folder in (place.runs / "closed", place.run / ".cache", place.run / "checkpoints"):
            folder.chmod(0o700)


@pytest.mark.parametrize("gone", ["COMMIT", "model.safetensors", "everything"])
def test_a_generation_caught_in_the_middle_of_a_prune_is_no_damage(gone: str, tmp_path: Path, good_run: Path) -> None:
    """The ledger is told first; without its word the same folder is damage."""
    import shutil

    from lineage.checkpoint import ledger
    from lineage.checkpoint.discover import discover
    from lineage.checkpoint.generations import list_generations
    from lineage.checkpoint.verify import verify_run

    place = corpus.build("nothing-wrong", tmp_path, good_run)
    first, second = place.generations
    shutil.rmtree(first) if gone == "everything" else (first / gone).unlink()
    assert not verify_run(place.run, record=False).ok
    assert discover(place.run).rejected
    ledger.append(place.run / "checkpoints" / "ledger.jsonl", "deleted", first.name)
    assert verify_run(place.run, record=False).ok
    assert not any(generation.problem for generation in list_generations(place.run))
    assert [candidate.name for candidate in discover(place.run).candidates] == [second.name]
    (second / "COMMIT").unlink()
    assert not verify_run(place.run, record=False).ok
