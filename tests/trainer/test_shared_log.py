"""A run's folder copied by hard links has one log under two names."""

import os
import shutil

import lineage


def test_a_session_on_a_log_with_two_names_says_so_once_and_goes_on(tmp_path, capsys) -> None:
    with lineage.init(tmp_path / "runs", name="a", recipe={}, resume="never") as run:
        run.log(loss=1.0)
    assert "hard links" not in capsys.readouterr().err
    copy = tmp_path / "copies" / run.id
    shutil.copytree(run.path, copy, copy_function=os.link)
    with lineage.init(tmp_path / "copies", name="a", recipe={}, resume=str(copy)) as again:
        again.log(loss=2.0)
        again.log(loss=3.0)
    told = capsys.readouterr().err
    assert told.count("2 names (hard links)") == told.count("mv own metrics.jsonl") == 1
    view = lineage.read(copy)
    assert [event.code for event in view.events("alert")] == ["log_shared"]
    assert view.series("loss", session=again.session).value.tolist() == [2.0, 3.0]
    assert view.events("session_start")[1].ordinal == 2


def test_the_way_on_that_it_names_ends_the_warning(tmp_path, capsys) -> None:
    with lineage.init(tmp_path, name="a", recipe={}, resume="never") as run:
        run.log(loss=1.0)
    os.link(run.path / "metrics.jsonl", tmp_path / "other")
    shutil.copy(run.path / "metrics.jsonl", run.path / "own")
    (run.path / "own").rename(run.path / "metrics.jsonl")
    with lineage.init(tmp_path, name="a", recipe={}, resume=run.id) as again:
        again.log(loss=2.0)
    assert "hard links" not in capsys.readouterr().err
    assert (tmp_path / "other").read_bytes().count(b"session_start") == 1
