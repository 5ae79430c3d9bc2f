"""ls, show, log, repair and schema: what scripts may rely on, and what people read."""

import json
import subprocess
import sys
import time

import orjson
import pytest

from benchmarks.synthetic import write_run
from lineage.cli.log import describe
from lineage.log.writer import encode_event
from lineage.runs.lock import RunLock
from lineage_schemas.events import KINDS


@pytest.fixture
def run(place):
    return next((place / "runs").iterdir())


def lines_of(run) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


class TestLs:
    def test_json_is_the_contract(self, run, lineage):
        code, out, err = lineage("ls", "--json")
        assert (code, err) == (0, "")
        (found,) = json.loads(out)["runs"]
        last = [line for line in lines_of(run) if line["kind"] == "step"][-1]
        contract = {name: found[name] for name in ("id", "path", "name", "state", "sessions", "last_step", "last_loss")}
        assert contract == {
            "id": run.name,
            "path": f"runs/{run.name}",
            "name": "tiny-gpt",
            "state": "completed",
            "sessions": 3,
            "last_step": 300,
            "last_loss": last["metrics"]["loss"],
        }

    def test_people_see_the_same(self, run, lineage):
        code, out, _ = lineage("ls")
        assert code == 0
        title, row = out.splitlines()
        assert title.split() == ["run", "state", "sessions", "step", "loss", "age", "continued"]
        assert row.split()[:4] == [run.name, "completed", "3", "300"]
        assert row.split()[-1] == "unproven"  # the worst of exact and unproven

    def test_a_diverged_loss_is_named_and_not_hidden(self, place, lineage):
        write_run(place / "runs", name="diverged", steps=50, sessions=1, nan_at=50)
        found = {entry["name"]: entry for entry in json.loads(lineage("ls", "--json")[1])["runs"]}
        assert found["diverged"]["last_loss"] == "nan"

    def test_a_killed_run_is_killed_at_once(self, place, lineage):
        run = write_run(place / "runs", name="dead", steps=50, sessions=1, live=True, started_at=time.time() - 10)
        lock = RunLock.acquire(run, json.loads((run / "run.json").read_text())["sessions"][0]["id"])

        def state() -> str:
            runs = json.loads(lineage("ls", "--json")[1])["runs"]
            return next(entry["state"] for entry in runs if entry["name"] == "dead")

        assert state() == "running"
        lock.close()
        assert state() == "killed"
        assert "tiny-gpt" not in lineage("ls", "--state", "killed")[1]

    def test_a_damaged_record_is_told_and_the_others_are_listed(self, place, run, lineage):
        broken = place / "runs" / "broken"
        broken.mkdir()
        (broken / "run.json").write_text("{")
        code, out, err = lineage("ls")
        assert code == 1
        assert run.name in out
        assert "broken: run.json is damaged" in err

    def test_a_log_whose_record_is_missing_is_a_run_with_a_damage(self, place, run, lineage):
        (run / "run.json").unlink()
        code, out, err = lineage("ls")
        assert (code, run.name in out) == (1, False)
        assert f"{run.name}: run.json is missing" in err
        code, out, err = lineage("plot", run.name, "--metric", "loss")
        assert code == 0
        assert "loss" in out
        assert "run.json" in err
        code, out, err = lineage("verify", run.name[:12])
        assert "put it back from a copy" in err

    @pytest.mark.parametrize("state", [[], ["--state", "killed"]])
    def test_where_the_only_run_is_damaged_it_is_not_said_that_there_are_none(self, run, lineage, state):
        (run / "run.json").write_text("{")
        code, out, err = lineage("ls", *state)
        assert (code, out) == (1, "")
        told, *rest = err.splitlines()
        assert told.startswith(f"{run.name}: run.json is damaged: ")
        assert rest == (["no other runs in runs are killed"] if state else [])

    def test_an_empty_folder_is_fine_and_a_missing_one_is_not(self, place, lineage):
        (place / "empty").mkdir()
        assert lineage("ls", "empty", "--json")[:2] == (0, '{"runs":[]}\n')
        assert lineage("ls", "empty")[:2] == (0, "")
        assert lineage("ls", "nowhere")[0] == 3

    def test_a_run_in_the_place_of_a_folder_is_listed_alone(self, run, lineage):
        assert json.loads(lineage("ls", str(run), "--json")[1])["runs"][0]["id"] == run.name

    def test_the_end_of_a_long_log_is_all_that_is_read(self, place, lineage, monkeypatch):
        import os

        run = write_run(place / "runs", name="long", steps=20_000, sessions=1, skip_every=0)
        read = []
        real = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, count, at: read.append(count) or real(fd, count, at))
        found = json.loads(lineage("ls", "--json")[1])["runs"]
        assert {entry["name"]: entry["last_step"] for entry in found} == {"long": 20_000, "tiny-gpt": 300}
        assert sum(read) < (run / "metrics.jsonl").stat().st_size / 50

    @pytest.mark.slow
    def test_a_thousand_runs_take_less_than_a_second_and_a_half_of_processor_time(self, place, run, cpu_of):
        for number in range(1000):
            copy = place / "many" / f"20260101-000000-run-{number}"
            copy.mkdir(parents=True)
            for name in ("run.json", "metrics.jsonl"):
                (copy / name).hardlink_to(run / name)
        assert min(cpu_of("-m", "lineage", "ls", "many", cwd=place) for _ in range(2)) < 1.5


