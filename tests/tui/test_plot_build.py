"""From a run to its charts: every axis, every overlay, and no more work than what was appended."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest

import lineage
from benchmarks.synthetic import write_run
from lineage.history.evidence import audit_view
from lineage.log.writer import encode_event
from lineage_schemas.run import Continuation, FirstDifference
from lineage_tui.build import AXES, chart_models, default_names, verdict_words
from lineage_tui.plot import Memo, View, render

SAMPLES = Path(__file__).resolve().parents[2] / "sample_runs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sessions: 1 to 237 (killed; 200 counts), 201 to 400 (preempted), 401 to 600; NaN at 240."""
    return write_run(tmp_path_factory.mktemp("runs"), steps=600, sessions=3, overlap=37)


@pytest.fixture
def view(folder):
    return lineage.read(folder)


def of(models, name):
    return next(model for model in models if model.title == name)


def test_the_default_charts_are_loss_rate_norm_and_throughput(view):
    assert default_names(view.metrics) == ["loss", "lr", "grad_norm", "tokens_per_s"]
    assert default_names(["accuracy", "step_s", "lr"]) == ["lr", "step_s", "accuracy"]
    assert default_names([]) == []


def test_charts_come_in_the_order_asked_for_and_unknown_names_are_empty(view):
    models = chart_models(view, ["lr", "nothing", "loss"])
    assert [model.title for model in models] == ["lr", "nothing", "loss"]
    assert not models[1].series
    assert models[1].message == "never logged"
    with pytest.raises(ValueError, match="no x axis"):
        chart_models(view, ["lr"], "moon")


def test_the_effective_history_has_every_step_once_and_the_rest_is_dimmed(view):
    (model,) = chart_models(view, ["lr"])
    bright, dim = model.series
    assert bright.x.tolist() == list(range(1, 601))
    assert not bright.dimmed
    assert dim.dimmed
    assert dim.hue == bright.hue
    assert dim.label == "s1 superseded"
    assert dim.x.tolist() == list(range(200, 238))  # from the last step both share
    assert bright.step is None


def test_evaluations_lie_over_the_metric_of_their_name_and_are_not_smoothed(view):
    (model,) = chart_models(view, ["loss"])
    evals = model.series[-1]
    assert evals.label == "eval"
    assert evals.x.tolist() == [100, 200, 300, 400, 500, 600]
    assert not evals.smooth
    raw = render(model, View(), 100, 30)
    smooth = render(model, View(smoothing=0.99, focus=0), 100, 30)
    assert raw.readout(300.0)[-1] == smooth.readout(300.0)[-1]


def test_boundaries_deaths_and_gaps_are_where_they_happened(view):
    (model,) = chart_models(view, ["lr"])
    lines = {(line.kind, line.label): line.x for line in model.lines}
    assert lines["boundary", "s2 exact"] == 200
    assert lines["boundary", "s3 unproven"] == 400
    assert lines["death", "s1 killed"] == 237
    gaps = [line for line in model.lines if line.kind == "gap"]
    assert [gap.x for gap in gaps] == [200, 400]
    assert gaps[0].label.startswith("gap 4 m")


def test_every_kind_of_event_becomes_its_mark(view):
    (model,) = chart_models(view, ["lr"])
    at = {}
    for mark in model.marks:
        at.setdefault(mark.kind, []).append(mark.x)
    assert at["nonfinite"] == [240]
    assert at["lr_restore"] == [200, 400]
    assert at["checkpoint"] == [100, 200, 300, 400, 500, 600]
    assert set(at["fp16_skip"]) == {97, 194, 291, 388, 485, 582}
    assert all(mark.label for mark in model.marks)


def test_phases_are_spans_with_a_width_where_time_passes_in_them(view):
    (steps,) = chart_models(view, ["lr"], "step")
    assert {span.kind for span in steps.spans} == {"eval", "checkpoint"}
    assert all(span.x0 == span.x1 for span in steps.spans)
    (wall,) = chart_models(view, ["lr"], "wall")
    widths = {span.kind: round(span.x1 - span.x0, 3) for span in wall.spans}
    assert widths["eval"] == 1.5
    assert widths["checkpoint"] == 0.4
    assert sum(span.kind == "gap" for span in wall.spans) == 2


