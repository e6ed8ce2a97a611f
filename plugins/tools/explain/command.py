"""The command `patchline explain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json, emit
from patchline.flows.progress.progress_display import display, show_progress
from patchline.pipeline.errors import ConfigError, ModelReferenceError
from patchline.pipeline.terminal_words import percent
from patchline.pipeline.workspace import remote_data
from patchline.pipeline.workspace.address import of_path
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

if TYPE_CHECKING:
    from patchline.pipeline.evaluation.visual_guide.explaining import ModelAnswer

_MOST_IMAGES = 2
_LABELS = ("labels", "explained")


class _TrainedModel(NamedTuple):
    """A trained model that a user names."""

    name: str
    folder: Path
    """The folder that holds `model.safetensors` and `model.json`."""


def explain(
    model: str,
    /,
    *images: Path,
    label: tuple[str, ...] = (),
    out: Path | None = None,
    occlusion: bool = True,
    as_json: Json = False,
) -> None:
    """Show how a trained model sees an image, step by step, in one HTML file.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion. Or a
        training run: its MLflow id, name, or `last`.
    images
        An image file, or two to compare side by side.
    label
        True label of the image; repeat it for the second one. By default the name of the image's
        folder, if it is one of the classes. With a model that gives an image several labels: the
        label to explain; by default the most probable one.
    out
        File to write, by default explain-IMAGE.html in this folder.
    occlusion
        Cover parts of the image in turn to measure what the answer depends on.
    """
    page, answers, name = explain_images(model, images, labels=label, out=out, occlusion=occlusion)
    said = [f"{answer.image}  {_format_answer(answer)}" for answer in answers]
    emit(_as_json(page, answers, name), *said, f"page: {page}", as_json=as_json)


def _format_answer(answer: ModelAnswer) -> str:
    """Return what the model answers, for a line of the terminal."""
    if answer.labels is not None:
        given = [f"{each['label']} {percent(each['probability'], 2)}" for each in answer.labels]
        return f"{'  '.join(given) or 'no label'}; explained: {answer.explained}"
    truth = f"; true label: {answer.true_label}" if answer.true_label else ""
    return f"{answer.label} {percent(answer.probability or 0.0, 2)}{truth}"


def explain_images(
    model: str,
    images: Sequence[Path],
    *,
    labels: Sequence[str] = (),
    out: Path | None = None,
    occlusion: bool = True,
) -> tuple[Path, list[ModelAnswer], str]:
    """Write the visual guide; return its path, the answers, and the model's name.

    Raises:
        ConfigError: if there is no image, more than two, or a label without an image.
        DataError: if an image cannot be read.
        ModelReferenceError: if there is no such model.
    """
    _check(images, labels, out)
    tell_closed()
    trained = _find_trained(model)
    from patchline.pipeline.evaluation.visual_guide import explaining

    page = out or Path(f"explain-{'-'.join(image.stem for image in images)}.html")
    local = [remote_data.local_image(image) for image in images]
    given = [*labels, *([None] * len(images))]
    with show_progress():
        names = [of_path(image) or str(image) for image in images]
        display().stage(f"Explaining {' and '.join(names)} with {trained.name}")
        answers = explaining.explain(
            trained.folder,
            list(zip(local, given, strict=False)),
            page,
            trained.name,
            occlusion=occlusion,
            on_progress=display().advance,
        )
    named = zip(answers, images, strict=True)
    answers = [each._replace(image=of_path(image) or each.image) for each, image in named]
    return page, answers, trained.name


def _check(images: Sequence[Path], labels: Sequence[str], out: Path | None) -> None:
    if not 1 <= len(images) <= _MOST_IMAGES:
        raise ConfigError(
            f"explain takes one image, or two to compare, and not {len(images)}. Give the path of "
            "an image file."
        )
    if len(labels) > len(images):
        raise ConfigError(
            f"--label is given {len(labels)} times for {len(images)} image"
            f"{'s' * (len(images) > 1)}. Give at most one for each image."
        )
    if out is not None and out.is_dir():
        raise ConfigError(f"--out {out} is a folder. Set it to the HTML file to write.")


def _find_trained(reference: str) -> _TrainedModel:
    """Return the trained model of a version or a run.

    Raises:
        ModelReferenceError: if there is neither.
    """
    from patchline.pipeline.registry import package_download, registered_models
    from patchline.pipeline.workspace.run_memory import interrupted_runs
    from patchline.pipeline.workspace.tracking import liveness

    try:
        version = registered_models.resolve(reference)
    except ModelReferenceError:
        if any(sign in reference for sign in "@/:"):
            raise
        try:
            run = interrupted_runs.find_named(reference, WORKSPACE.resolve() / "runs")
        except ConfigError:
            run = None
        if run is None:
            raise
        folder = liveness.folder_of(run) / "package"
        return _check_model(_TrainedModel(f"run {run.info.run_id[:8]}", folder))
    folder = package_download.package_folder(version) / "artifacts"
    return _check_model(_TrainedModel(f"{version.name}/{version.version}", folder))


def _check_model(trained: _TrainedModel) -> _TrainedModel:
    from patchline.pipeline.models.model_description import WEIGHTS_FILE, load_description
    from patchline.pipeline.workspace.files.access import is_readable

    if not is_readable(trained.folder / WEIGHTS_FILE):
        raise ModelReferenceError(
            f"{trained.name} has no {WEIGHTS_FILE} that may be read on this machine, which holds "
            "its weights. Name a finished run, or a version that Patchline has packaged."
        )
    if not load_description(trained.folder).classes:
        raise ModelReferenceError(
            f"{trained.name} is an encoder without classes, so it gives no answer to explain. "
            "Train a classifier from it with `patchline run DATA --model.init`."
        )
    return trained


def _as_json(page: Path, answers: Sequence[ModelAnswer], name: str) -> dict[str, Any]:
    first = answers[0]
    return {
        "model": name,
        "image": first.image,
        "label": first.label,
        "probability": first.probability,
        "page": str(page),
        **_of_labels(first),
        "images": [
            {
                **{key: value for key, value in answer._asdict().items() if key not in _LABELS},
                **_of_labels(answer),
            }
            for answer in answers
        ],
    }


def _of_labels(answer: ModelAnswer) -> dict[str, Any]:
    """Return what only a model of several labels for each image answers."""
    return {} if answer.labels is None else {key: getattr(answer, key) for key in _LABELS}
