"""`audit`, `diff`, `explain` and `show --tree` on runs on disk: fields, exit codes, and only what is needed is read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from history_records import OTHER_RUN, RUN, T0, gen, resumed, run_of, session, sid

from lineage.cli import main
from lineage.history.evidence import LogAttempts, audit_view
from lineage.history.reference import Attempts
from lineage.view import read
from lineage_schemas.events import parse_event
from lineage_schemas.run import Environment, Parent, Recipe, Run, Session, Source, Start

Verb = Callable[..., tuple[int, str, str]]


def line(kind: str, by: int, step: int, run: str = RUN, **fields: Any) -> bytes:
    event = {"kind": kind, "ts": 1000.0 + step, "run": run, "session": sid(by), "step": step}
    return orjson.dumps(event | fields, option=orjson.OPT_APPEND_NEWLINE)


def steps(ordinal: int, first: int, last: int, *, factor: float = 1.0, shift: int = 0, every: int = 1) -> list[bytes]:
    """What a session logged; `factor` makes another loss, `shift` other batches."""
    lines = []
    for step in range(first, last + 1):
        if step % every == 0:
            witness = {"batch": f"{step - shift:016x}", "rng": f"{step:016x}", "lr": {"adamw": [1.0 / step]}}
            metrics = {
                "loss": factor * (2.0 + 1.0 / step) * (1 + 0.01 * ((step * 7919) % 13 - 6) / 6),
                "lr": 1.0 / step,
            }
            lines.append(line("step", ordinal, step, metrics=metrics, duration_s=0.1, tokens=100, witness=witness))
    return lines


def begin(one: Session) -> bytes:
    return line(
        "session_start",
        one.ordinal,
        one.start.step,
        ordinal=one.ordinal,
        start=one.start.to_wire(),
        format={"name": "lineage-log", "version": "1.0"},
    )


def write(folder: Path, run: Run, lines: list[bytes]) -> Path:
    path = folder / run.id
    path.mkdir(parents=True)
    (path / "run.json").write_bytes(orjson.dumps(run.to_wire()))
    (path / "metrics.jsonl").write_bytes(b"".join(lines))
    return path


def ended(ordinal: int, start: Start | None = None, last: int = 0, **changes: Any) -> Session:
    return session(ordinal, start, status="completed", ended_at=T0, last_step=last or None, **changes)


def story(folder: Path, **second: Any) -> Path:
    """Session 1 dies at 437 after a checkpoint at 400, session 2 resumes from there."""
    shape = {key: second.pop(key) for key in ("factor", "shift") if key in second}
    one = ended(1, last=437, checkpoints=[gen(400, 1)])
    two = ended(2, resumed(400, 1), 600, **second)
    saved = line("checkpoint_saved", 1, 400, checkpoint=gen(400, 1), manifest_sha256="0" * 64, size_bytes=1)
    lines = [begin(one), *steps(1, 1, 400), saved, *steps(1, 401, 437), begin(two), *steps(2, 401, 600, **shape)]
    return write(folder, run_of(one, two), lines)


@pytest.fixture
def verb(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Verb:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["--runs", str(tmp_path / "runs"), *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_an_exact_resume_audits_to_exit_0_with_every_field_of_the_contract(tmp_path: Path, verb: Verb) -> None:
    story(tmp_path / "runs")
    code, out, _ = verb("audit", RUN, "--json")
    (row,) = json.loads(out)["resumes"]
    assert code == 0
    assert (row["session"], row["from_step"], row["checkpoint"]) == (sid(2), 400, gen(400, 1))
    assert (row["verdict"], row["compared_steps"], row["first_difference"]) == ("exact", 37, None)
    assert "37 steps trained twice" in row["reason"]
    assert "exact" in verb("audit", RUN)[1]


def test_a_careless_resume_audits_to_exit_1_and_names_the_batch(tmp_path: Path, verb: Verb) -> None:
    story(tmp_path / "runs", factor=1.3, shift=400)
    code, out, _ = verb("audit", RUN, "--json")
    first = json.loads(out)["resumes"][0]["first_difference"]
    assert code == 1
    assert first == {"step": 401, "field": "batch", "part": None, "before": f"{401:016x}", "after": f"{1:016x}"}
    code, out, _ = verb("audit", f"{RUN}@2")
    assert (code, "diverged" in out) == (1, True)


def test_a_first_session_has_nothing_to_audit(tmp_path: Path, verb: Verb) -> None:
    story(tmp_path / "runs")
    code, out, err = verb("audit", f"{RUN}@1", "--json")
    assert (code, json.loads(out)) == (0, {"resumes": []})
    assert "nothing to audit" in err


@pytest.mark.parametrize("words", [["audit"], ["diff"], ["explain"], ["show", "--tree"]])
def test_a_run_that_is_not_there_is_exit_3(tmp_path: Path, verb: Verb, words: list[str]) -> None:
    story(tmp_path / "runs")
    assert verb(words[0], "no-such-run", *words[1:])[0] == 3


def test_damage_in_the_log_is_told_and_what_is_left_is_compared(tmp_path: Path, verb: Verb) -> None:
    path = story(tmp_path / "runs") / "metrics.jsonl"
    data = path.read_bytes()
    at = data.index(b'"step":405') + 5
    path.write_bytes(data[:at] + b"\xff\x00" + data[at + 2 :])
    code, out, err = verb("audit", RUN, "--json")
    assert (code, json.loads(out)["resumes"][0]["compared_steps"]) == (1, 36)
    assert "damaged" in err


# -- diff ------------------------------------------------------------------------------------------------------------


def environments(tmp_path: Path) -> Path:
    base = {"python": "3.11.9", "implementation": "CPython", "platform": "Linux", "machine": "x86_64"}
    old = Environment(**base, packages={"numpy": "2.1.0", "attrs": "24"})
    new = Environment(**base, packages={"numpy": "2.2.0", "attrs": "24"})
    recipes = [{"optimizer": {"lr": 0.001, "warmup": 100}}, {"optimizer": {"lr": 0.0003, "warmup": 100.0}}]
    sessions = [
        ended(o, last=5, recipe=Recipe(value=recipes[o - 1], fingerprint=str(o) * 64), environment=str(o) * 16)
        for o in (1, 2)
    ]
    return write(tmp_path / "runs", run_of(*sessions, environments={"1" * 16: old, "2" * 16: new}), [])


def test_diff_shows_exactly_what_differs_graded(tmp_path: Path, verb: Verb) -> None:
    environments(tmp_path)
    code, out, _ = verb("diff", f"{RUN}@1", f"{RUN}@2", "--json")
    told = [{k: d[k] for k in ("section", "path", "before", "after", "grade")} for d in json.loads(out)["differences"]]
    assert code == 1
    assert told == [
        {"section": "recipe", "path": "optimizer.lr", "before": 0.001, "after": 0.0003, "grade": "experiment"},
        {"section": "recipe", "path": "optimizer.warmup", "before": 100, "after": 100.0, "grade": "numerics"},
        {"section": "environment", "path": "packages.numpy", "before": "2.1.0", "after": "2.2.0", "grade": "numerics"},
    ]
    assert '"before":100,"after":100.0' in out  # an int stays one on its way out


def test_one_ref_is_compared_with_the_session_before_it_and_a_run_is_its_newest(tmp_path: Path, verb: Verb) -> None:
    environments(tmp_path)
    both = verb("diff", f"{RUN}@1", f"{RUN}@2")
    assert verb("diff", f"{RUN}@2") == both
    assert verb("diff", RUN) == both
    assert "changes the experiment" in both[1]
    assert verb("diff", f"{RUN}@1")[0] == 2


def test_the_same_session_twice_differs_in_nothing_and_is_exit_0(tmp_path: Path, verb: Verb) -> None:
    environments(tmp_path)
    code, out, _ = verb("diff", f"{RUN}@1", f"{RUN}@1", "--json", "--all")
    document = json.loads(out)
    assert (code, document["differences"]) == (0, [])
    assert {"section": "environment", "path": "packages.attrs", "value": "24"} in document["same"]


def test_live_is_this_machine_and_what_it_cannot_know_is_said(tmp_path: Path, verb: Verb) -> None:
    environments(tmp_path)
    code, out, err = verb("diff", RUN, "live", "--json")
    found = {(d["section"], d["path"]) for d in json.loads(out)["differences"]}
    assert code == 1
    assert ("environment", "packages.numpy") in found
    assert not any(section in ("recipe", "argv", "data", "world") for section, _ in found)
    assert not any(path.startswith(("threads.", "determinism.")) for _, path in found)
    assert "recipe" in err
    assert verb("diff", "live")[0] == verb("diff", "live", "live")[0] == 2


def test_commits_between_and_the_patch_are_shown(tmp_path: Path, verb: Verb) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    commits = []
    for subject in ("first", "second", "third"):
        git("commit", "-q", "--allow-empty", "-m", subject)
        commits.append(git("rev-parse", "HEAD"))
    clean = Source(commit=commits[0], dirty=False)
    dirty = Source(commit=commits[2], dirty=True, patch=f"source/{sid(2)}.patch", patch_sha256="a" * 64)
    path = write(tmp_path / "runs", run_of(ended(1, source=clean), ended(2, source=dirty)), [])
    (path / "source").mkdir()
    (path / "source" / f"{sid(2)}.patch").write_text("+a changed line\n\x1b[31m")
    code, out, _ = verb("diff", RUN, "--patch")
    assert code == 1
    assert "third" in out
    assert "second" in out
    assert "first" not in out
    assert "+a changed line" in out
    assert "\x1b" not in out


# -- explain ---------------------------------------------------------------------------------------------------------


def test_explain_names_the_batches_as_the_cause_of_a_careless_jump(tmp_path: Path, verb: Verb) -> None:
    story(tmp_path / "runs", factor=1.3, shift=400)
    code, out, _ = verb("explain", RUN, "--json")
    (change,) = json.loads(out)["changes"]
    assert code == 0
    assert (change["step"], change["metric"]) == (401, "loss")
    assert (change["causes"][0]["kind"], change["causes"][0]["step"]) == ("data", 401)
    assert set(change["causes"][0]) >= {"kind", "step", "message"}
    assert "jumps" in verb("explain", f"{RUN}@2")[1]
    assert json.loads(verb("explain", f"{RUN}@1", "--json")[1]) == {"changes": []}


def test_explain_of_a_calm_run_has_no_change_and_still_answers_for_a_step(tmp_path: Path, verb: Verb) -> None:
    story(tmp_path / "runs")
    assert json.loads(verb("explain", RUN, "--json")[1]) == {"changes": []}
    (near,) = json.loads(verb("explain", RUN, "--step", "405", "--json")[1])["changes"]
    assert near["causes"][0]["kind"] == "session"
    assert "carried on exactly (37 steps compared)" in near["causes"][0]["message"]
    (far,) = json.loads(verb("explain", RUN, "--step", "550", "--json")[1])["changes"]
    assert (far["step"], far["causes"]) == (550, [])
    assert "nothing recorded explains this" in verb("explain", RUN, "--step", "550")[1]


def test_a_step_that_was_not_trained_is_exit_3_and_an_empty_window_exit_2(tmp_path: Path, verb: Verb) -> None:
    story(tmp_path / "runs")
    assert verb("explain", RUN, "--step", "601")[0] == 3
    assert verb("explain", RUN, "--step", "0")[0] == 3
    assert verb("explain", RUN, "--window", "0")[0] == 2


# -- tree ------------------------------------------------------------------------------------------------------------


def test_show_tree_draws_the_family_of_the_folder(tmp_path: Path, verb: Verb) -> None:
    path = story(tmp_path / "runs")
    (path / "exports" / "final").mkdir(parents=True)
    start = Start(kind="fork", step=400, checkpoint=gen(400, 1), run=RUN, session=sid(1))
    child = run_of(
        ended(1, start, 420), id=OTHER_RUN, parent=Parent(run=RUN, session=sid(1), checkpoint=gen(400, 1), step=400)
    )
    write(tmp_path / "runs", child, [])
    code, out, _ = verb("show", OTHER_RUN, "--tree")
    assert code == 0
    assert out.splitlines()[0].startswith(RUN)
    assert "401 on superseded by @2" in out
    assert f"fork {OTHER_RUN}" in out
    assert "export final" in out


# -- reading only what is needed -------------------------------------------------------------------------------------


def log_of(path: Path) -> list[Any]:
    return [parse_event(data) for data in (path / "metrics.jsonl").read_bytes().splitlines()]


def test_witnesses_read_on_demand_are_those_of_the_whole_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = story(tmp_path / "runs", shift=3)
    monkeypatch.setattr("lineage.history.evidence._BISECT_FROM_BYTES", 512)
    monkeypatch.setattr("lineage.history.evidence._PROBE_BYTES", 2_048)
    lookup = LogAttempts(read(path, cache=False))
    whole = Attempts.of(event for event in log_of(path) if event.kind == "step")
    assert lookup.last_steps == whole.last_steps
    for id_, after, to in [
        (sid(1), 400, 437),
        (sid(1), 17, 20),
        (sid(2), 400, 500),
        (sid(2), 599, 10_000),
        (sid(1), 0, 1),
        (sid(2), 0, 400),
    ]:
        wanted = whole(id_, after, to)
        assert {s: w.batch for s, w in lookup(id_, after, to).items()} == {s: w.batch for s, w in wanted.items()}


def test_steps_out_of_order_within_a_session_are_found_too(tmp_path: Path) -> None:
    one = ended(1, last=50)
    note = line("note", 1, 30, text="x")
    path = write(tmp_path / "runs", run_of(one), [begin(one), *steps(1, 31, 50), note, *steps(1, 1, 30)])
    assert sorted(LogAttempts(read(path, cache=False))(sid(1), 30, 50)) == list(range(31, 51))


def test_a_logging_interval_is_no_careless_restart(tmp_path: Path) -> None:
    one, two = ended(1, last=440), ended(2, resumed(405, 1), 500)
    lines = [begin(one), *steps(1, 1, 440, every=10), begin(two), *steps(2, 406, 500, every=10)]
    view = read(write(tmp_path / "runs", run_of(one, two), lines), cache=False)
    (row,) = audit_view(view)
    assert (row.verdict, row.compared_steps, row.from_step) == ("exact", 4, 405)
    assert [(s.start_step, s.effective_to) for s in view.segments] == [(0, 405), (405, 500)]


def test_only_the_overlap_is_parsed_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ended(1, last=20_030, checkpoints=[gen(20_000, 1)])
    two = ended(2, resumed(20_000, 1), 20_400)
    saved = line("checkpoint_saved", 1, 20_000, checkpoint=gen(20_000, 1), manifest_sha256="0" * 64, size_bytes=1)
    lines = [begin(one), *steps(1, 1, 20_000), saved, *steps(1, 20_001, 20_030), begin(two), *steps(2, 20_001, 20_400)]
    view = read(write(tmp_path / "runs", run_of(one, two), lines), cache=False)
    parsed = 0
    real = orjson.loads

    def counting(data: bytes) -> Any:
        nonlocal parsed
        parsed += 1
        return real(data)

    monkeypatch.setattr("lineage.history.evidence.orjson.loads", counting)
    (row,) = audit_view(view)
    assert (row.verdict, row.compared_steps) == ("exact", 30)
    assert parsed < 200
