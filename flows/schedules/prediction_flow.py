"""The prediction flow: label every image in a folder with a registered model, into one table.

Each run of a schedule predicts all images again; the old table stays until the new one is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from patchline.flows.prefect_api.failures import build_failed_state
from patchline.flows.progress.progress_display import show_predicting
from patchline.pipeline.errors import DataError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.packaging.prediction.batch_prediction import PredictedTable, predict_images
from patchline.pipeline.packaging.prediction.image_files import is_empty
from patchline.pipeline.packaging.prediction.prediction_report import markdown
from patchline.pipeline.registry.package_download import fetch
from patchline.pipeline.registry.registered_models import ModelReference, resolve
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import live_runs

NOTHING = "Nothing to predict"
"""The state name of a run whose folder was empty."""


class PredictionSummary(FrozenModel):
    """The result of a batch prediction."""

    model: str
    version: str
    """The version that the reference pointed to when the run started."""
    images: int
    """Rows of the table."""
    unreadable: int
    """Images that could not be read; see the column `error`."""
    out: str
    """Path of the table."""


@flow(name="Predict in bulk", flow_run_name="Predict {images} with {model}")
def predict_flow(
    model: str,
    images: str,
    out: str,
    top_k: Annotated[int, Field(ge=1)] = 3,
    probabilities: bool = True,
) -> PredictionSummary:
    """Predict every image in a folder with a registered model and write one table.

    Args:
        model: NAME, NAME@ALIAS or NAME/VERSION of a registered model, such as flowers@champion.
        images: the folder of images, or a single image file.
        out: the table to write, a .csv or .parquet file; it is replaced atomically.
        top_k: number of classes in the column top_k.
        probabilities: whether a .parquet file includes the probabilities of all classes.
    """
    with live_runs.alive(WORKSPACE.resolve(), str(flow_run.id), "prediction"):
        try:
            if is_empty(Path(images)):
                words = f"The folder {images} holds no images yet; {out} is unchanged."
                return Completed(name=NOTHING, message=words)  # type: ignore[return-value]  # the same
            return _predict(model, Path(images), Path(out), top_k, probabilities=probabilities)
        except Exception as error:  # noqa: BLE001 - raised again if it is not explained
            return build_failed_state(error)  # type: ignore[return-value]  # Prefect raises it


def _predict(
    model: str, images: Path, out: Path, top_k: int, *, probabilities: bool
) -> PredictionSummary:
    version = resolve(model)
    table = predict_folder(version, images, out, top_k, probabilities=probabilities)
    create_markdown_artifact(
        key="predictions",
        markdown=markdown(model, version.name, version.version, images, out, table),
        description="The predictions, the model version and the table",
    )
    if table.images == table.unreadable:
        raise DataError(
            f"No image in {images} could be read ({table.images:,} tried); see the column error of "
            f"{out}. Check the folder."
        )
    return PredictionSummary(
        model=version.name,
        version=version.version,
        images=table.images,
        unreadable=table.unreadable,
        out=str(out),
    )


@task(name="Predict the images", cache_policy=NO_CACHE)
def predict_folder(
    version: ModelReference, images: Path, out: Path, top_k: int, *, probabilities: bool
) -> PredictedTable:
    """Predict all images into the table, discarding what an interrupted run has left."""
    return predict_images(
        fetch(version),
        f"{version.name}/{version.version} ({version.source})",
        [images],
        out,
        top_k=top_k,
        probabilities=probabilities,
        restart=True,
        on_progress=show_predicting,
    )
