"""The command `patchline evaluate`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import (
    Columns,
    Json,
    Switch,
    data_config,
    dump_given_flags,
    emit,
    terminal_lines,
)
from patchline.flows.progress.progress_display import display, show_progress
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.evaluation.config import EvaluationConfig, SplitChoice
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
from patchline.pipeline.registry.registered_models import ModelReference, resolve, task_of
from patchline.pipeline.workspace.address import of_path
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import NewRun

if TYPE_CHECKING:
    from patchline.pipeline.evaluation.label_set_report import MultiLabelReport
    from patchline.pipeline.evaluation.report import EvaluationReport
    from patchline.pipeline.registry.version_evaluation import EvaluationChoices, VersionEvaluation


def evaluate(
    model: str,
    data: str,
    /,
    *,
    split: SplitChoice = "auto",
    seen_images: Switch = False,
    common_classes: Switch = False,
    out: Path | None = None,
    as_json: Json = False,
    table: Columns = None,
    evaluation: EvaluationConfig | None = None,
) -> None:
    """Evaluate a registered model on labelled images and write a report.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion.
    data
        A folder with one subfolder of images for each class, an archive of such folders, a table,
        or SOURCE:NAME for another data source plugin.
    split
        The split of the data to evaluate; auto means the test split if there is one, else all.
    seen_images
        Include images used for training or model selection.
    common_classes
        Leave out images of classes that the model does not have.
    out
        Folder for a copy of the report.
    table
        Columns of a table, where they cannot be guessed, and how labels are read.
    evaluation
        Contents of the report.
    """
    from patchline.pipeline.registry.version_evaluation import EvaluationChoices

    choices = EvaluationChoices(
        split=split,
        seen_images=seen_images,
        common_classes=common_classes,
        report=evaluation or EvaluationConfig(),
    )
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file. Set it to a folder for the report.")
    with show_progress():
        result, run = evaluate_model(model, data, choices, dump_given_flags(table))
    if out is not None:
        shutil.copytree(result.html.parent, out, dirs_exist_ok=True)
    lines = terminal_lines("evaluate.txt.j2", __package__, result=result, metrics=ALL_METRICS)
    emit(_as_json(result, run), *lines, as_json=as_json)


def evaluate_model(
    model: str, data: str, choices: EvaluationChoices, columns: Mapping[str, Any]
) -> tuple[VersionEvaluation, tracked_run.TrackedRun]:
    """Evaluate a registered model in a new MLflow run.

    Args:
        model: names the model, as the command's MODEL does.
        data: names the images, as the command's DATA does.
        choices: which images are evaluated, and what the report shows.
        columns: columns of a table of images, by the name of their setting, such as `label_column`.

    Returns:
        The evaluation, and the MLflow run that holds it.
    """
    from patchline.pipeline.data import ingestion
    from patchline.pipeline.registry.version_evaluation import (
        choose_images,
        evaluate_version,
        with_task,
    )

    config = data_config(data, columns)
    workspace = WORKSPACE.resolve()
    path = config.data.path
    if path is not None and not of_path(path) and not Path(path).exists():
        ingestion.check_source(config, workspace, to_train=False)  # says so before MLflow is loaded
    tell_closed()
    reference = resolve(model)
    config = with_task(config, reference, task_of(reference))
    config = config.model_copy(update={"name": reference.name})
    ingestion.check_source(config, workspace, to_train=False)
    new = NewRun(
        experiment=reference.name,
        name=f"evaluate-{reference.name}-{reference.version}",
        command="patchline evaluate",
        params=_params(reference, config, choices),
        tags={},
    )
    display().stage(f"Evaluating {reference.name}, version {reference.version}, on {data}")
    chosen = choose_images(reference, config, choices, workspace, display().advance)
    with tracked_run.open_run(new, workspace / "runs") as run:
        result = evaluate_version(
            chosen, choices, workspace, run.folder / "report", display().advance
        )
        _log(run, result)
    return result, run


def _params(
    reference: ModelReference, config: RunConfig, choices: EvaluationChoices
) -> dict[str, str]:
    return {
        "model": f"{reference.name}/{reference.version}",
        "data.source": config.data.source,
        "data.path": config.data.path or "",
        **{key: str(value) for key, value in choices.model_dump(exclude={"report"}).items()},
    }


def _log(run: tracked_run.TrackedRun, result: VersionEvaluation) -> None:
    from patchline.pipeline.data.manifests import manifest as manifests
    from patchline.pipeline.registry import registration

    manifest_file = run.folder / "data" / f"{result.selection.fingerprint}.parquet"
    manifests.save(result.selection.rows, manifest_file)
    name = result.data.name
    tracked_run.log_data(run, name, result.selection.fingerprint, manifest_file, "evaluation")
    model_id = registration.find_logged_model_of(result.reference)
    if model_id is not None:
        registration.log_evaluated_model(run, model_id)
    registration.log_report_metrics(run, model_id, result.report.with_robustness, name)
    for file in sorted(result.html.parent.iterdir()):
        tracked_run.log_file(run, file, "report")


def _as_json(result: VersionEvaluation, run: tracked_run.TrackedRun) -> dict[str, Any]:
    robustness = result.report.robustness
    return {
        "model": result.reference.name,
        "version": result.reference.version,
        "run_id": run.run_id,
        "split": result.report.split,
        "images": len(result.selection.rows),
        "data_fingerprint": result.selection.fingerprint,
        "metrics": {
            key: value.model_dump() for key, value in result.report.with_robustness.metrics.items()
        },
        "calibration": result.report.calibration.model_dump(),
        **_of_label_sets(result.report),
        "robustness": robustness.model_dump() if robustness is not None else None,
        "report": str(result.html),
        "provenance": result.report.provenance.model_dump(),
        "notes": [*result.selection.notes, *filter(None, [result.report.groups_note])],
    }


def _of_label_sets(report: EvaluationReport | MultiLabelReport) -> dict[str, Any]:
    """Return what is said of models that give sets of labels alone."""
    from patchline.pipeline.evaluation.label_set_report import MultiLabelReport

    if not isinstance(report, MultiLabelReport):
        return {}
    return {
        "labels": list(report.classes),
        "thresholds": report.thresholds.model_dump(),
        "unknown_labels": list(report.unknown_labels),
    }
