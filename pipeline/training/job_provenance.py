"""The images that the weights of a training have seen, with those of the weights it started from.

Shape: N rows of the prepared store.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pandas as pd

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.initial_weights.record import stored_provenance
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.provenance.provenance import Provenance, together
from patchline.pipeline.provenance.seen_images import SeenImages
from patchline.pipeline.provenance.weights_record import provenance_of
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.part import TrainingPart


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
    ancestors = [stored_provenance(job.initial_weights)] if job.initial_weights else []
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
