"""The command `patchline export`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Columns, Json, data_config, dump_given_flags, emit
from patchline.flows.progress.progress_display import display, show_progress
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.registry.registered_models import ModelReference, resolve
from patchline.pipeline.terminal_words import short_path, visible
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

if TYPE_CHECKING:
    from patchline.plugins.tools.export.comparison import ComparisonImages
    from patchline.plugins.tools.export.export_pages import ExportRecord

REFUSED = 3
FormChoice = Literal["onnx", "int8", "openvino", "torch", "container"]


def export(
    model: str,
    /,
    *,
    to: FormChoice,
    out: Path | None = None,
    data: str | None = None,
    as_json: Json = False,
    table: Columns = None,
) -> int:
    """Write another form of a model if it agrees with the package; exits with code 3 if not.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion.
    to
        The form: onnx (the network alone), int8 (ONNX in 8 bits), openvino, torch (a program of
        torch.export), or container (an image that serves the model, to be built with Docker).
    out
        Folder to write, by default NAME-VERSION-FORM in this folder.
    data
        Labelled images to compare on; default: the test images of the version's own run.
    table
        Columns of a table of images, where they cannot be guessed.
    """
    columns = dump_given_flags(table)
    reference, folder = _resolve_arguments(model, to, out)
    with show_progress():
        display().stage(f"Exporting {reference.name}, version {reference.version}, as {to}")
        images = _images(reference, data, columns)
        from patchline.pipeline.registry.package_download import package_folder
        from patchline.plugins.tools.export.exporting import export as write_export

        source = package_folder(reference) / "artifacts"
        record = write_export(reference, to, images, folder, display().advance, source=source)
        from patchline.plugins.tools.export.export_pages import list_export

        unlisted = list_export(reference, record, folder)
    _tell(record, folder, unlisted, as_json=as_json)
    return 0 if record.chosen is not None else REFUSED


def _resolve_arguments(model: str, to: str, out: Path | None) -> tuple[ModelReference, Path]:
    """Return the version and the folder to write.

    Raises:
        ConfigError: if something else is there.
        ModelReferenceError: if there is no such model.
    """
    tell_closed()
    reference = resolve(model)
    folder = out or Path(f"{reference.name}-{reference.version}-{to}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and is not an empty folder. Set --out to a new one, or remove it."
        )
    return reference, folder


def _images(
    reference: ModelReference, data: str | None, columns: Mapping[str, Any]
) -> ComparisonImages:
    """Return the images to compare on: those of `data`, or test images of the version's run."""
    from patchline.plugins.tools.export import comparison

    workspace = WORKSPACE.resolve()
    if data is None:
        if columns:
            raise ConfigError("Columns are given, but no table. Name the table with --data.")
        return comparison.of_run(reference, workspace, display().advance)
    config = data_config(data, columns)
    config = config.model_copy(update={"name": reference.name})
    return comparison.of_data(reference, config, workspace, display().advance)


def _tell(record: ExportRecord, folder: Path, unlisted: str, *, as_json: bool) -> None:
    """Say what was measured.

    Args:
        record: the export's record: what was measured, and what was chosen.
        folder: the folder of the export; it is not written if the export was refused.
        unlisted: what the MLflow UI lacks of it, as a clause; empty if nothing.
        as_json: print one JSON object.
    """
    from patchline.plugins.tools.export.export_pages import notes, table

    said = [*notes(record), *([unlisted] if unlisted else [])]
    written = str(folder) if record.chosen is not None else None
    shown_as = {"folder": written, "refusal": record.refusal or None, "notes": said}
    emit(
        {**shown_as, **record.model_dump(mode="json")},
        *table(record),
        *(f"note: {note}" for note in said),
        *([f"written: {short_path(folder)}"] if written is not None else ()),
        as_json=as_json,
    )
    if record.refusal:
        print(visible(f"Refused: {record.refusal}"), file=sys.stderr)
