"""docs/reading.md does what it says: its code runs, in order, on a run."""

import re
from pathlib import Path

from benchmarks.synthetic import write_run

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"


def test_the_code_of_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "runs", name="tiny-gpt", steps=600, sessions=3)
    assert run.name in PAGE.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    out = capsys.readouterr().out
    assert "completed ['fresh', 'resume', 'resume']" in out
    assert "600 600" in out
    assert out.rstrip().endswith("%")


def test_the_page_names_every_array_of_a_series():
    from dataclasses import fields

    from lineage import Series

    for field in fields(Series):
        assert f"| `{field.name}` |" in PAGE.read_text("utf-8")
