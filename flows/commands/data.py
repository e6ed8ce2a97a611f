"""The commands `patchline data inspect`, `diff`, `preview` and `watch`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from patchline.flows import prefect_session
from patchline.flows.commands.run import compose_settings
from patchline.flows.commands.switches import (
    Columns,
    Json,
    add_flags,
    data_config,
    dump_given_flags,
    emit,
    terminal_lines,
)
from patchline.flows.new_data import watched_folders
from patchline.flows.notifications import events
from patchline.flows.progress.progress_display import display, show_progress
from patchline.flows.schedules import scheduled_work
from patchline.pipeline import config_files, local_services
from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import data_settings, read_settings
from patchline.pipeline.data.config import TaskChoice
from patchline.pipeline.errors import (
    ConfigError,
    DataError,
    ModelReferenceError,
    PipelineError,
    UserError,
)
from patchline.pipeline.plugin_system.plugin_loader import config_class, list_installed
from patchline.pipeline.registry.browsing.notebook import PAGE, TABLE
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.address import is_of_store
from patchline.pipeline.workspace.files.workspace_folder import (
    WORKSPACE,
    is_read_only,
    make_folder,
    place,
)
from patchline.plugin_api import ReadingRules

if TYPE_CHECKING:
    import pandas as pd
    from prefect.events import DeploymentEventTrigger

    from patchline.pipeline.evaluation.inspection.inspecting import Inspected, Judge
    from patchline.pipeline.evaluation.inspection.label_errors import Judgement


def version_judge(
    model: str, workspace: Path, on_progress: Callable[[str, int, int], None]
) -> Judge:
    """Return a function that predicts the labels of images with a registered version.

    Args:
        model: names the version, as the command's MODEL does.
        workspace: the folder in which decoded images are cached.
        on_progress: called while images are decoded and predicted.

    Raises:
        ModelReferenceError: if there is no such version, or its files are gone.
    """
    import numpy as np
    import pandas as pd

    from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, label_pairs
    from patchline.pipeline.data.manifests.manifest import task_of
    from patchline.pipeline.registry import version_evaluation
    from patchline.pipeline.registry.registered_models import resolve
    from patchline.pipeline.registry.version_records import available_records

    records = available_records(resolve(model))
    package = records.package

    def judged(rows: pd.DataFrame, root: Path) -> Judgement:
        from patchline.pipeline.evaluation.inspection.label_errors import Judgement

        task = task_of(rows)
        if (task == MULTI_LABEL) != package.is_multi_label:
            answers = "a set of labels" if package.is_multi_label else "one class"
            raise DataError(
                f"--check-labels {model}: this model predicts {answers} for each image, but the "
                f"labels of the data are {task}. Choose a model of the same task, or set data.task."
            )
        pairs = label_pairs(rows["label"], task)
        left_out = sorted(set(pairs.names) - set(package.classes))
        own = rows["label"].isin(package.classes)
        if task == MULTI_LABEL:  # the other labels of an image can be checked
            own = pd.Series(len(left_out) < len(pairs.names), index=rows.index)
        if not own.any():
            raise DataError(
                f"--check-labels {model}: no image of the data has a class of this model "
                f"({few_names(package.classes)}). Choose a model of the same classes."
            )
        checked = rows[own].reset_index(drop=True)
        probabilities_NK = np.empty((len(checked), len(package.classes)), np.float32)
        left = np.ones(len(checked), np.bool_)
        for row, sha256 in enumerate(checked["sha256"]):
            if sha256 in records.of_folds:
                probabilities_NK[row], left[row] = records.of_folds[sha256], False
        others = checked[left].reset_index(drop=True)
        if len(others):
            images = version_evaluation.prepare_images(
                package, others, root, workspace, on_progress
            )
            probabilities_NK[left] = version_evaluation.predict(package, images, on_progress)
        is_seen = records.has_seen(checked) if records.is_recorded else None
        version = f"version {records.reference.version} of {records.reference.name}"
        return Judgement(
            model=version,
            caveat=records.provenance.summary.caveat(version, "these images", "its predictions"),
            classes=tuple(package.classes),
            paths=tuple(checked["path"]),
            probabilities_NK=probabilities_NK,
            seen_N=None if is_seen is None else is_seen.to_numpy(bool) & left,
            by_folds=int((~left).sum()),
            left_out=tuple(left_out),
        )

    return judged


def build_inspect(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    chosen: Any = compose_settings(arguments, ("name", "data", "objective"))

    def inspect(
        data: str | None = None,
        /,
        *,
        check_labels: str | None = None,
        preset: str | None = None,
        out: Path | None = None,
        config: Path | None = None,
        as_json: Json = False,
        settings: Any = None,
    ) -> None:
        """Report on the data alone: counts, damage, duplicates, leakage, imbalance.

        Parameters
        ----------
        data
            As for `run`: a folder, archive, table, or SOURCE:NAME; without it, the built-in digits.
        check_labels
            Registered model, such as flowers@champion, that searches for likely label errors.
        preset
            Also plan a training run for the data and this machine: quick, balanced or best. A run
            is planned with balanced unless told otherwise.
        out
            Folder for the page and the table of findings, by default below .patchline/inspections.
        config
            YAML file with settings; flags override it.
        settings
            Settings of a run: --data.exclude findings.csv, --data.label-column species.
        """
        flags = dump_given_flags(settings)
        request = config_files.build_config(data, preset_name=preset, file=config, flags=flags)
        with_plan = names_preset(preset, config)
        inspected_data, folder = write_inspection(request, out, check_labels, with_plan=with_plan)
        if as_json:
            files = {"page": str(folder / PAGE), "table": str(folder / TABLE)}
            emit({**inspected_data.result.model_dump(mode="json"), **files}, as_json=True)
        else:
            own_model = (
                None if check_labels else _own_model(request.name or inspected_data.result.name)
            )
            _print(inspected_data, folder, own_model)

    return add_flags(inspect, chosen)


def names_preset(preset: str | None, config: Path | None) -> bool:
    """Return whether a preset is named, which asks for its plan: measuring takes some seconds."""
    return preset is not None or (config is not None and "preset" in read_settings(config))


def write_inspection(
    request: RunConfig, out: Path | None, check_labels: str | None = None, *, with_plan: bool
) -> tuple[Inspected, Path]:
    """Inspect the data, and write the page and the table into a folder.

    Args:
        request: the config of a run.
        out: the folder; by default below `.patchline/inspections`.
        check_labels: the model that searches for label errors.
        with_plan: whether to plan a run, unless its preset is none.

    Returns:
        What was found, and the folder.
    """
    from patchline.pipeline.data import ingestion
    from patchline.pipeline.evaluation.inspection.findings import earlier_rows, write_table
    from patchline.pipeline.evaluation.inspection.inspecting import inspect_data
    from patchline.pipeline.evaluation.inspection.inspection_report import write_page
    from patchline.pipeline.workspace.files.atomic_files import storage_errors

    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file. Set it to a folder for the page.")
    if out is not None:
        earlier_rows(out / TABLE)  # a table that cannot be read would be replaced
    if out is None and is_read_only():
        raise ConfigError(
            "The workspace is read-only, so the page has no place in it. Set --out to a folder "
            "that you may write to."
        )
    workspace = place()
    ingestion.check_source(request, workspace, to_train=False)
    with show_progress():
        judge = _judge(check_labels, request, workspace)
        display().stage(f"Inspecting the data ({request.data.path or request.data.source})")
        inspected_data = inspect_data(request, workspace, display().advance, judge)
        if with_plan and request.preset:
            inspected_data = _with_plan(inspected_data, request, workspace)
        result = inspected_data.result
        below = workspace / "inspections" / f"{result.name}-{result.fingerprint[:8]}"
        folder = below if out is None else out.resolve()
        with storage_errors(folder):
            make_folder(folder)
        if notes := write_table(result, inspected_data.manifest, folder / TABLE):
            result = result.model_copy(update={"notes": (*result.notes, *notes)})
            inspected_data = replace(inspected_data, result=result)
        write_page(inspected_data, folder / PAGE)
    return inspected_data, folder


def _judge(model: str | None, request: RunConfig, workspace: Path) -> Judge | None:
    """Return what searches for label errors; None if nobody asked for it."""
    if model is None:
        return None
    from patchline.flows.closing.close_runs import tell_closed
    from patchline.pipeline.data.manifests.source_listing import uses_labels

    if not uses_labels(request):
        raise ConfigError(
            f"--check-labels {model} compares labels, but the objective {request.objective.name} "
            "uses none. Leave one of them out."
        )
    tell_closed()
    return version_judge(model, workspace, display().advance)


def _with_plan(inspected_data: Inspected, request: RunConfig, workspace: Path) -> Inspected:
    """Return the inspection with the plan of a run, or a note why a run stops."""
    from patchline.flows.training.dry_run import dry_run
    from patchline.pipeline.workers import worker_start

    result = inspected_data.result
    try:
        with worker_start.allow_prepared_workers():
            plan = dry_run(request, workspace).plan
        added = {"plan": tuple(plan.lines()) if plan else ()}
    except UserError as error:
        added = {"notes": (*result.notes, f"no plan was made, because a run would stop: {error}")}
    return replace(inspected_data, result=result.model_copy(update=added))


def _own_model(name: str) -> str | None:
    """Return the champion of earlier runs with this data; a tracking server is not asked."""
    from patchline.pipeline.registry import registered_models
    from patchline.pipeline.workspace.tracking import tracking_store

    try:
        database = tracking_store.sqlite_file()
        if database is None or not database.exists():
            return None
        version = registered_models.champion_of(name)
    except PipelineError:  # the inspection does not depend on it
        return None
    return name if version else None


def _print(inspected_data: Inspected, folder: Path, own_model: str | None) -> None:
    from rich.console import Console

    from patchline.pipeline.evaluation.inspection.inspection_report import terminal_report

    console = Console(highlight=False, markup=False, emoji=False)
    for part in terminal_report(inspected_data.result):
        console.print(part)
    lines = terminal_lines(
        "inspected.txt.j2",
        __package__,
        page=str(folder / PAGE),
        table=str(folder / TABLE),
        result=inspected_data.result,
        own_model=own_model,
    )
    console.print("\n".join(lines), soft_wrap=True)


def diff(
    a: str,
    b: str,
    /,
    *,
    as_json: Json = False,
    table: Columns = None,
) -> None:
    """Show which images were added, removed, changed or relabelled from A to B.

    Parameters
    ----------
    a
        A folder, archive, table or SOURCE:NAME; a model version such as flowers@champion or
        flowers/3, or a run, for the data that it was trained with.
    b
        As A.
    table
        Columns of the tables among A and B, where they cannot be guessed.
    """
    from patchline.pipeline.data.manifests.data_diff import compare

    columns = dump_given_flags(table)
    _check_used(columns, a, b)
    with show_progress():
        result = compare(_manifest(a, columns), _manifest(b, columns))
    content = {"a": a, "b": b, "same": result.same, **result.model_dump(mode="json")}
    lines = terminal_lines("data_diff.txt.j2", __package__, a=a, b=b, result=result)
    emit(content, *lines, as_json=as_json)


def _check_used(columns: Mapping[str, Any], a: str, b: str) -> None:
    """Refuse settings of a table if there is none that takes them."""
    unused = columns.keys() - _own(columns, a).keys() - _own(columns, b).keys()
    if unused:
        flag = min(unused).replace("_", "-")
        raise ConfigError(
            f"--data.{flag} has no effect: neither {a} nor {b} uses it. Leave it out."
        )


def _own(columns: Mapping[str, Any], named: str) -> dict[str, Any]:
    """Return those of the settings that the source of some data takes; a run takes none."""
    if not _is_data(named):
        return {}
    source = data_settings(named, None)["data"]["source"]
    own_keys = {
        *config_class("data_source", source).model_fields,
        *TaskChoice.model_fields,
        *ReadingRules.model_fields,
    }
    return {key: value for key, value in columns.items() if key in own_keys}


def _is_data(named: str) -> bool:
    source = named.partition(":")[0]
    if Path(named).exists() or is_of_store(named):
        return True
    return source in {entry.name for entry in list_installed("data_source")}


def _manifest(named: str, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return the manifest of data, or of the run that trained a version."""
    from patchline.pipeline.data import ingestion
    from patchline.pipeline.data.manifests.earlier_manifests import manifest_of_run
    from patchline.pipeline.data.manifests.manifest import with_task

    if _is_data(named):
        config = data_config(named, _own(columns, named))
        workspace = place()
        ingestion.check_source(config, workspace, to_train=False)
        display().stage(f"Reading the data ({named})")
        scanned = ingestion.scan(config, workspace, display().advance)
        return with_task(scanned.manifest, scanned.task)
    display().stage(f"Finding the data of {named}")
    run_id = _run_id(named)
    manifest = manifest_of_run(run_id)
    if manifest is None:
        raise DataError(
            f"The run {run_id[:8]} of {named} has no manifest in the tracking store. Name the data "
            "itself, or another run."
        )
    return manifest


