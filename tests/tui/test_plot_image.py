"""`lineage plot --output`: pictures that say what the terminal's charts say."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.synthetic import write_run
from lineage.cli import main
from lineage_tui.plot import ChartModel, Mark, SeriesData, Span, View, VLine
from lineage_tui.plot.layout import edges_of
from lineage_tui.plot_image import COLUMNS, SUFFIXES, _draw_all, _polyline, save
from lineage_tui.theme import palette

VIEW = View()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs"), steps=400, sessions=3)


def words_of(svg):
    """The texts of a picture; matplotlib notes each beside its outlines."""
    return re.findall(r"<!-- (.*?) -->", svg)


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF"), (".SVG", b"<?xml")]
)
def test_the_suffix_says_what_the_picture_becomes(folder, tmp_path, capsys, suffix, magic):
    path = tmp_path / f"loss{suffix}"
    assert main(["plot", str(folder), "--metric", "loss", "--output", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes().startswith(magic)


def test_titles_ticks_verdicts_and_every_overlay_are_named(folder, tmp_path):
    path = tmp_path / "all.svg"
    assert main(["plot", str(folder), "--smoothing", "0.9", "-o", str(path)]) == 0
    words = words_of(path.read_text(encoding="utf-8"))
    for word in (
        "loss", "lr", "grad_norm", "tokens_per_s", "step", "ema 0.9", "s2 exact", "s3 unproven",
        "superseded steps", "session boundary", "session died", "eval phase", "checkpoint phase", "eval",
        "learning rate restored", "FP16 step skipped", "non-finite value", "checkpoint", "synthetic", "synthetic, raw",
    ):  # fmt: skip
        assert word in words, word


def test_the_same_run_gives_the_same_bytes(folder, tmp_path):
    for suffix in (".svg", ".png"):
        one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
        for path in (one, two):
            assert main(["plot", str(folder), "--metric", "lr", "-o", str(path)]) == 0
        assert one.read_bytes() == two.read_bytes()


def test_a_picture_that_is_there_stays_unless_forced(folder, tmp_path, capsys):
    path = tmp_path / "loss.svg"
    path.write_text("mine")
    assert main(["plot", str(folder), "-o", str(path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["plot", str(folder), "--metric", "lr", "-o", str(path), "--force"]) == 0
    assert path.read_text(encoding="utf-8").startswith("<?xml")


def test_other_suffixes_are_refused_by_name(folder, tmp_path, capsys):
    assert main(["plot", str(folder), "-o", str(tmp_path / "loss.bmp")]) == 2
    told = capsys.readouterr().err
    assert all(suffix in told for suffix in SUFFIXES)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_extra_is_named(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(folder), "-o", str(tmp_path / "loss.svg")]) == 2
    assert "lineage-tracker[plot]" in capsys.readouterr().err


def test_text_charts_do_not_load_matplotlib(folder):
    code = f"import sys\nfrom lineage.cli import main\nmain(['plot', {str(folder)!r}])\nsys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_a_spike_among_many_samples_is_in_the_picture():
    n = COLUMNS * 30
    y = np.zeros(n)
    y[12_345] = 99.0
    y[40_000] = np.nan
    series = SeriesData("a", "a", np.arange(float(n)), y)
    xs, ys = _polyline(series, y, edges_of(0.0, n - 1.0, COLUMNS, log=False))
    assert ys[np.isfinite(ys)].max() == 99.0
    assert xs.size <= 2 * COLUMNS
    assert (np.diff(xs) >= 0).all()


def test_breaks_part_the_line_of_few_samples_and_of_many():
    for n in (100, COLUMNS * 10):
        x = np.concatenate((np.arange(float(n)), np.arange(float(n)) + 3 * n))
        series = SeriesData("a", "a", x, np.ones(2 * n), breaks=np.array([n]))
        xs, ys = _polyline(series, series.y, edges_of(0.0, x[-1], COLUMNS, log=False))
        inside = (xs > n + n * 0.01) & (xs < 3 * n * 0.99)
        assert not np.isfinite(ys[inside]).any()
        left = np.flatnonzero(np.isfinite(ys) & (xs <= n))[-1]
        right = np.flatnonzero(np.isfinite(ys) & (xs >= 3 * n * 0.99))[0]
        assert np.isnan(ys[left + 1 : right]).any()


@pytest.mark.parametrize("name", ["_hidden", "$x^2$", "\x1b[31mred", "日本語", "--> <script>", "a" * 5000, "\ud800"])
def test_names_of_strangers_do_not_break_a_picture(tmp_path, name):
    x = np.arange(30.0)
    model = ChartModel(
        name,
        [SeriesData("a", name, x, x), SeriesData("b", "b", x, -x, hue=1)],
        spans=[Span(3, 5, name)],
        lines=[VLine(7, "boundary", name)],
        marks=[Mark(2, "note", name)],
        y_unit=name,
        x_label=name,
    )
    path = tmp_path / "x.svg"
    save([model], View(smoothing=0.5, log_x=True), path, dark=True)
    import xml.etree.ElementTree as ET

    ET.parse(path)  # still well-formed
    assert "<script>" not in path.read_text(encoding="utf-8")


def test_nothing_to_draw_is_an_empty_picture_and_no_error(tmp_path):
    save([ChartModel("loss")], View(log_y=True), tmp_path / "x.png")
    save([], View(), tmp_path / "y.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def drawn(model, view=VIEW):
    """The axes of one chart, and what its legend explains."""
    from matplotlib.figure import Figure

    figure = Figure()
    legend = _draw_all(figure, [model], view, palette("truecolor", dark=False))
    return figure.axes[0], legend


def test_words_of_boundaries_stand_over_the_plot_and_apart():
    x = np.arange(1000.0)
    lines = [VLine(at, "boundary", f"s{number} exact") for number, at in enumerate((0, 400, 410, 412, 999), 2)]
    axes, _ = drawn(ChartModel("loss", [SeriesData("a", "a", x, x)], lines=[*lines, VLine(430, "death", "s1 killed")]))
    words = [(text.get_text(), text.xy) for text in axes.texts]
    assert [text for text, _ in words] == ["s2 exact", "s3 exact", "s6 exact"]
    assert all(y == 1.0 for _, (_, y) in words)
    assert all(text.get_verticalalignment() == "bottom" for text in axes.texts)
    assert words[-1][1][0] < 0.95  # moved in from the right end


@pytest.mark.parametrize("n", [500, COLUMNS * 10])
def test_what_lies_beyond_the_y_axis_is_marked_at_its_place(n):
    y = np.sin(np.arange(float(n)))
    y[n // 4], y[n // 2] = 900.0, -900.0
    model = ChartModel("grad_norm", [SeriesData("a", "a", np.arange(float(n)), y)])
    axes, legend = drawn(model)
    marks = {line.get_marker(): line.get_xdata() for line in axes.lines if line.get_marker() in {"^", "v"}}
    assert {marker: len(at) for marker, at in marks.items()} == {"^": 1, "v": 1}
    assert abs(marks["^"][0] - n / 4) <= n / 100
    assert abs(marks["v"][0] - n / 2) <= n / 100
    assert "beyond the axis" in legend
    assert "beyond the axis" not in drawn(model, View(clip=False))[1]
