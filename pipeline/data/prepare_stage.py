"""The stage that decodes the images, unless a record shows that they are decoded already."""

from __future__ import annotations

from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data.ingested_data import IngestedData, PreparedData
from pipeline.data.ingestion import StageProgress
from pipeline.data.pixel_values import range_memory
from pipeline.run_memory import stage_keys
from pipeline.run_memory.stage_memory import Ingredients, StageMemory

STAGE = "prepare"


def prepare_run(
    config: RunConfig,
    data: IngestedData,
    memory: StageMemory,
    on_progress: StageProgress | None = None,
) -> PreparedData:
    """Write the prepared store of a run, or return the one that exists.

    Args:
        config: resolved.
        data: the manifest.
        memory: may have a record of the store.
        on_progress: called with the number of images decoded so far.
    """
    known = memory.recall(STAGE, ingredients(config, data), PreparedData)
    if known is not None:
        return known
    return ingestion.prepare(config, data, memory.workspace, on_progress, fresh=memory.fresh)


def remember_prepared(
    config: RunConfig, data: IngestedData, prepared: PreparedData, memory: StageMemory
) -> None:
    """Record the prepared store once there is a run that it belongs to.

    The images are decoded before the MLflow run is opened, so this is a step of its own.
    """
    range_memory.remember(data.pixel_values, data.root, memory.workspace)
    if STAGE not in memory.reused:
        made = prepared.model_copy(update={"reused": False})
        memory.remember(STAGE, made, prepared.store, ingredients(config, data))


def ingredients(config: RunConfig, data: IngestedData) -> Ingredients:
    """Return everything that determines the decoded images."""
    names = ("image_size", "channels", "resize", "mean", "std", "store")
    sizes = {key: str(getattr(config.data, key)) for key in names}
    return {
        "data": data.fingerprint,
        **sizes,
        "pixel_values": data.pixel_values.model_dump_json(),
        "code": stage_keys.code("pipeline.data.prepared_store"),
        **stage_keys.package_versions(),
    }