class TestShow:
    def test_json_is_the_contract(self, run, lineage):
        code, out, _ = lineage("show", "tiny-gpt", "--json")
        assert code == 0
        found = json.loads(out)
        assert {name: found[name] for name in ("id", "name", "state", "parent")} == {
            "id": run.name,
            "name": "tiny-gpt",
            "state": "completed",
            "parent": None,
        }
        first, second, third = found["sessions"]
        assert [s["ordinal"] for s in found["sessions"]] == [1, 2, 3]
        assert [s["state"] for s in found["sessions"]] == ["killed", "preempted", "completed"]
        assert (first["start"]["kind"], first["start"]["step"], first["start"]["checkpoint"]) == ("fresh", 0, None)
        assert second["start"]["kind"] == "resume"
        assert second["start"]["checkpoint"] in first["checkpoints"]
        assert [s["last_step"] for s in found["sessions"]] == [137, 200, 300]
        assert first["continuation"] is None
        assert third["continuation"]["verdict"] == "unproven"

    @pytest.mark.parametrize("ref", ["tiny-gpt@2", "{id}@2", "runs/{id}@2", "{session}"])
    def test_every_form_of_ref_names_the_session(self, run, lineage, ref):
        record = json.loads((run / "run.json").read_text())
        session = record["sessions"][1]["id"]
        code, out, _ = lineage("show", ref.format(id=run.name, session=session), "--json")
        assert code == 0
        assert [s["id"] for s in json.loads(out)["sessions"]] == [session]

    def test_a_session_is_shown_with_recipe_source_and_environment(self, run, lineage):
        code, out, _ = lineage("show", "tiny-gpt@2")
        assert code == 0
        for line in ("  model.layers: 4", "  lr: 0.0003", "  command: train.py --steps 300", "  package torch: 2.13.0"):
            assert line in out.splitlines()

    def test_each_line_is_one_fact_with_a_label(self, run, lineage):
        for ref in ("tiny-gpt", "tiny-gpt@1"):
            for line in lineage("show", ref)[1].splitlines():
                assert not line or ":" in line

    def test_a_missing_record_is_said_and_the_log_is_shown(self, run, lineage):
        (run / "run.json").unlink()
        code, out, err = lineage("show", str(run))
        assert code == 1
        assert err == "damaged: run.json is missing; this is what the log tells\n  try: put run.json back from a copy\n"
        assert "session 3: " in out

    @pytest.mark.parametrize("ref", ["nothing", "tiny-gpt@9", "s09-00000000"])
    def test_what_is_not_there_is_3(self, place, lineage, ref):
        code, out, err = lineage("show", ref)
        assert (code, out) == (3, "")
        assert err.startswith("error: ")

    @pytest.mark.parametrize("ref", ["tiny-gpt@0", "@2", "tiny-gpt@first"])
    def test_what_is_no_ref_is_2(self, place, lineage, ref):
        assert lineage("show", ref)[0] == 2

    def test_hostile_fields_are_shown_and_not_obeyed(self, run, lineage):
        record = json.loads((run / "run.json").read_text())
        record["notes"] = "\x1b[2J[bold]x[/]\u202e"
        record["sessions"][0]["argv"] = ["train.py", "\x1b]0;x\x07"]
        (run / "run.json").write_text(json.dumps(record))
        for ref in ("tiny-gpt", "tiny-gpt@1"):
            out = lineage("show", ref)[1]
            assert "\x1b" not in out
            assert "\u202e" not in out
        assert r"notes: \x1b[2J[bold]x[/]\u202e" in lineage("show", "tiny-gpt")[1]


