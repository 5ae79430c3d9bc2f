"""`lineage export`: what other programs read is what was logged, to the last digit, and nothing is invented."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime

import orjson
import pytest

import lineage as package
from benchmarks.synthetic import write_run
from lineage.cli.export import ExportCommand, csv_lines, json_array, json_lines
from lineage.log.writer import encode_event
from lineage_schemas.run import Run

RUN = "20251129-134012-odd"
SESSION = "s01-0000abcd"
HOSTILE = 'a,"b"\x1b[31m\u202e=cmd()'


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """A run with everything that is hard to write: `odd/`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LINEAGE_RUNS", raising=False)
    (tmp_path / "odd").mkdir()
    record = Run(id=RUN, name="odd", created_at=datetime.fromtimestamp(1764423612, UTC))
    (tmp_path / "odd" / "run.json").write_bytes(orjson.dumps(record.to_wire()))
    shared = {"ts": 1764423612.25, "run": RUN, "session": SESSION}
    rows = [
        {"loss": 0.1 + 0.2, "step": 7.0, HOSTILE: 1.0},
        {"loss": math.nan},
        {"loss": math.inf, "step": 1e300},
        {"loss": -math.inf, "step": -0.0},
        {"step": 5e-324},
    ]
    events = [
        {"kind": "session_start", "step": 0, "ordinal": 1, "start": {"kind": "fresh"}},
        *({"kind": "step", "step": n, "duration_s": 0.5, "metrics": row} for n, row in enumerate(rows, 1)),
    ]
    (tmp_path / "odd" / "metrics.jsonl").write_bytes(b"".join(encode_event(shared | event) for event in events))
    return tmp_path / "odd"


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_every_step_once_and_the_very_numbers(place, lineage):
    code, out, err = lineage("export", "tiny-gpt")
    assert (code, err) == (0, "")
    view = package.read(next((place / "runs").iterdir()))
    loss = view.series("loss")
    rows = rows_of(out)
    assert list(rows[0]) == ["step", "session", "time", "train_time", *view.metrics]
    assert [int(row["step"]) for row in rows] == loss.step.tolist()
    assert [int(row["session"]) for row in rows] == loss.session.tolist()
    assert [float(row["train_time"]) for row in rows] == loss.train_time.tolist()
    finite = [float(row["loss"]) for row in rows]
    assert [repr(a) for a in finite] == [repr(b) for b in loss.value.tolist()]


def test_superseded_and_one_session_are_what_python_gives(place, lineage):
    view = package.read(next((place / "runs").iterdir()))
    _, out, _ = lineage("export", "tiny-gpt", "--superseded", "--metric", "lr")
    assert [int(row["step"]) for row in rows_of(out)] == view.series("lr", superseded=True).step.tolist()
    assert list(rows_of(out)[0]) == ["step", "session", "time", "train_time", "lr"]
    _, out, _ = lineage("export", "tiny-gpt@1", "--metric", "lr", "--metric", "loss")
    assert [int(row["step"]) for row in rows_of(out)] == view.series("lr", session=1).step.tolist()
    assert list(rows_of(out)[0])[4:] == ["lr", "loss"]


def test_absent_and_nonfinite_values_are_told_apart_in_csv(odd, lineage):
    code, out, err = lineage("export", "odd")
    assert (code, err) == (0, "")
    rows = rows_of(out)
    assert [row["loss"] for row in rows] == ["0.30000000000000004", "nan", "inf", "-inf", ""]
    assert [row["metric.step"] for row in rows] == ["7.0", "", "1e+300", "-0.0", "5e-324"]
    assert [row["step"] for row in rows] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_absent_and_nonfinite_values_are_told_apart_in_json(odd, lineage, form):
    _, out, _ = lineage("export", "odd", "--format", form)
    rows = json.loads(out) if form == "json" else [orjson.loads(line) for line in out.splitlines()]
    assert [row.get("loss", "absent") for row in rows] == [0.30000000000000004, "nan", "inf", "-inf", "absent"]
    assert [row.get("metric.step") for row in rows] == [7.0, None, 1e300, -0.0, 5e-324]
    assert rows[0][HOSTILE] == 1.0
    assert rows[0]["time"] == 1764423612.25


def test_names_reach_a_terminal_harmless_and_a_parser_whole(odd, lineage):
    for form in ("csv", "json", "jsonl"):
        _, out, _ = lineage("export", "odd", "--format", form)
        assert "\x1b" not in out
        assert "\u202e" not in out
    _, out, _ = lineage("export", "odd")
    assert 'a,"b"\\x1b[31m\\u202e=cmd()' in rows_of(out)[0]


