"""audit, diff, explain, show and whence, asked for what is not there: an answer, and never silence that looks like one."""

import json
import os

import pytest


@pytest.fixture
def run(place):
    return next((place / "runs").iterdir())


def test_a_metric_that_was_never_logged_is_not_audited_in_silence(run, lineage):
    code, out, err = lineage("audit", "tiny-gpt", "--metric", "accuracy")
    assert (code, out) == (2, "")
    assert err == "error: no metric is called 'accuracy'\n  try: logged are loss, lr, grad_norm, tokens_per_s, step_s\n"
    assert lineage("audit", "tiny-gpt", "--metric", "grad_norm")[0] == 0


class TestExplain:
    """The first session trained steps 1 to 137, the second went on from 100, the third from 200."""

    @pytest.mark.parametrize(
        ("ref", "step", "says"),
        [
            ("tiny-gpt@1", 120, "step 120 of session 1 was trained again, so it does not count"),
            ("tiny-gpt@1", 250, "session 1 has no step 250 that counts"),
            ("tiny-gpt@2", 100, "session 2 has no step 100 that counts"),
        ],
    )
    def test_a_step_that_does_not_count_is_said_to_and_which_do(self, run, lineage, ref, step, says):
        counts = {"1": "1 to 100", "2": "101 to 200"}[ref[-1]]
        code, out, err = lineage("explain", ref, "--step", str(step))
        assert (code, out) == (3, "")
        assert f"error: {says}\n" in err
        assert f"  try: the run without {ref[-2:]}; of this session, steps {counts} do\n" in err

    @pytest.mark.parametrize(("ref", "step"), [("tiny-gpt@1", 100), ("tiny-gpt@2", 101), ("tiny-gpt@3", 300)])
    def test_a_step_of_the_session_is_answered(self, run, lineage, ref, step):
        code, out, err = lineage("explain", ref, "--step", str(step))
        assert (code, err) == (0, "")
        assert out.startswith(f"step {step}\n")

    def test_the_steps_of_a_run_begin_where_its_own_begin(self, run, lineage):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        record = json.loads((run / "run.json").read_text())
        third = record["sessions"][2]["id"]
        (run / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines if line["session"] == third)
        )
        record["sessions"] = record["sessions"][2:]
        (run / "run.json").write_text(json.dumps(record))
        code, _, err = lineage("explain", "tiny-gpt", "--step", "150")
        assert code == 3
        assert "  try: it trained steps 201 to 300\n" in err


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_text("{")])
@pytest.mark.parametrize(
    "refs", [("{path}@1", "{id}@3"), ("{path}@2",), ("{path}",), ("{path}", "live"), ("live", "{path}")]
)
def test_two_sessions_of_which_nothing_is_known_do_not_pass_for_equal(run, lineage, harm, refs):
    harm(run / "run.json")
    code, out, err = lineage("diff", *(ref.format(id=run.name, path=run) for ref in refs))
    assert (code, out) == (1, "")
    assert err.startswith("error: there is nothing to compare: ")
    assert f"  at {run / 'run.json'}\n  try: put it back from a copy" in err


class TestShow:
    @pytest.mark.parametrize("words", [("tiny-gpt",), ("tiny-gpt@2",), ("tiny-gpt", "--json")])
    @pytest.mark.parametrize("what", ["missing", "empty"])
    def test_a_log_that_is_gone_is_said_and_the_record_is_shown(self, run, lineage, words, what):
        (run / "metrics.jsonl").unlink() if what == "missing" else (run / "metrics.jsonl").write_text("")
        code, out, err = lineage("show", *words)
        assert code == 1
        assert run.name in out
        assert err.startswith(f"damaged: metrics.jsonl is {what}, though run.json tells of 300 steps\n  try: ")

    def test_a_run_that_never_logged_a_step_lacks_nothing(self, run, lineage):
        (run / "metrics.jsonl").unlink()
        record = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(record | {"sessions": []}))
        assert lineage("show", "tiny-gpt")[::2] == (0, "")