class TestLog:
    def test_in_a_pipe_the_lines_are_as_they_are(self, run, process):
        done = process("log", "tiny-gpt")
        assert done.returncode == 0
        assert done.stdout == (run / "metrics.jsonl").read_text()

    @pytest.mark.parametrize("kind", ["eval", "fp16_skip", "checkpoint_saved"])
    def test_a_kind_is_that_kind_and_all_of_it(self, run, lineage, kind):
        found = [json.loads(line) for line in lineage("log", "tiny-gpt", "--kind", kind)[1].splitlines()]
        assert found == [line for line in lines_of(run) if line["kind"] == kind]
        assert found

    @pytest.mark.parametrize("words", [["tiny-gpt@2"], ["tiny-gpt", "--session", "2"]])
    def test_a_session_is_that_session_and_all_of_it(self, run, lineage, words):
        ids = [s["id"] for s in json.loads((run / "run.json").read_text())["sessions"]]
        found = [json.loads(line) for line in lineage("log", *words)[1].splitlines()]
        assert found == [line for line in lines_of(run) if line["session"] == ids[1]]

    def test_the_last_ones_are_the_last_of_those_chosen(self, run, lineage):
        found = [json.loads(line) for line in lineage("log", "tiny-gpt", "--kind", "eval", "-n", "2")[1].splitlines()]
        assert found == [line for line in lines_of(run) if line["kind"] == "eval"][-2:]
        assert lineage("log", "tiny-gpt", "-n", "0")[1] == ""
        assert lineage("log", "tiny-gpt", "-n", "9" * 30)[:2] == lineage("log", "tiny-gpt")[:2]

    def test_a_misspelt_kind_is_refused_with_the_nearest(self, run, lineage):
        code, _, err = lineage("log", "tiny-gpt", "--kind", "evals")
        assert code == 2
        assert "did you mean eval?" in err

    def test_two_sessions_at_once_are_refused(self, run, lineage):
        assert lineage("log", "tiny-gpt@1", "--session", "2")[0] == 2
        assert lineage("log", "tiny-gpt", "--session", "7")[0] == 3

    def test_damage_is_told_with_its_place_and_the_rest_is_printed(self, run, lineage):
        log = run / "metrics.jsonl"
        rows = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join([*rows[:10], b"not \x1b[31m json\n", *rows[10:]]))
        code, out, err = lineage("log", "tiny-gpt", "--json")
        assert code == 1
        assert len(out.splitlines()) == len(rows)
        assert f"bytes {sum(map(len, rows[:10]))} to" in err
        assert "\x1b" not in err

    def test_damaged_lines_that_touch_are_told_as_one_with_every_way_they_are_bad(self, run, lineage):
        log = run / "metrics.jsonl"
        rows = log.read_bytes().splitlines(keepends=True)
        garbage = b"not json\n" * 500 + b"\n" + b"[]\n" * 500
        log.write_bytes(b"".join([*rows[:10], garbage, *rows[10:20], b"{\n", *rows[20:], b"3\n"]))
        code, out, err = lineage("log", "tiny-gpt", "--json")
        assert (code, len(out.splitlines())) == (1, len(rows))
        assert len(err.splitlines()) == 4
        assert err.splitlines()[-1].startswith("  try: lineage repair tiny-gpt --dry-run lists them")
        at = sum(map(len, rows[:10]))
        assert err.startswith(f"damaged: bytes {at} to {at + len(garbage)}, 1001 lines: not JSON: ")
        assert err.splitlines()[0].endswith("; others: the line is empty, not a JSON object")

    def test_sentences_name_session_step_and_what_happened(self, run, lineage):
        out = lineage("log", "tiny-gpt", "--pretty", "--kind", "lr_restore", "--kind", "session_start")[1]
        assert "@2        100  lr_restore          adamw[0] 0.0003 -> " in out
        assert "session 2, resume of step-00000100-s01-" in out

    def test_a_saved_checkpoint_says_how_long_it_took_where_that_was_recorded(self):
        saved = {"kind": "checkpoint_saved", "checkpoint": "step-00000030-s01-00000000", "size_bytes": 2_000_000}
        assert describe(saved) == "step-00000030-s01-00000000, 2.0 MB"
        assert describe(saved | {"duration_s": 0.25}) == "step-00000030-s01-00000000, 2.0 MB in 0.25 s"

    def test_following_gives_what_is_appended_once(self, run):
        words = ["log", str(run), "--follow", "--kind", "note", "--json"]
        follower = subprocess.Popen([sys.executable, "-m", "lineage", *words], stdout=subprocess.PIPE, text=True)
        try:
            event = {"kind": "note", "ts": 2e9, "run": run.name, "session": "s03-00000000"}
            for number in range(3):
                time.sleep(0.3)
                with (run / "metrics.jsonl").open("ab") as out:
                    out.write(encode_event(event | {"text": f"note {number}"}))
            found = [json.loads(follower.stdout.readline())["text"] for _ in range(3)]
        finally:
            follower.kill()
            follower.communicate()
        assert found == ["note 0", "note 1", "note 2"]

    @pytest.mark.parametrize("words", [["--kind", "log_recovered"], ["--session", "1", "--kind", "system"]])
    def test_silence_is_said_to_be_one(self, run, lineage, words):
        assert lineage("log", "tiny-gpt", *words) == (0, "", "no such event was logged\n")
        (run / "metrics.jsonl").write_text("")
        assert lineage("log", "tiny-gpt") == (0, "", "no event was logged\n")

    def test_a_run_without_a_log_is_3(self, run, lineage):
        (run / "metrics.jsonl").unlink()
        assert lineage("log", "tiny-gpt")[0] == 3

    @pytest.mark.parametrize("kind", [*KINDS, "of_a_newer_version"])
    def test_an_event_that_breaks_its_promise_is_still_described(self, kind):
        for fields in ({"kind": kind}, {"kind": kind, "metrics": [1], "groups": 3, "text": None, "start": "x"}):
            assert isinstance(describe(fields), str)


