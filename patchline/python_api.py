"""The functions of the Python API, which `import patchline` offers.

Each does what the command of the same name does, in the working directory: the same stages,
tracking, defaults and files. What is heavy is imported when a function is called.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from patchline.flows.progress.progress_display import show_progress
from patchline.flows.python_api.session import (
    check_alone,
    check_section,
    check_sections,
    extension,
    new_run,
    session,
    use_plugins,
)
from patchline.pipeline.plugin_system.tools import tool_function, tools
from patchline.pipeline.registry.browsing.notebook import (
    DataReport,
    Decision,
    Evaluation,
    Explanation,
    Run,
    data_report_of,
    decision_of,
    run_of,
)

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd

    from patchline.flows.training.dry_run import Rehearsal
    from patchline.pipeline.packaging.prediction.loaded_model import Model

SectionSettings = Mapping[str, Any]


class Settings(TypedDict, total=False):
    """The settings of a run by section, listed by `patchline run --help`."""

    name: str
    """Name of the experiment and of the registered model; by default the data's own name."""
    seed: int
    data: SectionSettings
    augmentation: SectionSettings
    model: SectionSettings
    objective: SectionSettings
    optimizer: SectionSettings
    training: SectionSettings
    evaluation: SectionSettings
    promotion: SectionSettings
    launcher: SectionSettings


def run(
    data: str | Path | None = None,
    /,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    fresh: bool = False,
    resume: str | None = None,
    extend: str | None = None,
    plugin_files: Sequence[str | Path] = (),
    **settings: Unpack[Settings],
) -> Run:
    """Train on a folder of images and register the model, as `patchline run` does.

    Args:
        data: a folder with one subfolder of images for each class, an archive, a table, or
            SOURCE:NAME; by default the built-in digits.
        preset: plans the settings that are not given from the data and this machine: quick,
            balanced (unless the file names another one) or best; none keeps the defaults.
        config: YAML file with settings. Every run writes such a file, see `Run.config`.
        fresh: compute every stage instead of reusing unchanged results of earlier runs.
        resume: continue a run that failed or was interrupted, with the settings it was started
            with: its MLflow id, the first characters of the id, its name, or `last`.
        extend: continue the training of a finished run to more epochs, as a new run with its
            settings: `patchline.run(extend="last", training={"epochs": 40})`.
        plugin_files: Python files that each hold a plugin, to be used beside the installed ones.
        settings: `name`, `seed`, and the sections as dicts: `training={"time_limit": "20m"}`.

    Raises:
        ConfigError: for a setting that is unknown or has a bad value.
        DataError: if the images or their labels cannot be used.
        PipelineError: if the run failed; `run(resume="last")` continues it.
    """
    with session(writes="patchline.run()"), show_progress():
        from patchline.flows.training.run_training import resume_training, run_training

        use_plugins(plugin_files)
        if resume is not None:
            check_alone("resume", DATA=data, preset=preset, config=config, fresh=fresh, **settings)
            return run_of(resume_training(resume))
        check_sections(settings, Settings.__annotations__)
        if extend is not None:
            check_alone("extend", DATA=data, preset=preset, config=config)
            return run_of(run_training(extension(extend, settings), fresh=fresh))
        request = new_run(data, settings, preset=preset, config=config)
        return run_of(run_training(request, fresh=fresh))


def rehearse(
    data: str | Path | None = None,
    /,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    plugin_files: Sequence[str | Path] = (),
    **settings: Unpack[Settings],
) -> Rehearsal:
    """Go through every stage of a run with two batches, as `patchline run --rehearse` does.

    Nothing is registered or recorded, and its files are deleted. What would end the run late, such
    as a model that cannot be exported, raises the same exception as in `run`.

    Args:
        data: the data, as for `run`.
        preset: the preset that plans the settings, as for `run`.
        config: YAML file with settings.
        plugin_files: Python files that each hold a plugin, as for `run`.
        settings: the run's settings, as for `run`.

    Raises:
        ConfigError: for a setting that is unknown or has a bad value.
        DataError: if the images or their labels cannot be used.
        PipelineError: for what would end the run.
    """
    with session(writes="patchline.rehearse()"), show_progress():
        from patchline.flows.training import dry_run

        use_plugins(plugin_files)
        check_sections(settings, Settings.__annotations__)
        return dry_run.rehearse(new_run(data, settings, preset=preset, config=config))