def test_names_that_clean_to_the_same_text_stay_two_columns(odd, lineage):
    with (odd / "metrics.jsonl").open("ab") as log:
        event = {"kind": "step", "ts": 2e9, "run": RUN, "session": SESSION, "step": 6}
        log.write(encode_event(event | {"metrics": {"\x07": 1.0, "\\x07": 2.0}}))
    _, out, _ = lineage("export", "odd", "--metric", "\x07", "--metric", "\\x07")
    assert [(row["\\x07"], row["\\x07'"]) for row in rows_of(out)][-1] == ("1.0", "2.0")


def test_a_file_gets_the_format_of_its_name_and_is_not_written_over_unasked(place, lineage):
    assert lineage("export", "tiny-gpt", "-o", "x.jsonl")[:2] == (0, "")
    before = (place / "x.jsonl").read_bytes()
    assert orjson.loads(before.splitlines()[0])["step"] == 1
    code, out, err = lineage("export", "tiny-gpt", "-o", "x.jsonl", "--metric", "lr")
    assert (code, out) == (2, "")
    assert "--force" in err
    assert (place / "x.jsonl").read_bytes() == before
    assert lineage("export", "tiny-gpt", "-o", "x.jsonl", "--metric", "lr", "--force")[0] == 0
    assert list(orjson.loads((place / "x.jsonl").read_bytes().splitlines()[0]))[4:] == ["lr"]
    assert sorted(path.name for path in place.iterdir()) == ["runs", "x.jsonl"], "nothing is left beside it"


def test_nothing_is_ever_written_into_the_run(place, lineage):
    run = next((place / "runs").iterdir())
    other = write_run(place / "runs", name="other", steps=5, sessions=1)
    before = (run / "metrics.jsonl").read_bytes()
    held = sorted(path.name for path in (*run.rglob("*"), *other.rglob("*")))
    for path in (run / "metrics.jsonl", run / "checkpoints" / "x.csv", other / "x.csv"):
        code, _, err = lineage("export", "tiny-gpt", "--format", "csv", "--force", "-o", str(path))
        assert code == 2
        assert "inside of a run" in err
    (place / "circle").symlink_to("circle")
    assert lineage("export", "tiny-gpt", "-o", "circle/x.csv")[0] == 3
    for path in (run / "loss.svg", run / "checkpoints" / "loss.svg", other / "loss.svg"):
        code, out, err = lineage("plot", "tiny-gpt", "--metric", "loss", "--force", "-o", str(path))
        assert (code, out) == (2, "")
        assert (
            err
            == f"error: that is inside of a run, which only its sessions write\n  at {path}\n  try: another folder\n"
        )
    assert (run / "metrics.jsonl").read_bytes() == before
    assert sorted(path.name for path in (*run.rglob("*"), *other.rglob("*"))) == held


def test_from_inside_of_a_run_nothing_is_written_beside_its_files(place, lineage, monkeypatch):
    run = next((place / "runs").iterdir())
    monkeypatch.chdir(run)
    for words in (["export", "-o", "x.csv"], ["plot", "--metric", "loss", "-o", "x.svg"]):
        code, out, err = lineage(words[0], str(run), *words[1:])
        assert (code, out) == (2, "")
        assert "inside of a run" in err
    assert not list(run.glob("x.*"))


@pytest.mark.parametrize("inside", [".", "checkpoints", "runs"])
def test_a_demo_is_not_recorded_inside_of_a_run(place, lineage, monkeypatch, inside):
    run = next((place / "runs").iterdir())
    before = sorted(run.rglob("*"))
    monkeypatch.chdir(run)
    code, out, err = lineage("demo", *([inside] if inside != "runs" else []))
    assert (code, out) == (2, "")
    assert err == (
        f"error: that is inside of a run, which only its sessions write\n  at {inside}\n"
        f"  try: lineage demo {run.parent} makes one beside it\n"
    )
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("nothing-here",), 3, "there is no run"),
        (("tiny-gpt", "--metric", "accuracy"), 2, "logged are loss, lr"),
        (("tiny-gpt", "-o", "x.xlsx"), 2, "--format"),
        (("tiny-gpt", "-o", "runs"), 2, "folder"),
        (("tiny-gpt@9",), 3, "session"),
        (("tiny-gpt", "-o", "no/such/folder/x.csv"), 3, "at no/such/folder\n  try: make it first"),
    ],
)
def test_what_cannot_be_done_is_an_error_with_its_code(place, lineage, words, code, says):
    found, out, err = lineage("export", *words)
    assert (found, out) == (code, "")
    assert says in err


