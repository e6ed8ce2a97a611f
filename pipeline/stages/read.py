"""Read the data: list the source, check every image, and split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import UNLABELLED, IngestedData
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, by_task
from patchline.pipeline.data.manifests.earlier_manifests import UNLABELLED_FOLDER
from patchline.pipeline.data.unlabelled_images import check_unlabelled
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class Read(Stage[IngestedData]):
    """Leaves the manifest, the splits, and what is known about the images.

    The ingestion has a memory of its own, for each file.
    """

    name = "read"
    task = "Read the data"
    output = IngestedData
    retried = True

    @staticmethod
    def check(config: RunConfig, workspace: Path) -> str:
        """List the source, so that a wrong path fails at once."""
        listed = ingestion.check_source(config, workspace)
        words = by_task(listed.task)
        classes = counted(listed.classes, words.one, words.several)
        of_sets = listed.task == MULTI_LABEL
        where = f" {'with sets of' if of_sets else 'in'} {classes}" if listed.classes else ""
        unlabelled = check_unlabelled(config, workspace)
        further = f", and {counted(unlabelled, 'file')} without labels" if unlabelled else ""
        return f"{counted(listed.files, 'file')} found{where}{further}"

    def title(self) -> str:
        """Return what is read."""
        data = self.config.data
        return f"Reading the data ({data.path or data.source})"

    def task_run(self) -> str:
        """Return the name of what is read."""
        return f"Read {data_name(self.config)}"

    def compute(self) -> IngestedData:
        """List, check and split."""
        return ingestion.ingest(
            self.config,
            self.context.workspace,
            self.context.reporting.progress,
            remember=self.context.remembers,
            fresh=self.context.memory.fresh,
        )

    def after(self, result: IngestedData) -> None:
        """Show what was found."""
        for sentence in result.findings():
            self.context.reporting.note(sentence)

    def tags(self, result: IngestedData) -> dict[str, str]:
        """Return where the data lies."""
        return {tracked_run.DATA_ROOT_TAG: str(result.root)}

    def log(self, result: IngestedData, run: TrackedRun) -> None:
        """Log the data with its version and its manifest, and the unlabelled images with theirs."""
        tracked_run.log_data(run, result.name, result.fingerprint, result.manifest_file)
        if images := result.unlabelled:
            name, folder = f"{result.name}-{UNLABELLED}", UNLABELLED_FOLDER
            version, file = images.fingerprint, images.manifest_file
            tracked_run.log_data(run, name, version, file, context=UNLABELLED, folder=folder)


def data_name(config: RunConfig) -> str:
    """Return the name of data that has not been read yet: its folder, or its source."""
    return Path(config.data.path).name if config.data.path else config.data.source
