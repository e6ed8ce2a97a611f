"""Several processes train the last blocks as one does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.job import TRAINING
from patchline.pipeline.workers.launcher import GROUP_FILE
from patchline.pipeline.workspace.files.workspace_folder import FEATURES
from tests.pipeline.training.parts.test_last_blocks import (
    assert_moved_alike,
    blocks_job,
    head_of,
    state_of,
)
from tests.pipeline.training.trained_jobs import Make, trained


@pytest.mark.slow
def test_two_processes_train_the_blocks_as_one_does(
    make: Make, make_shared: Make, tmp_path: Path
) -> None:
    """Features and tokens have the same bits, and the weights differ by rounding alone.

    Of the two folds, the first is not trained again, as after a kill.
    """
    job, alone = blocks_job(make_shared, "run", processes=2), blocks_job(make, "run")
    one = trained(alone)
    fold = Path("held_out/1.safetensors")
    (job.folder / fold).parent.mkdir(parents=True)
    shutil.copy(alone.folder / fold, job.folder / fold)
    several = TRAINING.run(job.folder, job)
    ours, theirs = (
        sorted((each / FEATURES).rglob("*.npy")) for each in (tmp_path, job.folder.parent)
    )
    assert len(ours) == 2
    assert [each.name for each in ours] == [each.name for each in theirs]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(ours, theirs, strict=True))
    assert several.steps == one.steps
    assert several.fine_tuning is not None
    assert several.fine_tuning.share == one.fine_tuning.share
    assert several.best_validation_loss == pytest.approx(one.best_validation_loss, rel=1e-3)
    assert_moved_alike(head_of(alone), state_of(one.best), state_of(several.best), 0.01)
    left = {each.name for each in job.folder.iterdir()}
    assert not left & {"processes", "trained.safetensors", "previous.safetensors"}


def test_nodes_without_a_shared_folder_are_refused(make: Make, tmp_path: Path) -> None:
    """Before any process is started; the sentence says what to change."""
    job = blocks_job(make, "run", processes=2)
    group = {"nodes": ["127.0.0.1", "127.0.0.2"], "port": 0, "shares_folder": False}
    job.folder.mkdir(exist_ok=True)
    (job.folder / GROUP_FILE).write_text(json.dumps(group), "utf-8")
    with pytest.raises(ConfigError, match=r"processes is 2 on 2 nodes .* set launcher.nodes to 1"):
        trained(job)
    assert not (tmp_path / FEATURES).exists()
