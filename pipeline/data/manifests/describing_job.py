"""The input and the result of a worker that describes a part of many files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from patchline.pipeline.data.reading.resizing import ResizePolicy
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.launcher import Resources

MODULE = "patchline.pipeline.data.manifests.describing_worker"
RESOURCES = Resources()
"""All cores of one machine."""
FEWEST_FILES_OF_PART = 2000
"""With fewer, a part is described before its worker would have started."""


class DescribingJob(FrozenModel):
    """The files of a part."""

    root: Annotated[Path, SAME_PLACE]
    """The folder or archive that the paths are relative to, absolute."""
    files: Path
    """Lines of JSON: each file in its order, and whether it is wanted."""
    rows: Path
    """The file to write: a line of JSON for each file."""
    kept: Path | None = None
    """The array to write, uint8 (N, H, W, 3) with a row for each file: the decoded images."""
    shape: tuple[int, int] | None = None
    """Their height and width."""
    resize: ResizePolicy | None = None
    """How an image becomes a row of it."""


class PartDescribed(FrozenModel):
    """The file of rows is there."""

    files: int