class TestWhence:
    @pytest.fixture
    def generations(self, run):
        return sorted(str(path) for path in (run / "checkpoints").glob("step-*"))

    @pytest.mark.parametrize(
        ("path", "code", "says"),
        [
            ("tiny-gpt", 3, "there is no such file or folder\n  at tiny-gpt\n  try: a path, not a REF"),
            ("runs", 3, "this folder is no checkpoint\n  at runs\n  try: name a generation's folder"),
            ("runs/{id}/run.json", 1, "neither a safetensors file nor one of torch.save"),
        ],
    )
    def test_what_is_no_checkpoint_has_a_next_step(self, run, lineage, path, code, says):
        found, out, err = lineage("whence", path.format(id=run.name))
        assert (found, out) == (code, "")
        assert says in err
        assert "\n  try: " in err

    def test_of_several_the_others_are_answered(self, run, lineage, generations):
        code, out, err = lineage("whence", generations[0], "nothing", str(run / "run.json"), generations[1])
        assert code == 3
        assert [line for line in out.splitlines() if not line.startswith(" ")] == [
            f"{path}: step {step} of session {json.loads((run / 'run.json').read_text())['sessions'][at]['id']}, run {run.name}"
            for path, step, at in ((generations[0], 50, 0), (generations[1], 300, 2))
        ]
        assert err.count("error: ") == 2
        assert "  at nothing\n" in err

    def test_in_json_each_path_has_its_answer_in_order(self, run, lineage, generations):
        paths = [generations[0], str(run / "run.json"), os.fspath(run / "checkpoints" / "ledger.jsonl"), generations[1]]
        code, out, _ = lineage("whence", *paths, "--json")
        found = json.loads(out)["results"]
        assert [item["path"] for item in found] == paths
        assert [len(item["matches"]) for item in found] == [1, 0, 0, 1]
        assert code in {1, 3}


class TestDiffOfEqualSessions:
    """No difference is an answer only with what was looked at."""

    @pytest.fixture
    def equal(self, run):
        """The first two sessions, on one host."""
        record = json.loads((run / "run.json").read_text())
        for session in record["sessions"]:
            session["host"] = "node"
            session["recipe"] = record["sessions"][0]["recipe"]
        record["sessions"][1] = record["sessions"][1] | {
            name: record["sessions"][0][name] for name in ("environment", "source", "argv", "data", "world", "runtime")
        }
        (run / "run.json").write_text(json.dumps(record))
        return record

    def test_what_was_compared_is_counted_by_section(self, run, equal, lineage):
        code, out, err = lineage("diff", "tiny-gpt@1", "tiny-gpt@2")
        assert (code, err) == (0, "")
        found = json.loads(lineage("diff", "tiny-gpt@1", "tiny-gpt@2", "--json")[1])
        assert (found["differences"], found["not_compared"]) == ([], [])
        counts = found["equal"]
        assert counts["world"] >= 3
        label, said, counted, *rest = out.splitlines()
        assert label == f"{run.name}@1 -> {run.name}@2"
        assert said == f"no difference: {sum(counts.values())} values compared, all equal"
        assert counted.startswith("  values compared and equal: ")
        for section, count in counts.items():
            assert f"{section} {count}" in counted
        assert rest == ([] if "data" in counts else ["  recorded of neither: data"])

    def test_the_counts_are_those_of_what_all_lists(self, equal, lineage):
        found = json.loads(lineage("diff", "tiny-gpt@1", "tiny-gpt@2", "--json", "--all")[1])
        listed = [entry["section"] for entry in found["same"]]
        assert found["equal"] == {section: listed.count(section) for section in listed}

    def test_a_session_against_itself_is_said_to_be(self, run, lineage):
        code, out, err = lineage("diff", "tiny-gpt", "tiny-gpt@3")
        assert code == 0
        assert "no difference: " in out
        assert err == "both sides are the same session; one REF alone is compared with the session before it\n"

    def test_a_section_that_one_side_does_not_know_is_not_counted_as_equal(self, run, equal, lineage):
        equal["environments"].clear()
        (run / "run.json").write_text(json.dumps(equal))
        code, out, err = lineage("diff", "tiny-gpt@1", "tiny-gpt@2")
        assert (code, "environment" in out) == (0, False)
        assert err == "not compared, since one side does not know it: environment\n"