def inspect_data(
    data: str | Path | None = None,
    /,
    *,
    check_labels: str | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    **settings: Unpack[Settings],
) -> DataReport:
    """Report on the data alone, as `patchline data inspect` does; nothing is trained.

    Args:
        data: the data, as for `run`.
        check_labels: registered model, such as `flowers`, that searches for likely label errors.
        preset: also plan a training run: quick, balanced or best; the plan is in the page and in
            `plan`.
        out: folder for the page and the table of findings, by default below .patchline/inspections.
        config: YAML file with settings.
        settings: the run's settings, as for `run`, such as `data={"exclude": "findings.csv"}`.

    Raises:
        ConfigError: for a setting that is unknown or has a bad value.
        DataError: if the data cannot be read at all.
    """
    with session():
        from patchline.flows.commands.data import names_preset, write_inspection

        check_sections(settings, Settings.__annotations__)
        request = new_run(data, settings, preset=preset, config=config)
        file = Path(config) if config else None
        planned = names_preset(preset, file)
        folder = Path(out) if out else None
        return data_report_of(*write_inspection(request, folder, check_labels, with_plan=planned))


def load(model: str) -> Model:
    """Open a registered model to predict with; it runs on ONNX Runtime and needs no torch.

    Args:
        model: NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; a bare NAME means its champion.

    Raises:
        ModelReferenceError: if there is no such model, version or alias, or its files are gone.
    """
    with session():
        from patchline.flows.closing.close_runs import tell_closed
        from patchline.pipeline.packaging.prediction.loaded_model import Model
        from patchline.pipeline.registry.package_download import fetch
        from patchline.pipeline.registry.registered_models import resolve

        tell_closed()
        reference = resolve(model)
        return Model(reference.name, reference.version, fetch(reference))


def evaluate(
    model: str,
    data: str | Path,
    *,
    split: Literal["auto", "all", "train", "validation", "test"] = "auto",
    seen_images: bool = False,
    common_classes: bool = False,
    columns: Mapping[str, Any] | None = None,
    evaluation: SectionSettings | None = None,
) -> Evaluation:
    """Report on a registered model on any labelled images, as `patchline evaluate` does.

    Args:
        model: NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; a bare NAME means its champion.
        data: a folder with one subfolder of images for each class, an archive, a table, or
            SOURCE:NAME.
        split: a split that the data itself names; auto takes its test split if there is one, else
            all images.
        seen_images: evaluate also on images used for training or model selection.
        common_classes: leave out images of classes that the model does not know.
        columns: columns of a table that cannot be guessed, such as `{"label_column": "species"}`.
        evaluation: settings of the report, those of the section `evaluation` of a run.

    Raises:
        ModelReferenceError: if there is no such model, version or alias.
        DataError: if no image is left to evaluate on.
    """
    with session(writes="patchline.evaluate()"), show_progress():
        from patchline.flows.commands.evaluate import evaluate_model
        from patchline.pipeline.data.config import TableColumns
        from patchline.pipeline.evaluation.config import EvaluationConfig
        from patchline.pipeline.registry.version_evaluation import EvaluationChoices

        report = check_section(EvaluationConfig, evaluation or {}, "evaluation")
        given = {"split": split, "seen_images": seen_images, "common_classes": common_classes}
        choices = check_section(EvaluationChoices, {**given, "report": report})
        columns = check_section(TableColumns, columns or {}, "columns").model_dump(
            exclude_none=True
        )
        result, tracked = evaluate_model(model, os.fspath(data), choices, columns)
    return Evaluation(
        path=result.html,
        metrics=result.report.metrics,
        name=result.reference.name,
        version=result.reference.version,
        run_id=tracked.run_id,
        split=result.report.split,
        images=len(result.selection.rows),
        notes=result.selection.notes,
        provenance=result.report.provenance.state,
    )