@pytest.mark.parametrize("words", [(), ("--force",)])
def test_a_device_is_written_into_and_never_replaced(place, lineage, words):
    """With --force a CSV once stood in the place of /dev/full, for everybody on that machine."""
    (place / "full").symlink_to("/dev/full")
    code, out, err = lineage("export", "tiny-gpt", "-o", "full", *words)
    assert (code, out) == (1, "")
    assert err == (
        "error: this cannot be written: No space left on device\n  at full\n"
        "  try: make room on that disk, then the same command again\n"
    )
    assert (place / "full").is_char_device()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_pipe_with_a_name_is_written_into_as_stdout_is(place, process, form):
    if form == "parquet":
        pytest.importorskip("polars")
    os.mkfifo(place / "pipe")
    words = [sys.executable, "-m", "lineage", "export", "tiny-gpt", "--format", form, "-o", "pipe"]
    with subprocess.Popen(words, cwd=place) as child:
        through = (place / "pipe").read_bytes()
    assert child.returncode == 0
    assert through[:4] == {"csv": b"step", "parquet": b"PAR1"}[form]
    assert process(*words[3:-1], "file", cwd=place).returncode == 0
    assert (place / "file").read_bytes() == through


def test_damage_costs_its_lines_and_the_exit_code(odd, lineage):
    log = odd / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], b"{broken\n", *lines[3:]]))
    code, out, err = lineage("export", "odd")
    assert code == 1
    assert len(rows_of(out)) == 5
    assert "not JSON" in err


def test_a_run_without_steps_is_a_header_or_an_empty_list(odd, lineage):
    log = odd / "metrics.jsonl"
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    assert lineage("export", "odd") == (0, "step,session,time,train_time\n", "no step was logged yet\n")
    assert json.loads(lineage("export", "odd", "--format", "json")[1]) == []
    assert lineage("export", "odd", "--format", "jsonl")[1] == ""


def test_a_reader_that_had_enough_is_no_error(place):
    command = f"{sys.executable} -m lineage export tiny-gpt | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("step,session,")


def test_parts_join_without_a_seam(odd, monkeypatch):
    table = package.read(odd).table()
    whole = ["".join(write(table)) for write in (csv_lines, json_lines, json_array)]
    for size in (1, 2, 5):
        monkeypatch.setattr("lineage.cli.export._ROWS", size)
        assert ["".join(write(table)) for write in (csv_lines, json_lines, json_array)] == whole


def test_without_polars_and_pyarrow_the_error_says_how_to_get_them(place, lineage, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, out, err = lineage("export", "tiny-gpt", "-o", "x.parquet")
    assert (code, out) == (1, "")
    assert "pip install 'lineage-tracker[export]'" in err
    assert not (place / "x.parquet").exists()


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_parquet_has_null_for_absent_and_nan_for_nan(odd, lineage, monkeypatch, library):
    module = pytest.importorskip(library)
    for other in {"polars", "pyarrow"} - {library}:
        monkeypatch.setitem(sys.modules, other, None)
    assert lineage("export", "odd", "-o", str(odd.parent / "x.parquet"))[0] == 0
    if library == "polars":
        found = module.read_parquet(odd.parent / "x.parquet").to_dict(as_series=False)
    else:
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(odd.parent / "x.parquet").to_pydict()
    assert [repr(value) for value in found["loss"]] == ["0.30000000000000004", "nan", "inf", "-inf", "None"]
    assert found["step"] == [1, 2, 3, 4, 5]
    assert found[HOSTILE][0] == 1.0


def test_parquet_is_not_put_on_a_terminal(place):
    import pty

    first, second = pty.openpty()
    words = [sys.executable, "-m", "lineage", "export", "tiny-gpt", "--format", "parquet"]
    done = subprocess.run(words, stdout=second, stderr=subprocess.PIPE, text=True, check=False)
    os.close(first)
    os.close(second)
    assert done.returncode == 2
    assert "-o FILE.parquet" in done.stderr


def test_the_help_says_how_absent_and_nan_are_written():
    text = " ".join((ExportCommand.__doc__ or "").split())
    assert 'an empty field, and nan, inf or -inf. JSON: no key, and "nan"' in text
