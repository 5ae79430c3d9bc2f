"""What the verbs answer about a run that is damaged: what could be read, what could not, and code 1."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from benchmarks.synthetic import write_run
from tests.without_rights import UNDER_NO_RIGHTS


@pytest.fixture
def run(place):
    return next((place / "runs").iterdir())


@pytest.fixture
def generation(run):
    return min((run / "checkpoints").glob("step-*"))


def spoil(run, *numbers: int) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    for number in numbers:
        lines[number] = b"\x00garbage"
    (run / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")


@pytest.mark.parametrize("words", [("audit",), ("audit", "--json"), ("explain",), ("explain", "--step", "5")])
class TestDamagedLog:
    def test_a_whole_run_is_0_and_says_nothing_of_damage(self, run, lineage, words):
        code, _, err = lineage(words[0], run.name, *words[1:])
        assert (code, "damaged" in err) == (0, False)

    def test_one_place_is_named_and_the_code_is_1(self, run, lineage, words):
        spoil(run, 20)
        offset = (run / "metrics.jsonl").read_bytes().index(b"\x00garbage")
        code, out, err = lineage(words[0], run.name, *words[1:])
        assert code == 1
        assert out
        assert f"the log is damaged at bytes {offset} to {offset + 9}: " in err

    def test_several_are_counted_and_the_first_is_named(self, run, lineage, words):
        spoil(run, 20, 40, 60)
        code, _, err = lineage(words[0], run.name, *words[1:])
        assert code == 1
        assert "the log is damaged in 3 places, first at bytes " in err
        assert f"  try: lineage repair {run.name} --dry-run lists them" in err

    def test_a_missing_record_is_damage_and_no_place_in_the_log(self, run, lineage, words):
        (run / "run.json").unlink()
        code, out, err = lineage(words[0], run.name, *words[1:])
        assert code == 1
        assert out
        assert "run.json" in err
        assert "the log is damaged" not in err


def test_what_a_damaged_record_and_log_do_not_tell_is_unknown(run, lineage):
    """A step of 2^63 - 1 and the epoch are nothing that was read; neither is shown as if it were."""
    (run / "run.json").write_text("{")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    spoilt = [line | ({"step": 2**63 - 1} if "step" in line else {}) for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spoilt))
    code, out, _ = lineage("show", run.name)
    assert code == 1
    assert "created: unknown\n" in out
    assert "1970" not in out
    assert "last step" not in out
    found = json.loads(lineage("show", run.name, "--json")[1])
    assert found["created_at"] is None


def test_a_time_of_the_first_years_has_four_digits_of_year(run, lineage):
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"created_at": "0001-01-01T00:00:00Z"}))
    assert "created: 0001-01-01 00:00:00Z\n" in lineage("show", run.name)[1]


class TestCheckpoints:
    def test_whole_ones_are_0(self, run, lineage):
        code, _, err = lineage("checkpoints", run.name)
        assert (code, err) == (0, "")

    def test_a_folder_with_another_name_than_its_manifest_is_marked_as_verify_reports_it(
        self, run, lineage, generation
    ):
        other = generation.with_name(generation.name.replace("step-00000050", "step-00000051"))
        shutil.copytree(generation, other)
        code, out, err = lineage("checkpoints", run.name)
        assert code == 1
        (row,) = [line for line in out.splitlines() if other.name in line]
        assert "damaged" in row
        assert sum("damaged" in line for line in out.splitlines()) == 1
        assert f"damaged: {other.name}: the folder is named {other.name} and its manifest {generation.name}" in err
        problems = {
            g["name"]: g["problem"] for g in json.loads(lineage("checkpoints", run.name, "--json")[1])["generations"]
        }
        assert problems[generation.name] is None
        assert problems[other.name]
        assert other.name in lineage("verify", run.name)[1]

    def test_a_manifest_that_is_not_json_is_malformed_at_no_place(self, run, lineage, generation):
        import hashlib

        (generation / "manifest.json").write_bytes(b"{")
        sha = hashlib.sha256(b"{").hexdigest()
        marker = (generation / "COMMIT").read_text().split()
        (generation / "COMMIT").write_text(" ".join([*marker[:-1], sha]) + "\n")
        _, out, err = lineage("checkpoints", run.name)
        assert "the manifest is malformed: Invalid JSON" in err + out
        assert "malformed at" not in err + out

    def test_five_unfinished_saves_are_named_and_more_are_counted(self, run, lineage):
        for number in range(5):
            (run / "checkpoints" / f"step-{900 + number:08d}-s03-{number:08x}").mkdir()
        named = lineage("verify", run.name)[2].splitlines()
        assert len([line for line in named if "never finished" in line]) == 5
        for number in range(5, 50):
            (run / "checkpoints" / f"step-{900 + number:08d}-s03-{number:08x}").mkdir()
            (run / "checkpoints" / f"stranger-{number}").touch()
        code, out, err = lineage("verify", run.name)
        assert (code, ": all verified" in out) == (0, True)
        (unfinished,) = [line for line in err.splitlines() if "never finished" in line]
        assert "step-00000900-s03-00000000 and 49 more" in unfinished
        (unknown,) = [line for line in err.splitlines() if "not a generation" in line]
        assert "stranger-10 and 44 more" in unknown
        assert len(json.loads(lineage("verify", run.name, "--json")[1])["notes"]) == 2


class TestTreeOfWhatMayNotBeEntered:
    @pytest.fixture
    def recorded(self, run, generation):
        """A generation that the record tells of."""
        name = json.loads((run / "run.json").read_text())["sessions"][1]["checkpoints"][0]
        shutil.copytree(generation, generation.with_name(name))
        return generation.with_name(name)

    @pytest.fixture
    def tree(self, place):
        def draw(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", UNDER_NO_RIGHTS, "show", "--tree", *words]
            environment = {**os.environ, "PYTHONUTF8": "1"}
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
            if done.returncode == 77:
                pytest.skip("the rights of root cannot be given away here")
            return done

        return draw

    @pytest.mark.parametrize("what", ["a checkpoint", "exports"])
    def test_it_is_told_in_its_place_and_the_rest_is_drawn(self, run, recorded, lineage, tree, what):
        (run / "exports" / "final").mkdir(parents=True)
        whole = lineage("show", "--tree", "tiny-gpt")[1].splitlines()
        closed = recorded if what == "a checkpoint" else run / "exports"
        name = closed.name
        closed.chmod(0)
        try:
            done = tree("tiny-gpt")
        finally:
            closed.chmod(0o700)
        assert done.returncode == 1
        drawn = done.stdout.splitlines()
        told = [line for line in drawn if line.endswith("  cannot be read: Permission denied")]
        assert len(told) == 1
        assert name in told[0]
        assert [line for line in drawn if line != told[0]] == [
            line for line in whole if (name if what == "a checkpoint" else "export final") not in line
        ]
        assert done.stderr == (
            f"cannot be read: {run.name}/{name}: Permission denied\n"
            "  try: ls -l shows whose it is; its owner can let you in with chmod\n"
        )

    def test_of_a_run_that_is_no_kin_nothing_is_said(self, place, recorded, tree):
        write_run(place / "runs", name="other", steps=5, sessions=1)
        recorded.chmod(0)
        try:
            done = tree("other")
        finally:
            recorded.chmod(0o700)
        assert (done.returncode, done.stderr) == (0, "")
