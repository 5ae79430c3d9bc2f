"""Where a loop stands inside its step, told from the little that a loop says of it."""

import pytest

from lineage.trainer.progress import Progress

DONE = {"updated": Progress.updated, "logged": Progress.trained}


def take(progress: Progress) -> None:
    progress.taken = True


@pytest.mark.parametrize("done", DONE.values(), ids=DONE)
def test_a_step_is_the_last_one_as_soon_as_its_training_is_done(done) -> None:
    progress = Progress()
    assert progress.enter() == 1
    take(progress)
    assert (progress.last, progress.is_between) == (0, True)
    done(progress)
    assert (progress.last, progress.step, progress.is_between, progress.is_ahead) == (1, 0, False, False)
    progress.complete()
    assert (progress.last, progress.step, progress.current) == (1, 1, None)


def test_the_second_of_two_microbatches_is_between_as_the_first_was() -> None:
    progress = Progress()
    progress.enter()
    for _ in range(2):
        take(progress)
        assert progress.is_between
    progress.updated()
    assert not progress.is_between


def test_a_batch_taken_after_the_training_of_its_step_is_ahead_until_something_trains_on_it() -> None:
    progress = Progress()
    progress.enter()
    progress.trained()
    take(progress)
    assert (progress.is_ahead, progress.is_between) == (True, False)
    progress.complete()
    progress.enter()
    assert (progress.is_ahead, progress.is_between) == (True, False)
    progress.updated()
    assert not progress.is_ahead


def test_a_step_without_any_training_is_complete_with_its_batch() -> None:
    progress = Progress()
    progress.enter()
    take(progress)
    progress.complete()
    assert (progress.step, progress.is_ahead) == (1, False)


@pytest.mark.parametrize(("is_trained", "step"), [(True, 1), (False, 0)])
def test_a_body_that_is_left_completes_its_step_if_its_training_is_done(is_trained, step) -> None:
    progress = Progress()
    progress.enter()
    take(progress)
    if is_trained:
        progress.trained()
    progress.leave()
    assert (progress.step, progress.current) == (step, None)
    assert progress.is_ahead != is_trained
    assert not progress.is_between