def _run_id(named: str) -> str:
    """Return the run that a user names by a model version or as a run."""
    from patchline.pipeline.registry.registered_models import resolve, run_of
    from patchline.pipeline.workspace.run_memory import interrupted_runs

    if "@" in named or "/" in named:
        try:
            return run_of(resolve(named))
        except ModelReferenceError as error:
            raise DataError(
                f"There is no folder or file {named}, and no such model version: {error}"
            ) from error
    return str(interrupted_runs.find_named(named, WORKSPACE.resolve() / "runs").info.run_id)


_PICTURE = "augmentation_preview.png"


def build_preview(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    chosen: Any = compose_settings(arguments)

    def preview(
        data: str | None = None,
        /,
        *,
        picture: Path | None = None,
        images: int = 8,
        epochs: int = 8,
        config: Path | None = None,
        preset: str | None = None,
        as_json: Json = False,
        settings: Any = None,
    ) -> None:
        """Draw training images before and after augmentation, as one picture.

        Parameters
        ----------
        data
            As for `run`: a folder, or SOURCE:NAME; without it, the built-in digits.
        picture
            File to write, by default .patchline/augmentation_preview.png.
        images
            Number of images, starting with one of each class.
        epochs
            Number of epochs to show.
        config
            YAML file with settings; flags override it.
        preset
            Plan to show: quick, balanced (unless the file names another one), best, or none.
        settings
            Settings of a run: --augmentation.name standard, --training.cutmix 1.
        """
        if images < 1 or epochs < 1 or images * epochs > 1000:  # noqa: PLR2004 - one screen
            raise ConfigError(
                f"--images {images} and --epochs {epochs} must be at least 1, and their product at "
                "most 1000. Choose smaller numbers."
            )
        flags = dump_given_flags(settings)
        request = config_files.build_config(data, preset_name=preset, file=config, flags=flags)
        file = picture or WORKSPACE.resolve() / _PICTURE
        resolved = _draw(request, file, images, epochs)
        if as_json:
            chosen_augmentation = resolved.augmentation.model_dump(mode="json")
            print(json.dumps({"picture": str(file), "augmentation": chosen_augmentation}))
        else:
            print(file)

    return add_flags(preview, chosen)


def _draw(request: RunConfig, file: Path, images: int, epochs: int) -> RunConfig:
    """Draw what a run with these settings would show, which is planned first unless told not to."""
    from patchline.flows.training.dry_run import dry_run
    from patchline.pipeline.training.saved_preview import save_preview
    from patchline.pipeline.workers import worker_start

    with show_progress(), worker_start.allow_prepared_workers():
        resolved = dry_run(request, place())
    save_preview(resolved.config, resolved.data, file, images=images, epochs=epochs)
    return resolved.config


def watch(
    folder: Path,
    /,
    *,
    config: Path | None = None,
    name: str | None = None,
    min_new_images: int | None = None,
    quiet_seconds: float | None = None,
    as_json: Json = False,
) -> None:
    """Watch a folder and train when it has enough new images; stop with `schedule remove`.

    Parameters
    ----------
    folder
        Folder with one subfolder of images per class, or a table of its images; also on an object
        store, such as s3://bucket/photos.
    config
        YAML file with the settings of the run.
    name
        Name of the watch. Default: the folder's name.
    min_new_images
        Minimum number of new images to start a training run. Default: 1.
    quiet_seconds
        How long nothing in the folder may change before a run starts, so that no run reads a folder
        that is still being copied. Default: 60; 3 if its subfolders are those of the last run.
    """
    quiet_seconds = watched_folders.check_quiet_seconds(quiet_seconds)
    least = watched_folders.check_min_new_images(min_new_images, config)
    watched = watched_folders.check_folder(folder)
    name = watched_folders.check_name(watched, name)
    settings, notes = watched_folders.run_settings(watched, config)
    with prefect_session.connect():
        deployment_id = _deploy(name, watched, settings, config, quiet_seconds, least)
        notes += _missing_services()
    content = {
        "name": name,
        "folder": watched,
        "min_new_images": least,
        "quiet_seconds": quiet_seconds,
        "deployment_id": str(deployment_id),
        "notes": notes,
    }
    quiet = watched_folders.quiet_words(quiet_seconds)
    lines = terminal_lines("watched.txt.j2", __package__, quiet=quiet, **content)
    emit(content, *lines, as_json=as_json)


def trigger(name: str, folder: str) -> DeploymentEventTrigger:
    """Return the trigger of a watch for other programs: the event `patchline.data.updated`."""
    from prefect.events import DeploymentEventTrigger

    from patchline.flows.prefect_api import folder_labels

    resources = [f"patchline.watch.{name}", f"patchline.folder.{folder}"]
    if identity := folder_labels.with_id(Path()).get(folder_labels.ID):
        resources.append(f"patchline.watch.{identity}.{name}")
    return DeploymentEventTrigger(
        name=f"Patchline watch: {name}",
        expect={events.DATA_UPDATED},
        match={"prefect.resource.id": resources},
    )


def _deploy(
    name: str,
    folder: str,
    settings: RunConfig,
    file: Path | None,
    quiet_seconds: float | None,
    min_new_images: int,
) -> UUID:
    from patchline.flows.new_data.watch_flow import retrain_when_new
    from patchline.flows.new_data.watched_folders import KIND
    from patchline.flows.schedules import deployments

    for watch in deployments.deployments(KIND):
        other = str(watch.labels.get(deployments.WATCH_FOLDER))
        if deployments.name_of(watch) == name and other != folder:
            raise ConfigError(
                f"The watch '{name}' already watches {other}. Choose another name with --name, or "
                f"remove that watch with `patchline schedule remove {name}`."
            )
    labels = {deployments.KIND: KIND, deployments.WATCH_FOLDER: folder}
    if quiet_seconds is not None:
        labels[deployments.QUIET_SECONDS] = str(quiet_seconds)
    if file is not None:
        labels |= scheduled_work.config_labels(file)
    return deployments.deploy(
        retrain_when_new,
        name,
        parameters={
            "config": settings.model_dump(mode="json"),
            "min_new_images": min_new_images,
        },
        triggers=[trigger(name, folder)],
        labels=labels,
        description=(
            f"Watches `{folder}` and trains when at least {min_new_images} images "
            f"are new. {watched_folders.quiet_words(quiet_seconds)}"
        ),
        concurrency="enqueue",
    )


def _missing_services() -> list[str]:
    if local_services.find_running() is None:
        hint = "The folder is watched only while `patchline up` runs here; until then, only the "
        return [f"{hint}event patchline.data.updated starts a run."]
    return []
