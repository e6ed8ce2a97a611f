"""What a job trains, as it is saved: the model's description, and the images it has seen.

Shape: N rows of the prepared store.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pandas as pd
from torch import nn

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.model_description import (
    WEIGHTS_FILE,
    ModelDescription,
    describe_plugins,
)
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.models.provenance import Provenance, SeenImages, provenance_of, together
from patchline.pipeline.training.initial_weights.record import read_stored_provenance
from patchline.pipeline.training.job import TrainingJob, TrainingPart


def save_model_of(job: TrainingJob, model: nn.Module, folder: Path) -> None:
    """Save the model that a job has trained."""
    save_model(folder, model, description_of(job), provenance_of_job(job))


def description_of(job: TrainingJob) -> ModelDescription:
    """Return the description of the model that a job trains; without its initial weights."""
    several = job.config.data.task == MULTI_LABEL
    return ModelDescription(
        model=job.config.model.architecture(),
        plugins=describe_plugins(job.config.model),
        classes=job.classes,
        image=job.image,
        task=MULTI_LABEL if job.classes and several else SINGLE_LABEL,
        data_fingerprint=job.data_fingerprint,
        run_id=job.run_id,
    )


def provenance_of_job(job: TrainingJob) -> Provenance:
    """Return what the weights that a job trains have seen.

    That is the images it trains on, labelled or not, and those it validates on, and whatever its
    initial weights and its teacher have seen: a teacher passes on what it knows of its images. An
    ensemble has seen what any of its members has.
    """
    if job.part.members:
        return together(
            provenance_of(folder / WEIGHTS_FILE, f"fold {number}")
            for number, folder in enumerate(job.part.members, start=1)
        )
    seed, part = job.config.data.split_seed, job.part.model_dump_json(exclude={"members"})
    further = job.unlabelled.manifest_file if job.unlabelled else None
    own = _own(job.manifest_file, part, seed, further)
    ancestors = [read_stored_provenance(job.initial_weights)] if job.initial_weights else []
    if job.teacher:
        ancestors.append(provenance_of(job.teacher.weights, job.teacher.name))
    return own.from_initial(together(ancestors)) if ancestors else own


@lru_cache(maxsize=4)
def _own(
    manifest_file: Path, part: str, split_seed: int, unlabelled_manifest: Path | None
) -> Provenance:
    """Return the provenance of a training run from random weights, which are saved many times."""
    rows = manifests.usable(manifests.load(manifest_file))
    training_N, validation_N = TrainingPart.model_validate_json(part).rows(rows, split_seed)
    trained = rows.iloc[training_N]
    if unlabelled_manifest is not None:
        further = manifests.usable(manifests.load(unlabelled_manifest))
        trained = pd.concat([trained, further], ignore_index=True)
    return Provenance(SeenImages.of(trained, rows.iloc[validation_N]))
