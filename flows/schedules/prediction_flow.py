"""The prediction flow: label every image of a folder with a registered model, into one table.

A schedule runs it again and again: each time the table is written anew, for all images, and the old
one stays until the new one is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from flows.failures import failed
from flows.progress import display
from pipeline.errors import DataError, PipelineError
from pipeline.prediction.batch_prediction import PredictedTable, predict_images
from pipeline.prediction.image_files import is_empty
from pipeline.registry.package_download import fetch
from pipeline.registry.registered_models import ModelReference, resolve
from pipeline.run_memory import live_runs
from pipeline.section import Section
from pipeline.workspace import WORKSPACE

_CLASSES_SHOWN = 30
NOTHING = "Nothing to label"
"""The name of the state of a run whose folder was empty."""


class PredictionSummary(Section):
    """What a batch prediction leaves behind."""

    model: str
    version: str
    """The version that the reference meant when the run began."""
    images: int
    """Rows of the table."""
    unreadable: int
    """Images that could not be read; the column `error` says why."""
    out: str
    """Path of the table."""


@flow(name="Predict in bulk", flow_run_name="Label {images} with {model}")
def predict_flow(
    model: str,
    images: str,
    out: str,
    top_k: Annotated[int, Field(ge=1)] = 3,
    probabilities: bool = True,
) -> PredictionSummary:
    """Label every image of a folder with a registered model and write one table.

    Args:
        model: NAME, NAME@ALIAS or NAME/VERSION of a registered model, such as flowers@champion.
        images: the folder of images; a single image file works too.
        out: the table to write, a file that ends in .csv or .parquet; it is replaced as a whole.
        top_k: how many classes the column top_k names.
        probabilities: whether a .parquet file holds the probabilities of all classes.
    """
    with live_runs.alive(WORKSPACE.resolve(), str(flow_run.id), "prediction"):
        try:
            if is_empty(Path(images)):
                words = f"The folder {images} holds no files yet; {out} stays as it is."
                return Completed(name=NOTHING, message=words)  # type: ignore[return-value]  # the same
            return _predict(model, Path(images), Path(out), top_k, probabilities=probabilities)
        except PipelineError as error:
            return failed(error)  # type: ignore[return-value]  # Prefect raises it


def _predict(
    model: str, images: Path, out: Path, top_k: int, *, probabilities: bool
) -> PredictionSummary:
    version = resolve(model)
    table = label_images(version, images, out, top_k, probabilities=probabilities)
    create_markdown_artifact(
        key="predictions",
        markdown=_markdown(model, version, images, out, table),
        description="What was predicted, with which version, and where the table is",
    )
    if table.images == table.unreadable:
        raise DataError(
            f"None of the images in {images} could be read ({table.images}); the column error of "
            f"{out} says why. Check the folder."
        )
    return PredictionSummary(
        model=version.name,
        version=version.version,
        images=table.images,
        unreadable=table.unreadable,
        out=str(out),
    )


@task(name="Label the images", cache_policy=NO_CACHE)
def label_images(
    version: ModelReference, images: Path, out: Path, top_k: int, *, probabilities: bool
) -> PredictedTable:
    """Predict all images into the table, whatever an interrupted run has left."""

    def advance(done: int, total: int, images_per_second: float) -> None:
        display().advance("Predicting", done, total, f"{images_per_second:.0f} images/s")

    return predict_images(
        fetch(version),
        f"{version.name}/{version.version} ({version.source})",
        [images],
        out,
        top_k=top_k,
        probabilities=probabilities,
        restart=True,
        on_progress=advance,
    )


def _markdown(
    reference: str, version: ModelReference, images: Path, out: Path, table: PredictedTable
) -> str:
    """Return the artifact: the version, the counts, the damaged images."""
    labelled = table.images - table.unreadable
    lines = [
        f"## {version.name}, version {version.version}",
        "",
        f"`{reference}` was version **{version.version}** when this run began.",
        "",
        f"**{labelled}** of {table.images} images in `{images.resolve()}` are labelled.",
        f"The table is `{out.resolve()}`.",
    ]
    if labelled:
        lines += ["", "| label | images |", "|---|---:|"]
        counts = _counts(out)
        lines += [f"| {_cell(label)} | {count} |" for label, count in counts[:_CLASSES_SHOWN]]
        if len(counts) > _CLASSES_SHOWN:
            rest = sum(count for _, count in counts[_CLASSES_SHOWN:])
            lines.append(f"| {len(counts) - _CLASSES_SHOWN} more labels | {rest} |")
    if table.unreadable:
        lines += ["", f"### {_counted(table.unreadable)} could not be read", ""]
        lines += [f"- `{name}`: {reason}" for name, reason in table.first_errors]
        if table.unreadable > len(table.first_errors):
            more = table.unreadable - len(table.first_errors)
            lines.append(f"- and {more} more: the column `error` of the table names them")
    return "\n".join(lines)


def _counts(out: Path) -> list[tuple[str, int]]:
    """Return how many images got each label, the most frequent first."""
    import pyarrow.compute as pc
    from pyarrow import csv, parquet

    if out.suffix == ".parquet":
        labels = parquet.read_table(out, columns=["label"])["label"]
    else:
        columns = csv.ConvertOptions(
            include_columns=["label"], column_types={"label": "string"}, strings_can_be_null=True
        )
        labels = csv.read_csv(
            out,
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=columns,
        )["label"]
    found: list[dict[str, Any]] = pc.value_counts(labels.drop_null()).to_pylist()
    return sorted(
        ((each["values"], each["counts"]) for each in found), key=lambda pair: (-pair[1], pair[0])
    )


def _counted(images: int) -> str:
    return "1 image" if images == 1 else f"{images} images"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
