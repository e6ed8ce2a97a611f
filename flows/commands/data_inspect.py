"""The command `patchline data inspect`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.flows.commands.run import composed
from patchline.flows.commands.switches import Json, emit, flattened, given_flags, terminal_lines
from patchline.flows.progress.progress_display import display, shown
from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import read_settings
from patchline.pipeline.errors import ConfigError, DataError, PipelineError, UserError
from patchline.pipeline.registry.browsing.notebook import PAGE, TABLE
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.files.workspace_folder import is_read_only, make_folder, place

if TYPE_CHECKING:
    import pandas as pd

    from patchline.pipeline.evaluation.inspection.inspecting import Inspected, Judge
    from patchline.pipeline.evaluation.inspection.label_errors import Judgement


def version_judge(
    model: str, workspace: Path, on_progress: Callable[[str, int, int], None]
) -> Judge:
    """Return a function that predicts the labels of images with a registered version.

    Args:
        model: names the version, as the command's MODEL does.
        workspace: where decoded images are cached.
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
            images = version_evaluation.prepared_images(
                package, others, root, workspace, on_progress
            )
            probabilities_NK[left] = version_evaluation.predicted(package, images, on_progress)
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


def build(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    chosen: Any = composed(arguments, ("name", "data", "objective"))

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
        flags = given_flags(settings)
        request = config_files.requested(data, preset_name=preset, file=config, flags=flags)
        with_plan = names_preset(preset, config)
        inspected_data, folder = inspected(request, out, check_labels, with_plan=with_plan)
        if as_json:
            files = {"page": str(folder / PAGE), "table": str(folder / TABLE)}
            emit({**inspected_data.result.model_dump(mode="json"), **files}, as_json=True)
        else:
            own_model = (
                None if check_labels else _own_model(request.name or inspected_data.result.name)
            )
            _print(inspected_data, folder, own_model)

    return flattened(inspect, chosen)


def names_preset(preset: str | None, config: Path | None) -> bool:
    """Return whether a preset is named, which asks for its plan: measuring takes some seconds."""
    return preset is not None or (config is not None and "preset" in read_settings(config))


def inspected(
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
    with shown():
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
        with worker_start.prepared_workers():
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
