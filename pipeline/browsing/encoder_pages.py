"""What MLflow shows of a run without labels: its loss, its pictures, and how to use the encoder."""

from __future__ import annotations

import logging
from pathlib import Path

from patchline.pipeline.browsing.outcome import EncoderOutcome, lineage, links
from patchline.pipeline.browsing.pages import NOTE_TAG
from patchline.pipeline.browsing.run_summary import RunSummary
from patchline.pipeline.data.seen_images import caveat_on_test_images
from patchline.pipeline.packaging.model_card import escaped
from patchline.pipeline.redaction import without_credentials
from patchline.pipeline.tracking import addresses, tracking_store
from patchline.pipeline.tracking.tracking_store import client

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


def encoder_summary(
    outcome: EncoderOutcome, seconds: dict[str, float], config_file: Path, reused: dict[str, str]
) -> RunSummary:
    """Return the summary of a finished run without labels.

    Args:
        outcome: of the run.
        seconds: duration of each stage.
        config_file: the resolved config.
        reused: for each stage that was not computed again, the run whose result was used.
    """
    return RunSummary(
        run_id=outcome.run.run_id,
        name=outcome.registered.name,
        version=outcome.registered.version,
        aliases=outcome.aliases,
        status="FINISHED",
        seconds=seconds,
        metrics=outcome.evaluated.report.metrics,
        report=str(outcome.evaluated.html),
        tracking_uri=without_credentials(tracking_store.use_store()),
        config=str(config_file),
        data_fingerprint=outcome.data.fingerprint,
        example_image=outcome.data.example_image,
        notes=outcome.data.notes,
        provenance=outcome.data.seen_before.provenance,
        caveat=caveat_on_test_images(outcome.data.seen_before),
        promotion=None,
        reused=reused,
        page=addresses.run_page(outcome.run),
    )


def _log_pictures(outcome: EncoderOutcome) -> None:
    """Log each view as an image with a step for each test image."""
    import cv2

    folder, store = outcome.evaluated.folder, client()
    for step, image in enumerate(outcome.evaluated.report.pictures[:_GRID_IMAGES]):
        for view in image.views:
            pixels = cv2.imread(str(folder / view.file), cv2.IMREAD_COLOR)
            if pixels is not None:
                key = view.title.lower()
                rgb = pixels[:, :, ::-1].copy()
                store.log_image(outcome.run.run_id, rgb, key=key, step=step, synchronous=True)
