"""The benchmarks compare what they say they compare; run here with Lineage and the bare write, which need no peers."""

from __future__ import annotations

import json

import pytest

from benchmarks import nan, page, resume
from benchmarks.__main__ import available
from benchmarks.kill import kill_peer
from benchmarks.peers import PEERS, REQUIREMENTS, chosen
from benchmarks.peers.base import NAMES
from benchmarks.peers.child import lost_in
from benchmarks.peers.driver import PeerError, run, workplace
from benchmarks.report import Report


def test_a_step_counts_as_lost_when_any_curve_lacks_it() -> None:
    curves = {name: ([1, 2, 3, 4], [0.0] * 4) for name in NAMES} | {"lr": ([1, 3], [0.0, 0.0])}
    assert lost_in(curves, 4) == 2
    assert lost_in(curves, 6) == 4
    assert lost_in({}, 6) == 6


def test_no_step_of_the_hook_is_lost_and_a_kill_happens_while_it_logs() -> None:
    with workplace() as folder:
        kills = kill_peer(PEERS["lineage"], folder / "runs", 3, (0.0, 0.02))
    assert [one["lost"] for one in kills] == [0, 0, 0]
    assert all(one["acknowledged"] > 0 for one in kills)


def test_the_cost_of_the_hook_is_measured_with_what_it_writes() -> None:
    with workplace() as folder:
        found = run(PEERS["lineage"], "cost", folder / "run", "--paced=3", "--flat=200", "--budget=5")
    assert found["flat_steps"] == 200
    assert found["helpers"] == 0
    assert 250 < found["bytes"] < 500
    assert found["flat_us"] == sorted(found["flat_us"])


def test_every_value_of_a_loss_comes_back_from_lineage_and_not_from_plain_json() -> None:
    report = nan.run(peers="bare,lineage")
    assert report.holds
    assert [row["kept"] for row in report.rows] == [0.4, 1.0]


def test_lineage_shows_one_line_after_a_resume_and_plain_json_shows_both() -> None:
    report = resume.run(peers="bare,lineage")
    assert report.holds
    assert [row["steps 51-100 show"] for row in report.rows] == ["50x first+second", "50x second"]


def test_a_peer_that_cannot_run_is_an_error_that_says_why() -> None:
    with workplace() as folder, pytest.raises(PeerError, match="lineage, the hook, log: exit"):
        run(PEERS["lineage"], "log", folder / "run", "--given=[[0]]")


def test_an_unknown_tracker_is_refused_and_one_that_is_not_installed_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LINEAGE_BENCH_PEERS", str(tmp_path))
    assert [peer.name for peer in chosen(None)] == ["bare", "writer", "lineage"]
    with pytest.raises(ValueError, match="nothing"):
        chosen("nothing")


def test_every_tracker_has_an_environment_and_no_environment_pulls_an_unpinned_torch() -> None:
    assert {peer.environment for peer in PEERS.values()} - {None} == set(REQUIREMENTS) - {"readers"}
    assert all("torch" not in wanted or "==" in wanted for wanted in sum(REQUIREMENTS.values(), ()))


def test_the_page_is_filled_from_results_and_keeps_what_people_wrote(tmp_path) -> None:
    report = Report("a | b", [{"what": "x|y", "ratio": 2.0, "empty": None}], {"it is so": False})
    report.more.append(Report("more", [{"what": "z"}]))
    machine = {"date": "2026-11-29", "cpu": "C", "cpus": 2, "system": "Linux", "python": "3.11", "load_1m": 0.5}
    (tmp_path / "log.json").write_text(json.dumps(report.to_json() | {"machine": machine, "seconds": 61.2}))
    before = "one\n<!-- log -->\nstale words\n<!-- end -->\ntwo\n<!-- kill -->\nkept\n<!-- end -->\n"
    after = page.fill(before, tmp_path)
    assert after.startswith("one\n<!-- log -->\n")
    assert "stale words" not in after
    assert "Took 61 s. 2026-11-29, C, 2 CPUs" in after
    assert "| what | ratio |" in after
    assert "| x\\|y | 2.00 |" in after
    assert "**does not hold**: it is so" in after
    assert after.endswith("two\n<!-- kill -->\nkept\n<!-- end -->\n")
    assert page.fill(after, tmp_path) == after


def test_every_part_of_the_page_is_a_benchmark_and_every_benchmark_has_a_part() -> None:
    places = {place["name"] for place in page._PLACE.finditer(page.PAGE.read_text())}
    assert places >= set(available())
