"""Run folders come from other people: every verb answers each of them with a documented code, and obeys none."""

import json
import os
import shutil
from pathlib import Path

import pytest

from lineage.cli import VERBS, main
from lineage.cli.diagnostics import ExitCode

REFS = [verb for verb in VERBS if verb not in {"demo", "ls", "schema", "whence"}]
EVIL = "\x1b[31m\x1b]0;x\x07\u202e\u200b[bold red]x[/]\x9b"


def rewrite(run: Path, change) -> None:
    record = json.loads((run / "run.json").read_text())
    change(record)
    (run / "run.json").write_text(json.dumps(record))


def evil_words(run: Path) -> None:
    def change(record):
        record["notes"] = record["name"] = EVIL
        record["tags"] = [EVIL]
        for session in record["sessions"]:
            session |= {"host": EVIL, "reason": EVIL, "argv": [EVIL]}
            session["recipe"]["value"][EVIL] = EVIL
            session["source"] |= {"branch": EVIL, "remote": EVIL}
        for environment in record["environments"].values():
            environment["packages"][EVIL] = EVIL

    rewrite(run, change)
    lines = (run / "metrics.jsonl").read_text().replace('"loss"', json.dumps(EVIL)).replace("SIGTERM", "\\u001b[2J")
    (run / "metrics.jsonl").write_text(lines)


def huge_numbers(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text()
    text = text.replace('"tokens":8192', '"tokens":' + "9" * 400).replace('"ts":17', '"ts":1e3')
    (run / "metrics.jsonl").write_text(text)


def huge_times(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text().replace('"ts":17', '"ts":9999999999999999917')
    (run / "metrics.jsonl").write_text(text)
    rewrite(run, lambda record: record.update(created_at="9999-12-31T23:59:59+00:00"))


def huge_steps(run: Path) -> None:
    text = (
        (run / "metrics.jsonl")
        .read_text()
        .replace('"step":299', f'"step":{2**63 - 1}')
        .replace('"step":300', f'"step":{2**70}')
    )
    (run / "metrics.jsonl").write_text(text)


def deep_record(run: Path) -> None:
    (run / "run.json").write_text('{"format":' * 100_000)


def wrong_types(run: Path) -> None:
    (run / "run.json").write_text("[1, 2, 3]")


def no_record(run: Path) -> None:
    (run / "run.json").unlink()


def neither(run: Path) -> None:
    (run / "run.json").unlink()
    (run / "metrics.jsonl").unlink()


def pipes(run: Path) -> None:
    for name in ("run.json", "metrics.jsonl", "run.lock"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)


def log_is_a_pipe(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")


def folders(run: Path) -> None:
    for name in ("run.json", "metrics.jsonl", "run.lock"):
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()


def links_out(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/etc/passwd")
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to("/etc")


def loop(run: Path) -> None:
    shutil.rmtree(run)
    run.symlink_to(run.name)


def link_in_itself(run: Path) -> None:
    (run / "checkpoints" / "step-00000001-s01-00000000").symlink_to(run)


def zeros(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(bytes(100_000))


def garbage(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(bytes(range(256)) * 500)


def twice(run: Path) -> None:
    rewrite(run, lambda record: record["sessions"].extend(record["sessions"]))


def circular(run: Path) -> None:
    def change(record):
        for session in record["sessions"]:
            session["start"] |= {"kind": "resume", "session": record["sessions"][-1]["id"], "step": 10**15}
        record["parent"] = {"run": record["id"], "checkpoint": "step-00000001-s01-00000000", "step": 1}

    rewrite(run, change)


def negative_last_step(run: Path) -> None:
    rewrite(run, lambda record: record["sessions"][0].update(last_step=-(2**62), ordinal=10**18))


def newer(run: Path) -> None:
    rewrite(run, lambda record: record["format"].update(version="9.0"))


SPOILERS = [
    evil_words, huge_numbers, huge_times, huge_steps, deep_record, wrong_types, no_record, neither, pipes, log_is_a_pipe, folders,
    links_out, loop, link_in_itself, zeros, garbage, twice, circular, negative_last_step, newer,
]  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_every_verb_answers_a_hostile_folder(place, capsys, spoil):
    run = next((place / "runs").iterdir())
    spoil(run)
    lines = [[verb, str(run), *more] for verb in REFS for more in ([], ["--json"]) if (verb, more) != ("explain", None)]
    lines += [["ls"], ["ls", "--json"], ["whence", str(run / "checkpoints")], ["explain", str(run), "--step", "150"]]
    lines += [
        ["show", f"{run}@1"],
        ["log", str(run), "--pretty"],
        ["repair", str(run), "--dry-run"],
        ["diff", f"{run}@1", f"{run}@3"],
    ]
    for words in lines:
        code = main(words)
        out, err = capsys.readouterr()
        assert code in set(ExitCode), words
        for text in (err, "" if "--json" in words or words[0] == "log" else out):
            assert "Traceback" not in text, words
            assert "it is a defect of Lineage" not in text, (words, text)
            assert not {"\x1b", "\u202e", "\u200b", "\x9b", "\x07"} & set(text), (words, text)
        assert "root:" not in out, words


def test_a_name_that_is_no_utf8_is_listed_and_shown(place, capsys):
    run = next((place / "runs").iterdir())
    run.rename(os.fsdecode(os.fsencode(run.parent) + b"/bad-\xff\xfe-name"))
    for words in (["ls"], ["ls", "--json"], ["show", "tiny-gpt"], ["show", "tiny-gpt", "--json"]):
        assert main(words) == 0
        out, _ = capsys.readouterr()
        out.encode("utf-8")
