"""The description of initial weights, `initial_weights.json`: everything except the tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance import (
    UNKNOWN,
    Provenance,
    ProvenanceSummary,
    provenance_of,
)
from patchline.pipeline.training.initial_weights.recipe import display_name

FOLDER = "initial_weights"
"""Folder of a workspace; each file's weights are in a folder in it, named after the file's
digest."""
RECORD_FILE, TENSORS_FILE = "initial_weights.json", "weights.safetensors"

WeightsKind = Literal["file", "version", "run"]


def weights_name(reference: str, kind: WeightsKind) -> str:
    """Return what weights are called for people."""
    if kind == "run":
        return f"run {reference[:8]}"
    return display_name(reference) if kind == "file" else reference


class InitialWeights(FrozenModel):
    """Weights that training can start from, and the settings of the model that they belong to."""

    reference: str
    """An absolute path, published weights such as `timm:NAME`, a model version such as `flowers/3`,
    or the id of an MLflow run."""
    kind: WeightsKind
    sha256: str
    """SHA-256 of the file as it was found."""
    layout: str
    """What the file was recognised as, such as `timm ViT`."""
    settings: dict[str, Any]
    """Settings of the model: its plugin's `name`, its dimensions, its patch embedding."""
    channels: int
    image_size: int
    """Pixels per side of the images that the weights were trained with."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """The normalisation of these images, on the scale 0 to 1."""
    resize: Literal["crop", "squash", "pad"] | None = None
    """How images of another shape were resized; None if that is not known."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the position embeddings; None for a square grid."""
    classes: tuple[str, ...] | None = None
    """Classes of the head's outputs, in order; None if there is no head, or their names are
    unknown."""
    sources: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Tensors of the file that each weight was made from; empty if Patchline saved the file."""
    skipped: dict[str, str] = Field(default_factory=dict)
    """Tensors of the file that are not used, each with the reason."""
    resizing: str = "antialiased"
    """How the authors resize the position embeddings, as `layers.grid_resizing` names it."""
    notes: tuple[str, ...] = ()
    """What was assumed."""
    run_id: str = ""
    """The MLflow run that trained the weights, if one of this store did."""
    head_only: bool = False
    """Whether that run trained nothing but a head, on the frozen features of other weights."""
    license: str = ""
    """License as the library that published the weights states it; kept from run to run."""
    provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the weights have seen are recorded; the digests of those that are
    lie in the file of the tensors."""
    code: str = ""
    """Digests of the code that converted the file, and of the files beside it that were read."""

    @property
    def origin(self) -> str:
        """What the weights are, in a few words."""
        return weights_name(self.reference, self.kind)


def weights_folder(workspace: Path, sha256: str) -> Path:
    """Return the folder in the workspace for the weights of a file."""
    return workspace / FOLDER / sha256


def read_stored_provenance(folder: Path) -> Provenance:
    """Return the images that kept weights have seen, and whether these are all.

    Raises:
        FileNotFoundError: if none are kept there.
        DamagedFileError: if the description is not what was written.
    """
    record = load_record(folder)
    stated, of_tensors = record.provenance, provenance_of(folder / TENSORS_FILE, record.origin)
    unknown = tuple(dict.fromkeys((*stated.unknown, *of_tensors.unknown)))
    return Provenance(of_tensors.own, of_tensors.inherited, stated.published, unknown)


def load_record(folder: Path) -> InitialWeights:
    """Read the description of kept weights.

    Raises:
        FileNotFoundError: if none are kept there.
        DamagedFileError: if it is not what was written.
    """
    file = folder / RECORD_FILE
    try:
        return InitialWeights.from_file(file)
    except ValidationError as error:
        raise DamagedFileError(
            f"{file} does not describe initial weights. Delete the folder, then start again."
        ) from error
