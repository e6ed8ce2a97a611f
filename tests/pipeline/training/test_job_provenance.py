"""What the weights of each part of a run have seen, and what stays in their file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.models.provenance import Provenance, as_metadata, provenance_of
from patchline.pipeline.training.job import TrainingJob, TrainingPart
from patchline.pipeline.training.trained_model import description_of, provenance_of_job
from patchline.pipeline.workspace.files.sealed_files import write_tensors
from tests.pipeline.registry.made_versions import made_manifest, seen_in
from tests.pipeline.training.trained_jobs import Make, keep_weights


def _rows(job: TrainingJob) -> pd.DataFrame:
    return manifests.usable(manifests.load(job.manifest_file))


def _seen(job: TrainingJob, *, trained_only: bool = False) -> set[str]:
    """Return the splits of which a job's weights have seen every image; others must be unseen."""
    rows, seen = _rows(job), provenance_of_job(job).images
    contained = pd.Series(seen.contain(rows, trained_only=trained_only), index=rows.index)
    shares = contained.groupby(rows["split"]).mean()
    assert set(shares) <= {0.0, 1.0}
    return set(shares[shares == 1].index)


@pytest.mark.parametrize("refit", [False, True])
def test_a_training_has_seen_what_it_trains_and_validates_on(make: Make, *, refit: bool) -> None:
    """Never a test image."""
    job = make().model_copy(update={"part": TrainingPart(refit=refit)})
    both = {"train", "validation"}
    assert _seen(job, trained_only=True) == (both if refit else {"train"})
    assert _seen(job) == both


def test_an_ensemble_has_seen_what_its_members_have(make: Make, tmp_path: Path) -> None:
    """Each fold has trained on a part of the images; together, they have trained on all."""
    job, folders = make(), []
    for fold in (1, 2):
        of_fold = job.model_copy(update={"part": TrainingPart(fold=fold, folds=2)})
        assert _seen(of_fold) == {"train", "validation"}
        folders.append(tmp_path / f"fold {fold}")
        seen = as_metadata(provenance_of_job(of_fold))
        write_tensors(folders[-1] / WEIGHTS_FILE, {}, seen)
    whole = job.model_copy(update={"part": TrainingPart(members=tuple(folders))})
    assert _seen(whole, trained_only=True) == {"train", "validation"}
    (folders[0] / WEIGHTS_FILE).unlink()
    assert provenance_of_job(whole).summary.state == "unknown"


@pytest.mark.parametrize("reason", ["", "x.pth is a file of unrecognised origin"])
def test_a_descendant_has_seen_what_its_initial_weights_have(
    make: Make, tmp_path: Path, reason: str
) -> None:
    """In its file, wherever that is copied, with what is not known about them."""
    summary = Provenance(unknown=(reason,) if reason else ()).summary
    ancestor = seen_in(made_manifest())
    kept = keep_weights(tmp_path / "kept", {}, as_metadata(ancestor), provenance=summary)
    job = make("job").model_copy(update={"initial_weights": kept})
    folder = tmp_path / "saved"
    save_model(folder, torch.nn.Linear(2, 2), description_of(job), provenance_of_job(job))
    found = provenance_of(folder / WEIGHTS_FILE, "x")
    assert found.inherited == ancestor.images
    assert found.images.contain(made_manifest()).sum() == 150
    assert found.images.contain(_rows(job)).sum() == (_rows(job)["split"] != "test").sum()
    assert found.summary == summary