def test_wall_time_breaks_the_line_where_nobody_worked(view):
    (model,) = chart_models(view, ["lr"], "wall")
    bright, dim = model.series
    assert model.x_kind == "clock"
    assert bright.breaks.tolist() == [200, 400]
    assert (np.diff(bright.x) >= 0).all()
    assert bright.step.tolist() == list(range(1, 601))
    assert dim.x[-1] < bright.x[200]  # what was lost lies before the resume, where it happened
    assert not [line for line in model.lines if line.kind == "gap"]


def test_training_time_has_neither_gaps_nor_phases_in_it(view):
    (model,) = chart_models(view, ["lr"], "train")
    bright, dim = model.series
    assert model.x_kind == "seconds"
    assert not bright.breaks.size
    assert bright.x[-1] == pytest.approx(view.series("lr").train_time[-1])
    assert dim.x[0] == pytest.approx(bright.x[199])
    boundary = next(line for line in model.lines if line.label == "s2 exact")
    assert boundary.x == pytest.approx(bright.x[199])
    death = next(line for line in model.lines if line.kind == "death")
    assert death.x == pytest.approx(dim.x[-1])


def test_tokens_count_what_the_steps_consumed(view):
    (model,) = chart_models(view, ["lr"], "tokens")
    bright, dim = model.series
    assert model.x_label == "tokens"
    np.testing.assert_allclose(bright.x, np.arange(1, 601) * 8192, rtol=1e-6)
    np.testing.assert_allclose(dim.x, np.arange(200, 238) * 8192, rtol=1e-6)
    assert next(line for line in model.lines if line.label == "s3 unproven").x == pytest.approx(400 * 8192)


def test_without_counted_tokens_the_axis_is_steps(tmp_path):
    folder = write_run(tmp_path, steps=30, sessions=1)
    log = folder / "metrics.jsonl"
    lines = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    for line in lines:
        line.pop("tokens", None)
    log.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (model,) = chart_models(lineage.read(folder), ["lr"], "tokens")
    assert model.x_label == "step"
    assert model.series[0].x.tolist() == list(range(1, 31))


def without(folder, tmp_path, name, lacking):
    """The run with a field taken from the step lines of some (session ordinal, step)."""
    copy = tmp_path / folder.name
    copy.mkdir()
    (copy / "run.json").write_bytes((folder / "run.json").read_bytes())
    lines = []
    for line in (folder / "metrics.jsonl").read_bytes().splitlines():
        event = orjson.loads(line)
        if event["kind"] == "step" and lacking(int(event["session"][1:3]), event["step"]):
            event.pop(name, None)
        lines.append(orjson.dumps(event) + b"\n")
    (copy / "metrics.jsonl").write_bytes(b"".join(lines))
    return copy


@pytest.mark.parametrize(("axis", "field", "pace"), [("tokens", "tokens", 8192), ("train", "duration_s", 0.12)])
def test_steps_without_a_count_are_left_out_of_its_axis_and_the_header_says_how_many(
    folder, tmp_path, axis, field, pace
):
    """Counted from step 151 on, and not at 300 to 309; steps and their counts are never mixed on one axis."""
    run = without(folder, tmp_path, field, lambda _, step: step <= 150 or 300 <= step < 310)
    (model,) = chart_models(lineage.read(run, cache=False), ["lr"], axis)
    bright, dim = model.series
    assert model.x_label == axis
    assert bright.step.tolist() == [*range(151, 300), *range(310, 601)]
    assert bright.num_dropped == 160
    assert np.isfinite(bright.x).all()
    assert (np.diff(bright.x) > 0).all()
    assert bright.x[-1] == pytest.approx(440 * pace, rel=0.2)
    assert dim.step.tolist() == list(range(200, 238))
    assert dim.x[0] == pytest.approx(bright.x[49])
    word = "tokens" if axis == "tokens" else "duration"
    assert f"160 without {word}" in render(model, View(), 120, 30).text()
    assert not [mark for mark in model.marks if mark.x < bright.x[0]]


