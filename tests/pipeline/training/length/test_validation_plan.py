"""Validation takes at most a tenth of a time limit, and a replay validates the same."""

from __future__ import annotations

import numpy as np
import pytest

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.training.length import validation_plan
from patchline.pipeline.training.length.validation_plan import EachEpoch, Recorded, Timed
from patchline.pipeline.training.training_data import open_data
from tests.pipeline.training.trained_jobs import Make, trained


def test_a_slow_validation_uses_a_part_of_the_split() -> None:
    """7,443 images at 80 a second do not fit into 90 s: a sixth of 9 s is left for each."""
    plan = Timed(90.0, steps_per_epoch=300, images=7443, batch_size=128)
    plan.measured(64, 64 / 80)
    assert plan.images(10, last=False) == plan.images(10, last=True) == 120
    plan.validated(120, 1.5, 20.0)
    plan.measured(64, 0.1)  # faster than before: what is compared stays
    assert plan.images(20, last=False) == plan.compared() == 120
    assert plan.images(20, last=True) == 120


def test_a_run_of_less_than_an_epoch_is_validated_too() -> None:
    """Each fifth of the limit there is one, as long as all stay below a tenth."""
    plan, clock, due = Timed(100.0, 10_000, 100_000, 100), 0.0, []
    for step in range(1, 1000):
        clock += 0.1
        if plan.is_due(step, clock):
            if not plan.is_measured:
                plan.measured(64, 0.064)
            images = plan.images(step, last=False)
            clock += images / 1000
            plan.validated(images, images / 1000, clock)
            due.append(round(clock))
    assert len(due) == 4
    assert due[0] == 22


def test_a_preparation_counts_once_for_each_validation_not_for_each_image() -> None:
    """2 s of batch-norm statistics leave 64 images during training, and all of them at the end."""
    plan = Timed(100.0, steps_per_epoch=10, images=3000, batch_size=100)
    plan.prepared(2.0)
    plan.measured(64, 0.064)
    assert plan.images(10, last=False) == 64
    assert plan.images(10, last=True) == 3000  # in 3 s, and 2 s before
    plan.validated(64, 0.064, 20.0)
    assert [plan.is_due(20, clock) for clock in (80.0, 85.0, 94.0)] == [False, True, False]
    plan.prepared(2.0)
    plan.validated(64, 0.064, 87.0)
    assert not plan.is_due(30, 92.0)  # twice 2.064 s and the last one of 5 s: a third is too much
    assert plan.seconds_to_come(30, 5, 0.1) == pytest.approx(5.0)


def test_what_was_validated_before_an_interruption_counts() -> None:
    """Part, speed and time spent come from the history."""
    plan = Timed(100.0, 10, 3000, 100)
    plan.measured(100, 0.1)
    plan.restore([], 0.0, 7.0)
    assert plan.is_measured
    assert not plan.is_due(9, 8.0)


def test_a_record_decides_a_replay() -> None:
    """The same steps with the same numbers of images, whatever the clock says."""
    plan = Recorded([(3, 100), (7, 100), (9, 800)], images=800)
    assert [step for step in range(12) if plan.is_due(step, 1e9)] == [3, 7, 9]
    assert [plan.images(step, last=False) for step in (3, 9)] == [100, 800]
    assert plan.compared() == 100
    assert [step for step in range(9) if EachEpoch(4, 10).is_due(step, 0.0)] == [0, 4, 8]


def test_a_part_of_the_split_depends_on_the_images_alone(make: Make) -> None:
    """The validation split is in the order of the files' digests."""
    job = make()
    data, rows = open_data(job), manifests.usable(manifests.load(job.manifest_file))
    digests = list(rows["sha256"][data.validation_rows])
    assert digests == sorted(digests)
    assert np.array_equal(
        np.sort(data.validation_rows), np.flatnonzero(rows["split"] == "validation")
    )


def test_the_best_is_chosen_by_images_that_all_validations_share(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last validation sees the whole split, and is compared on the part of the others."""
    monkeypatch.setattr(validation_plan, "_FEWEST_IMAGES", 4)
    steps = ((2, 5), (4, 5), (6, 21))
    job = make(record={"step_plan": [[0, 0.0, 6]], "validation_plan": [list(s) for s in steps]})
    result = trained(job)
    assert result.validation_plan == steps
    *early, last = result.history
    assert [record.compared_accuracy for record in early] == [None, None]
    assert last.compared_accuracy is not None
    assert last.compared_accuracy * 5 == pytest.approx(round(last.compared_accuracy * 5))