def explain(
    model: str,
    *images: str | Path,
    label: str | Sequence[str] = (),
    out: str | Path | None = None,
    occlusion: bool = True,
) -> Explanation:
    """Show how a trained model sees an image, step by step, as `patchline explain` does.

    Args:
        model: NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; a bare NAME means its champion.
            Or a training run: its MLflow id, its name, or `last`.
        images: an image file, or two to compare side by side.
        label: true label of the image, or a sequence for two; by default the name of the image's
            folder, if it is one of the classes. With a multi-label model: the label to explain, by
            default the most probable one.
        out: the HTML file to write; by default explain-IMAGE.html in the working directory.
        occlusion: cover parts of the image in turn to measure what the answer depends on.

    Raises:
        ModelReferenceError: if there is no such model, version, alias or run.
        DataError: if an image cannot be read.
        ConfigError: for no image, more than two, or a label that is not a class.
    """
    with session(), show_progress():
        page, answers, name = tool_function("explain")(
            model,
            [Path(image) for image in images],
            labels=[label] if isinstance(label, str) else label,
            out=None if out is None else Path(out),
            occlusion=occlusion,
        )
    first = answers[0]
    labels = None if first.labels is None else tuple(each["label"] for each in first.labels)
    return Explanation(page, first.label, first.probability, name, first.true_label, labels)


def promote(
    name: str,
    *,
    version: int | str | None = None,
    config: str | Path | None = None,
    force: bool = False,
    reason: str | None = None,
    promotion: SectionSettings | None = None,
) -> Decision:
    """Make a version champion if it passes the gates, as `patchline promote` does.

    A failed gate is a result, not an error: see `Decision.promoted` and `Decision.reason`.

    Args:
        name: the registered model.
        version: the version to promote; by default the challenger, which is the newest one.
        config: YAML file whose section `promotion` holds the gates; by default those of the
            version's own run.
        force: promote although a gate fails; the history shows it, with the reason.
        reason: why the gates are overruled.
        promotion: gates that override the file, those of the section `promotion` of a run.

    Raises:
        ModelReferenceError: if there is no such model or version.
        ConfigError: if a gate is unknown, or `force` has no reason.
    """
    with session(writes="patchline.promote()"), show_progress():
        from patchline.flows.commands.promote import promote_version
        from patchline.pipeline.registry.config import GateConfig

        gates = check_section(GateConfig, promotion or {}, "promotion")
        file = None if config is None else Path(config)
        decision = promote_version(
            name, version=version, config=file, promotion=gates, force=force, reason=reason
        )
        return decision_of(decision)


def models(name: str | None = None) -> pd.DataFrame:
    """Return the registered versions with their aliases and test metrics, newest first.

    A table, because a notebook shows, sorts and filters it.

    Args:
        name: the registered model to list; by default all models.

    Returns:
        One row for each version, with the index `name` and `version`, the columns `aliases`,
        `created_at`, `run_id`, `data_fingerprint`, `test_images` and `provenance`, and a column for
        each metric, such as `test/accuracy`. Metrics of versions with the same `test_images` are of
        the same images. `provenance` is whether all images that the version has seen are recorded:
        known, upstream corpus unknown, or unknown.

    Raises:
        ModelReferenceError: if there is no model of that name.
    """
    with session():
        from patchline.flows.python_api.version_table import version_table

        return version_table(name)


def find_tool_function(name: str) -> Callable[..., Any] | None:
    """Return what an installed tool offers as `patchline.NAME`; None if no tool does.

    Raises:
        PluginError: if it cannot be imported.
    """
    if not any(name in tool.plugin.python for tool in tools().usable):
        return None
    function = tool_function(name)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with session(writes=f"patchline.{name}()"), show_progress():
            return function(*arguments, **named)

    return call