def test_what_is_drawn_at_80_columns_still_says_what_was_left_out(folder, tmp_path):
    run = without(folder, tmp_path, "tokens", lambda _, step: step <= 150)
    (model,) = chart_models(lineage.read(run, cache=False), ["grad_norm"], "tokens")
    assert "150 without tokens" in render(model, View(smoothing=0.9), 80, 24).text()


@pytest.mark.parametrize(("axis", "field"), [("tokens", "tokens"), ("train", "duration_s")])
def test_only_the_sessions_that_count_are_on_an_axis_of_counts(folder, tmp_path, axis, field):
    run = without(folder, tmp_path, field, lambda session, _: session in {1, 3})
    view = lineage.read(run, cache=False)
    (model,) = chart_models(view, ["loss"], axis)
    effective, superseded, evals = model.series
    assert effective.step.tolist() == list(range(201, 401))
    assert (superseded.x.size, superseded.num_dropped) == (0, 38)
    assert "superseded" not in render(model, View(), 120, 30).text()
    assert set(evals.step.tolist()) <= set(range(201, 401))
    assert evals.num_dropped
    assert [line.label.split()[0] for line in model.lines if line.kind == "boundary"] == ["s2", "s3"]
    assert next(line for line in model.lines if line.label.startswith("s2")).x == model.series[0].x[0]


