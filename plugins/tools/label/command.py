"""The command `patchline label`."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from patchline.flows.commands.switches import Flat, Json, Switch
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.errors import ConfigError, UserError
from patchline.pipeline.terminal_words import (
    counted,
    few_names,
    find_program,
    pasted_path,
    visible,
)
from patchline.pipeline.web.access_control import check_access
from patchline.pipeline.web.config import ListeningConfig, Port, ServingConfig
from patchline.pipeline.web.listening import log_to_standard_error, open_listening_socket, url_of

if TYPE_CHECKING:
    from patchline.pipeline.data.labels.answers.answers_table import AnswersTable
    from patchline.pipeline.packaging.packaged_model import PackagedModel
    from patchline.plugins.tools.label.pool import DataLabels, LabelFindings, Pool
    from patchline.plugins.tools.label.server.image_features import FeatureSource

_IMPORTED = {
    "taken": "Rows taken in",
    "older": "Rows left out, because the answer is newer",
    "unknown": "Rows left out, because the folder has no such image",
    "columns": "Columns added",
}


class LabelPageConfig(ListeningConfig):
    """Where the page listens, and whom it answers."""

    port: Port = 8765
    """Port to listen on; 0 for any that is free."""
    allowed_host: tuple[str, ...] = ()
    """Further host name, as NAME or NAME:PORT, that browsers may call the server by."""
    token_file: Path | None = None
    """File whose first line the page asks for; or the environment variable
    PATCHLINE_SERVE_TOKEN."""


def label(
    folder: Path,
    /,
    *,
    model: str | None = None,
    classes: str | None = None,
    multi_label: Switch = False,
    findings: Path | None = None,
    table: Annotated[Path | None, Parameter(name=("--table", "--label.table"))] = None,
    edited: Annotated[Path | None, Parameter(name="--import")] = None,
    listen: Flat[LabelPageConfig] = None,
    seed: int = 0,
    as_json: Json = False,
) -> int:
    """Label the images of a folder on a local page, those that help most first, until Ctrl-C.

    Parameters
    ----------
    folder
        Folder with the images.
    model
        Registered model, such as flowers@champion, that orders the images and suggests labels; by
        default, weights that are on this machine order them.
    classes
        Names of the classes, separated by commas; more can be typed in the page.
    multi_label
        Give each image any number of labels, instead of one class.
    findings
        Table of findings, or its folder, of `patchline data inspect FOLDER --check-labels MODEL`:
        only the images whose labels may be wrong are shown, with these labels.
    table
        CSV table for the labels, by default labels.csv in the folder; `patchline run` trains on it.
    edited
        Table with the columns path and label that somebody has edited: take its labels in, and end.
    listen
        Where the page is.
    seed
        Seed of the images that are drawn at random.
    """
    config = ServingConfig(**dict(listen or LabelPageConfig()))
    check_access(config, "label the images")
    from patchline.pipeline.data.labels.answers.answers_table import TABLE_NAME, AnswersTable
    from patchline.pipeline.web.listening import check_certificate
    from patchline.plugins.tools.label.pool import Pool, label_findings
    from patchline.plugins.tools.label.ranking import ImageOrder
    from patchline.plugins.tools.label.server import application
    from patchline.plugins.tools.label.server.advisor import Advisor
    from patchline.plugins.tools.label.session import Session

    log_to_standard_error("patchline.plugins.tools.label", "patchline.pipeline.data.labels")
    check_certificate(config)
    file = (table or folder / TABLE_NAME).absolute()
    pool = Pool(folder, file.parent)
    if edited is not None:
        return _import(edited, file, pool, as_json=as_json)
    package, name = _package(model)
    with open_listening_socket(config) as listening:
        url = url_of(config, listening.getsockname()[1])
        several = multi_label or (package is not None and package.is_multi_label)
        found = label_findings(findings) if findings else None
        given = _select_given(pool, found, findings) if found else {}
        several = several or (found is not None and found.task == MULTI_LABEL)
        of_data = _data_labels(pool, given, table) if found and not file.exists() else None
        answers = AnswersTable(file, MULTI_LABEL if several else None)
        with answers.open_for_people(url):
            _add_classes(answers, classes)
            if package is not None:
                answers.add_classes(package.classes)
            if of_data is not None:
                answers.begin(of_data.answers, of_data.columns)
            answers.add_classes(name for labels in given.values() for name in labels)
            if found:
                answers.begin_round(found.digest)
            order = ImageOrder(list(pool.images), seed, list(given) if found else None)
            source, without = _source(package, name)
            advisor = Advisor(pool, answers, order, source, without)
            session = Session(pool, answers, order, advisor, given)

            tell = partial(_tell, url, answers, len(given or pool.images), as_json=as_json)
            advisor.start()
            try:
                application.serve(session, config, pool.folder.name, listening, tell)
            finally:
                computes = advisor.stop()
            _tell_next(answers, as_json=as_json)
    if computes:  # the interpreter would crash if it ended while the network computes
        sys.stdout.flush()
        os._exit(0)
    return 0


def _tell_next(answers: AnswersTable, *, as_json: bool) -> None:
    """Say how many labels there are, and what to do with them."""
    if as_json:
        return
    labelled = sum(each.verdict == "label" for each in answers.standing().values())
    said = counted(labelled, "image has a label", "images have labels")
    program, _ = find_program("patchline")
    print(visible(f"{said}. Train on them: {program} run {pasted_path(str(answers.file))}"))


def _import(edited: Path, file: Path, pool: Pool, *, as_json: bool) -> int:
    """Take the labels of an edited table into that of a folder."""
    from patchline.pipeline.data.labels.answer_columns import PATH
    from patchline.pipeline.data.labels.answers.answers_table import AnswersTable, read_table

    rows = read_table(edited, "Give a CSV table with the columns path and label.")
    answers = AnswersTable(file)
    known, columns = {*pool.by_path, *answers.standing()}, answers.columns
    found = answers.take_in([row for row in rows if row[PATH] in known])
    result = {
        "taken": [*(each.path for each in found.answers), *found.removed],
        "older": found.older,
        "unknown": [row[PATH] for row in rows if row[PATH] not in known],
        "columns": [name for name in answers.columns if name not in columns],
    }
    if as_json:
        print(json.dumps({"table": str(file), "rows": len(rows), **result}))
        return 0
    for name, listed in result.items():
        some = few_names(listed, 3)
        print(visible(f"{_IMPORTED[name]}: {len(listed):,}" + f" ({some})" * bool(listed)))
    return 0


def _select_given(
    pool: Pool, listed: LabelFindings, findings: Path | None
) -> dict[str, tuple[str, ...]]:
    """Return the labels of the images that the findings name, by key."""
    given = listed.of_pool(pool)
    if not given:
        raise ConfigError(
            f"No image that {findings} names is in {pool.folder}. Give the folder that was "
            "inspected."
        )
    return given


def _data_labels(
    pool: Pool, given: dict[str, tuple[str, ...]], table: Path | None
) -> DataLabels | None:
    """Return the labels that the folder has as the data of a run, if they are those of findings.

    Args:
        pool: the images of the folder.
        given: the labels of the findings, by key.
        table: a new table that a person has named.

    Raises:
        ConfigError: if nobody has named a table, and the labels are elsewhere.
    """
    from patchline.pipeline import config_files
    from patchline.pipeline.data.manifests.source_listing import listing_of
    from patchline.pipeline.workspace.files.workspace_folder import place
    from patchline.plugins.tools.label.pool import check_same_labels, data_labels

    config = config_files.build_config(str(pool.folder), preset_name="none", flags={})
    try:
        listed = data_labels(listing_of(config, place()), pool)
        check_same_labels(listed, given, pool)
    except UserError as error:
        if table is None:
            raise ConfigError(
                f"The labels that were inspected are not those of {pool.folder}: {error} If they "
                "are in a table with the columns path and label, give it as --table. If they are "
                "elsewhere, give a new file as --table; it will hold the corrected images alone."
            ) from error
        print(
            visible(f"Note: the table will hold the corrected images alone, because {error}"),
            file=sys.stderr,
        )
        return None
    return listed


def _package(model: str | None) -> tuple[PackagedModel | None, str]:
    """Return the model that a person named, and the name of its version."""
    if model is None:
        return None, ""
    from patchline.pipeline.registry.package_download import fetch
    from patchline.pipeline.registry.registered_models import resolve

    reference = resolve(model)
    return fetch(reference), f"{reference.name}/{reference.version}"


def _source(package: PackagedModel | None, name: str) -> tuple[FeatureSource | None, str]:
    """Return what orders the images; or nothing, and why."""
    from patchline.pipeline.training.initial_weights import local_weights
    from patchline.pipeline.workspace.files.workspace_folder import place
    from patchline.plugins.tools.label.server.image_features import PackageFeatures, WeightFeatures

    if package is not None:
        return PackageFeatures(package, name, place()), ""
    weights = local_weights.search("").weights
    if not weights:
        return None, "there is no --model, and no weights are at hand"
    return WeightFeatures(weights[0], place()), ""


def _add_classes(answers: AnswersTable, classes: str | None) -> None:
    from patchline.pipeline.data.labels.answers.answer import check_class

    names: list[str] = []
    for name in (classes or "").split(","):
        if name.strip():
            names.append(check_class(name, [*answers.classes, *names]))
    if classes is not None and not names:
        raise ConfigError(f"--classes '{classes}' names no class. Separate names by commas.")
    answers.add_classes(names)


def _tell(url: str, answers: Any, images: int, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"url": url, "table": str(answers.file)}), flush=True)
        return
    print(f"Label {images:,} images at {url}. Ctrl-C stops it.", flush=True)
    print(visible(f"Labels are written to {answers.file}"), flush=True)
