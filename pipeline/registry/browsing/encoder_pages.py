"""What MLflow shows of a run without labels: its loss, its pictures, and how to use the encoder."""

from __future__ import annotations

import logging

from patchline.pipeline.packaging.model_card import escaped
from patchline.pipeline.registry.browsing.outcome import EncoderOutcome, lineage, links
from patchline.pipeline.registry.browsing.pages import NOTE_TAG
from patchline.pipeline.workspace.files.safe_paths import safe_join
from patchline.pipeline.workspace.tracking.tracking_store import client

logger = logging.getLogger(__name__)

_GRID_IMAGES = 6


def write_encoder_pages(outcome: EncoderOutcome) -> None:
    """Write the descriptions of the run and the version, and log the pictures as a grid.

    The encoder is registered already, so an error of the store costs descriptions, never the run.
    """
    try:
        store, run, registered = client(), outcome.run, outcome.registered
        parts = (encoder_verdict(outcome), links(outcome), lineage(outcome))
        store.set_tag(run.run_id, NOTE_TAG, "\n\n".join(parts))
        store.update_run(run.run_id, name=outcome.run_name)
        store.update_model_version(registered.name, registered.version, "\n\n".join(parts))
        _log_pictures(outcome)
    except Exception as error:  # noqa: BLE001 - the store can fail in many ways
        logger.warning("The run's pages in MLflow could not be written: %s", error)


def encoder_verdict(outcome: EncoderOutcome) -> str:
    """Return the loss, the registered version, and the command that trains a classifier from it."""
    loss, registered = outcome.evaluated.report.loss, outcome.registered
    return (
        f"Mean loss **{loss.value:.4g}** on {outcome.evaluated.report.images:,} test images under "
        f"the objective {escaped(outcome.config.objective.name)} (95% interval {loss.low:.4g} to "
        f"{loss.high:.4g}).\n\nRegistered as the encoder **{escaped(registered.name)}, version "
        f"{registered.version}**. Train a classifier from it:\n\n```sh\npatchline run FOLDER "
        f"--model.init {registered.name}/{registered.version}\n```"
    )


def _log_pictures(outcome: EncoderOutcome) -> None:
    """Log each view as an image with a step for each test image."""
    import cv2

    folder, store = outcome.evaluated.folder, client()
    for step, image in enumerate(outcome.evaluated.report.pictures[:_GRID_IMAGES]):
        for view in image.views:
            file = safe_join(folder, view.file, "The report")
            pixels = cv2.imread(str(file), cv2.IMREAD_COLOR)
            if pixels is not None:
                key = view.title.lower()
                rgb = pixels[:, :, ::-1].copy()
                store.log_image(outcome.run.run_id, rgb, key=key, step=step, synchronous=True)