@pytest.mark.parametrize(("axis", "field"), [("tokens", "tokens"), ("train", "duration_s")])
def test_counts_that_begin_while_a_run_is_watched_are_the_axis_from_then_on(folder, tmp_path, axis, field):
    run = without(folder, tmp_path, field, lambda _, step: step <= 450)
    log = run / "metrics.jsonl"
    whole = log.read_bytes()
    view = None
    labels = []
    for share in (2, 5, 8, 9, 10):
        log.write_bytes(whole[: whole.rindex(b"\n", 0, len(whole) * share // 10 + 1) + 1])
        if view is None:
            view = lineage.read(run, cache=False)
        view.refresh()
        grown = chart_models(view, ["loss", "lr"], axis)
        fresh = chart_models(lineage.read(run, cache=False), ["loss", "lr"], axis)
        labels.append(grown[0].x_label)
        for one, other in zip(grown, fresh, strict=True):
            assert one.x_label == other.x_label
            for mine, its in zip(one.series, other.series, strict=True):
                np.testing.assert_allclose(mine.x, its.x, rtol=1e-12)
    assert labels[0] == "step"
    assert labels[-1] == axis


def test_tokens_need_no_durations(folder, tmp_path):
    run = without(folder, tmp_path, "duration_s", lambda *_: True)
    (tokens,) = chart_models(lineage.read(run, cache=False), ["lr"], "tokens")
    assert tokens.series[0].x.tolist() == (np.arange(1, 601) * 8192.0).tolist()
    (train,) = chart_models(lineage.read(run, cache=False), ["lr"], "train")
    assert train.x_label == "step"


def test_sessions_lie_over_each_other_from_their_own_starts(view):
    (model,) = chart_models(view, ["lr"], "session")
    assert model.x_label == "step of its session"
    for width, glyphs in ((64, "braille"), (80, "braille"), (100, "ascii")):
        labels = render(model, View(), width, 20, glyphs=glyphs).lines()[-1]
        assert labels.endswith(" step of its session")
        assert len(labels.split()) >= 3 + 4
    assert [series.label for series in model.series] == ["s1", "s2", "s3"]
    assert [series.x[0] for series in model.series] == [1, 1, 1]
    assert [series.x[-1] for series in model.series] == [237, 200, 200]
    assert len({series.hue for series in model.series}) == 3
    assert not model.lines
    assert max(mark.x for mark in model.marks) <= 237


@pytest.mark.parametrize("axis", AXES)
def test_a_model_built_while_the_log_grew_is_the_one_built_at_once(folder, tmp_path, axis):
    grown = tmp_path / folder.name
    grown.mkdir()
    (grown / "run.json").write_bytes((folder / "run.json").read_bytes())
    whole = (folder / "metrics.jsonl").read_bytes()
    log = grown / "metrics.jsonl"
    log.write_bytes(b"")
    view = lineage.read(grown, cache=False)
    memo = Memo()
    cuts = [whole.index(b"\n", len(whole) * share // 7) + 1 for share in range(1, 7)] + [len(whole)]
    for cut in cuts:
        log.write_bytes(whole[:cut])
        view.refresh()
        models = chart_models(view, ["loss", "tokens_per_s"], axis)
        frames = [render(model, View(smoothing=0.9), 90, 24, memo=memo) for model in models]
    fresh = chart_models(lineage.read(folder, cache=False), ["loss", "tokens_per_s"], axis)
    for frame, model in zip(frames, fresh, strict=True):
        assert frame.same_as(render(model, View(smoothing=0.9), 90, 24))


def test_only_appended_rows_are_read_again(folder, tmp_path, monkeypatch):
    grown = tmp_path / folder.name
    grown.mkdir()
    whole = (folder / "metrics.jsonl").read_bytes()
    cut = whole.rindex(b'{"kind":"step"')
    (grown / "run.json").write_bytes((folder / "run.json").read_bytes())
    (grown / "metrics.jsonl").write_bytes(whole[:cut])
    view = lineage.read(grown, cache=False)
    (first,) = chart_models(view, ["lr"])
    before = first.series[0].x
    with (grown / "metrics.jsonl").open("ab") as log:
        log.write(whole[cut:])
    view.refresh()
    asked = []
    real = view.stretches
    monkeypatch.setattr(view, "stretches", lambda *a, **k: asked.append((a, k)) or real(*a, **k))
    (second,) = chart_models(view, ["lr"])
    assert asked == [(("lr",), {"start": 599})]
    assert second.series[0].x.size == 600
    assert before.size == 599


def test_a_resume_that_takes_steps_back_moves_them_to_the_dimmed_curve(folder, tmp_path):
    grown = tmp_path / folder.name
    grown.mkdir()
    whole = (folder / "metrics.jsonl").read_bytes()
    second = whole.index(b'{"kind":"session_start"', 10)
    (grown / "metrics.jsonl").write_bytes(whole[:second])
    view = lineage.read(grown, cache=False)
    (first,) = chart_models(view, ["lr"])
    assert [series.x.size for series in first.series] == [237]
    (grown / "metrics.jsonl").write_bytes(whole)
    view.refresh()
    (after,) = chart_models(view, ["lr"])
    assert [series.x.size for series in after.series] == [600, 38]


def test_a_process_that_died_in_a_phase_leaves_an_open_span(folder, tmp_path):
    grown = tmp_path / folder.name
    grown.mkdir()
    whole = (folder / "metrics.jsonl").read_bytes()
    cut = whole.index(b'"phase":"eval"') + 1
    cut = whole.index(b"\n", cut) + 1
    (grown / "run.json").write_bytes((folder / "run.json").read_bytes())
    (grown / "metrics.jsonl").write_bytes(whole[:cut])
    (model,) = chart_models(lineage.read(grown, cache=False), ["lr"])
    assert [(span.kind, span.x0) for span in model.spans] == [("eval", 100)]


def test_steps_without_a_session_record_and_odd_events_do_not_stop_the_charts(folder, tmp_path):
    grown = tmp_path / folder.name
    grown.mkdir()
    first = orjson.loads((folder / "metrics.jsonl").read_bytes().split(b"\n", 1)[0])
    odd = [
        {"kind": "note", "text": "\x1b[31mred"},
        {"kind": "phase_end", "phase": "eval", "duration_s": 1.0},
        {"kind": "fp16_skip", "scale_before": 2.0, "scale_after": 1.0},
        {"kind": "brand_new", "step": 3},
        {"kind": "alert", "code": "x", "message": "m", "step": 2},
    ]
    with (grown / "metrics.jsonl").open("wb") as log:
        log.write((folder / "metrics.jsonl").read_bytes().split(b"\n", 1)[0] + b"\n")
        for event in odd:
            log.write(encode_event({**{key: first[key] for key in ("ts", "run", "session")}, **event}))
    view = lineage.read(grown, cache=False)
    for axis in AXES:
        (model,) = chart_models(view, ["loss"], axis)
        render(model, View(), 60, 20)


@pytest.mark.parametrize(
    ("continuation", "words"),
    [
        (None, ""),
        (Continuation(verdict="exact", from_step=1, compared_steps=2), "exact"),
        (Continuation(verdict="within_tolerance", from_step=1, compared_steps=2), "within tolerance"),
        (Continuation(verdict="unproven", from_step=1, compared_steps=0), "unproven"),
        (
            Continuation(
                verdict="diverged",
                from_step=400,
                compared_steps=2,
                first_difference=FirstDifference(step=401, field="batch"),
            ),
            "diverged @401",
        ),
    ],
)
def test_verdicts_are_told_in_a_word_or_two(continuation, words):
    assert verdict_words(continuation) == words


@pytest.mark.parametrize(("name", "label"), [("*-careless", "s2 diverged @251"), ("*-tiny-gpt", "s2 exact")])
def test_a_boundary_says_what_the_log_proves_not_what_was_recorded(tmp_path, name, label):
    """The careless restart recorded no verdict at all."""
    sample = tmp_path / "run"
    shutil.copytree(next(SAMPLES.glob(name)), sample, ignore=shutil.ignore_patterns(".cache"))
    view = lineage.read(sample)
    (told,) = chart_models(view, ["loss"], verdicts={str(row.session): row for row in audit_view(view)})
    assert label in [line.label for line in told.lines]
    if name == "*-careless":
        (silent,) = chart_models(view, ["loss"])
        assert "s2 fresh start" in [line.label for line in silent.lines]


def test_metrics_that_grow_at_the_same_steps_share_them_and_part_when_they_differ(tmp_path):
    """Ten million points would otherwise hold the same two million steps once a metric."""
    run = write_run(tmp_path, steps=200, sessions=1, live=True)
    view = lineage.read(run, cache=False)
    loss, rate = (model.series[0] for model in chart_models(view, ["loss", "lr"]))
    assert np.shares_memory(loss.x, rate.x)
    shared = {"ts": 2e9, "run": view.record.id, "session": view.sessions[-1].id, "kind": "step"}
    lines = [{**shared, "step": n, "metrics": {"loss": 1.0, **({"lr": 2.0} if n % 2 else {})}} for n in range(201, 211)]
    for part in (lines[:1], lines[1:6], lines[6:]):
        with (run / "metrics.jsonl").open("ab") as out:
            out.write(b"".join(map(encode_event, part)))
        view.refresh()
        loss, rate = (model.series[0] for model in chart_models(view, ["loss", "lr"]))
    assert loss.x.tolist() == list(range(1, 211))
    assert rate.x.tolist() == [*range(1, 201), *range(201, 211, 2)]
    for axis in AXES:
        grown = chart_models(view, ["loss", "lr"], axis)
        fresh = chart_models(lineage.read(run, cache=False), ["lr", "loss"], axis)
        for name in ("loss", "lr"):
            assert of(grown, name).series[0].x.tolist() == of(fresh, name).series[0].x.tolist()


def test_a_learning_rate_is_never_smoothed_and_the_header_does_not_say_so(view):
    (rate,) = chart_models(view, ["lr"])
    frame = render(rate, View(smoothing=0.99), 100, 30)
    assert not frame.facts.smoothing
    assert frame.same_as(render(rate, View(), 100, 30))


def test_superseded_steps_are_smoothed_with_what_came_before_them(view):
    (model,) = chart_models(view, ["grad_norm"])
    bright, dim = model.series
    memo = Memo()
    smooth, _ = memo.smoothed(bright, 0.99)
    branch, _ = memo.smoothed(dim, 0.99)
    assert branch[0] == pytest.approx(smooth[199], rel=1e-9)