class TestRepair:
    @pytest.fixture
    def damaged(self, run):
        log = run / "metrics.jsonl"
        rows = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join([*rows[:10], b"garbage\n", *rows[10:], b'{"torn']))
        return log

    def test_a_dry_run_says_what_and_where_and_changes_nothing(self, damaged, lineage):
        before = damaged.read_bytes()
        code, out, err = lineage("repair", "tiny-gpt", "--dry-run")
        assert code == 1
        assert "1 damaged, 6 bytes torn" in out
        assert "nothing was changed" in err
        assert damaged.read_bytes() == before
        assert [path.name for path in damaged.parent.iterdir() if "damaged" in path.name] == []

    def test_repair_keeps_the_original_and_every_good_line(self, damaged, lineage):
        before = damaged.read_bytes()
        code, out, _ = lineage("repair", "tiny-gpt", "--json")
        assert code == 0
        found = json.loads(out)
        assert (found["repaired"], found["damaged_lines"], found["torn_bytes"]) == (True, 1, 6)
        (copy,) = damaged.parent.glob("metrics.jsonl.damaged-*")
        assert found["copy"].endswith(copy.name)
        assert copy.read_bytes() == before
        assert damaged.read_bytes() == before.replace(b"garbage\n", b"")[:-6]
        assert lineage("repair", "tiny-gpt", "--dry-run")[0] == 0

    def test_a_run_that_is_written_is_refused_with_its_owner(self, damaged, lineage):
        before = damaged.read_bytes()
        lock = RunLock.acquire(damaged.parent, "s04-00000000")
        try:
            code, _, err = lineage("repair", "tiny-gpt")
        finally:
            lock.close()
        assert code == 5
        assert "s04-00000000" in err
        assert damaged.read_bytes() == before

    def test_a_sound_log_is_left_alone(self, run, lineage):
        log = run / "metrics.jsonl"
        before = log.stat().st_ino, log.stat().st_mtime_ns, log.read_bytes()
        assert lineage("repair", "tiny-gpt")[0] == 0
        assert (log.stat().st_ino, log.stat().st_mtime_ns, log.read_bytes()) == before
        assert list(run.glob("*damaged*")) == []

    def test_a_session_cannot_be_repaired_alone(self, run, lineage):
        assert lineage("repair", "tiny-gpt@1")[0] == 2


class TestSchema:
    @pytest.mark.parametrize("name", ["run", "event", "manifest", "ledger"])
    def test_what_is_printed_is_what_is_published(self, lineage, name):
        from lineage_schemas.publish import published

        code, out, _ = lineage("schema", name)
        assert (code, out) == (0, published(name))
        assert orjson.loads(out)["$schema"].endswith("2020-12/schema")

    def test_without_a_name_they_are_listed(self, lineage):
        assert [line.split()[0] for line in lineage("schema")[1].splitlines()] == ["run", "event", "manifest", "ledger"]
