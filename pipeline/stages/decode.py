"""Decode every image once, into the store that the training reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.data.value_ranges import range_choice
from patchline.pipeline.registry import registered_models
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.workspace import cache_limit
from patchline.pipeline.workspace.address import of_path, parse_address
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.workspace import workspace_of


@dataclass(frozen=True)
class Decode(Stage[PreparedData]):
    """Leaves the prepared store, which all runs on the same data share."""

    name = "prepare"
    task = "Decode the images"
    output = PreparedData
    retried = True
    shared = True
    code = ("patchline.pipeline.data.store.prepared_store",)
    rehearsal = "Decoding two batches"

    data: IngestedData

    def settings(self) -> RunConfig:
        """Fill in what depends on the data: image size, channels, name, settings of plugins.

        A registered model whose name the run would use has to have the same classes.
        """
        resolved = ingestion.resolve(self.config, self.data)
        registered_models.check_classes(str(resolved.name), self.data.classes, self.data.task)
        return resolved

    def title(self) -> str:
        """Return what is done."""
        return "Decoding the images"

    def task_run(self) -> str:
        """Return how many images are decoded."""
        return f"Decode {sum(self.data.counts.values()):,} images"

    def key(self) -> Ingredients:
        """Return everything that determines the decoded images."""
        settings, data = self.config.data, self.data
        names = ("image_size", "channels", "resize", "mean", "std", "store")
        place = of_path(settings.path)
        scheme = parse_address(place, "data.path").scheme if place else "file"
        return {
            "data": data.fingerprint,
            **({"unlabelled": data.unlabelled.fingerprint} if data.unlabelled else {}),
            **{key: str(getattr(settings, key)) for key in names},
            **({"streamed": "True"} if ingestion.streams(self.config, data) else {}),
            "pixel_values": data.pixel_values.model_dump_json(),
            "code": stage_keys.code(*self.code),
            **(stage_keys.store(scheme) if scheme != "file" else {}),
            **stage_keys.package_versions(),
        }

    def folder(self, result: PreparedData | None) -> Path:
        """Return the folder of the store; before it is known, that of all stores."""
        return result.store if result else self.context.memory.workspace / "prepared"

    def compute(self) -> PreparedData:
        """Decode what no store holds yet."""
        memory, progress = self.context.memory, self.context.reporting.progress
        if ingestion.streams(self.config, self.data):
            self.context.reporting.note(_explain_streaming(self.config, self.data))
        prepared = ingestion.prepare(
            self.config, self.data, memory.workspace, progress, fresh=memory.fresh
        )
        if prepared.reused:
            self.context.reporting.note("nothing changed: the images decoded before are used again")
        return prepared.model_copy(update={"reused": False})

    def is_whole(self, result: PreparedData) -> bool:
        """Return whether the object store has the images that are not on this machine."""
        stores = [each for each in (result.store, result.unlabelled) if each]
        return all(prepared_store.is_complete(each) for each in stores)

    def reuse(self) -> str:
        """Return what is used again."""
        return "its images are used again"

    def log(self, result: PreparedData, run: TrackedRun) -> None:
        """Remember the range of values for later runs; the images themselves are not logged."""
        data = self.data
        range_choice.remember(data.pixel_values, data.root, self.context.memory.workspace)


def _explain_streaming(config: RunConfig, data: IngestedData) -> str:
    """Return why the decoded images stay on the object store, and what to set for it."""
    size, limit = ingestion.count_decoded_bytes(config, data), cache_limit.limit()
    page, store = limit * cache_limit.PAGE_SHARE, workspace_of(data.manifest_file).uri
    needed = math.floor(1e4 * page / size) / 1e4
    slow = ""
    if config.record.shuffle_window > max(needed, 1e-4):
        slow = " one by one; with a preset, they are shuffled in windows and read in large pieces"
    return (
        f"the decoded images ({_size(size)}) are larger than the cache of this machine "
        f"({cache_limit.LIMIT_VARIABLE}, {_size(limit)}), so they stay on {store} and are read "
        f"while the training needs them{slow}"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"  # noqa: PLR2004
