"""Write `model_card.md` of a package: what the model does, how to use it, metrics and limitations.

Follows Mitchell et al., Model Cards for Model Reporting (arXiv 1810.03993), as far as the packaging
worker knows the answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Template

from pydantic import Field

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED, TemperatureFit
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.provenance import UNKNOWN, ProvenanceSummary
from patchline.pipeline.plugin_system.plugin_settings import named_patch_embedding
from patchline.plugin_api import NO_PATCH_EMBEDDING, PixelValues

_LISTED_CLASSES = 200
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_ADDRESS = re.compile(r"\b(https?|ftp)://|\bwww\.", re.IGNORECASE)

_CALIBRATED = "Its probabilities are calibrated on images like its training images."
_NOT_CALIBRATED = "Its probabilities are not calibrated: see the fact “calibration”."
_MOST_PROBABLE = (
    "A label is the most probable class, although the training counted all classes equally: rare "
    "classes are found less often than with equal weights."
)
_UNKNOWN = (
    "It is not known whether its probabilities are calibrated: the validation images cannot tell."
)

_ENCODER_CARD = Template("""\
# $title

Encodes an image as a vector of features. It was trained without labels and knows no classes: train
a classifier that starts from it.

## Usage

```sh
patchline run FOLDER --model.init $name/VERSION
```

```python
import mlflow
import pandas as pd

model = mlflow.pyfunc.load_model("models:/$name/VERSION")
answers = model.predict(pd.DataFrame({"image": ["photo.jpg"]}))
```

**Input**: a column `image` with one or more images: encoded bytes (JPEG, PNG, …), base64 text,
uint8 arrays (height, width, channels), RGB or grey, or, except over HTTP, file paths. Images are
rotated by their EXIF orientation and resized to $height x $width pixels, $channels ($resize).

**Output** for each image: `features`, the numbers that a classifier's head would read, and `error`,
the reason if the image cannot be read.

## Training

| | |
|---|---|
$facts

## Metrics

$metrics

## Limitations

$seen- The loss of the pre-training says little about the classes that the features can tell apart.
  Train a classifier on them, or compare with one that was trained from random weights.
- Details smaller than a few pixels at $height x $width are lost.
""")

_USAGE = """## Usage

```python
import mlflow
import pandas as pd

model = mlflow.pyfunc.load_model("models:/$name@champion")
answers = model.predict(pd.DataFrame({"image": ["photo.jpg"]}), params={"top_k": 3})
```

```sh
patchline predict $name@champion FOLDER --out predictions.parquet
mlflow models serve --model-uri models:/$name@champion --env-manager local --port 5000
curl http://127.0.0.1:5000/invocations -H 'Content-Type: application/json' \\
  -d '{"dataframe_records": [{"image": "BASE64 OF AN IMAGE FILE"}], "params": {"top_k": 3}}'
```

**Input**: a column `image` with one or more images: encoded bytes (JPEG, PNG, …), base64 text,
uint8 arrays (height, width, channels), RGB or grey, or, except over HTTP, file paths. Images are
rotated by their EXIF orientation and resized to $height x $width pixels, $channels ($resize).

"""

_CARD = Template(
    """\
# $title

Classifies an image into one of $num_classes classes, with a$calibrated probability for each class.

"""
    + _USAGE
    + """\
**Output** for each image: `label`, `probability`, `top_k` (the most probable classes and their
probabilities), `set` (the prediction set; null if it is not known, with the reason in
`set_unknown`), `coverage` (nominal, an average over images), `warnings` (each with
`kind` and `message`) and `error`, the reason if the image cannot be read. With the parameter
`coverage` the sets have another coverage, and with `map` an answer says where the model looked. An
unreadable image does not affect the others.

## Training

| | |
|---|---|
$facts

## Metrics

$metrics

## Sets and warnings

$answers

## Limitations

$seen- The model predicts one of its classes for every image, even if the image shows none of them:
  there is no class "something else".
- $limits On other images (another
  camera, another place, drawings) it may be overconfident; evaluate it on your own images.
- Details smaller than a few pixels at $height x $width are lost.
- Imbalance and wrong labels in the training images affect the model's predictions.

## Classes

| output | class |
|---|---|
$classes
"""
)


_SETS_CARD = Template(
    """\
# $title

Finds which of $num_classes labels an image has: any number of them, also none. Each label has
a$calibrated probability of its own, and a threshold from which on it is given.

"""
    + _USAGE
    + """\
**Output** for each image: `labels` (those at or above their thresholds, each with `probability`,
the most probable first; empty if there is none), `label` and `probability` (the first of them; null
if there is none), `top_k` (the most probable labels, given or not, each with `probability` and
`threshold`), `warnings` (each with `kind` and `message`) and `error`, the reason if the image
cannot be read. `set` and `coverage` are null: prediction sets are for models with one label for
each image. The probabilities of an image's labels do not sum to 1. With the parameter `map` an
answer says where the model looked. An unreadable image does not affect the others.

## Training

| | |
|---|---|
$facts

## Metrics

$metrics

## Labels

Thresholds: $thresholds. For another balance of missed and wrong labels, choose others: the
probabilities of all labels are in the answers.

| output | label | threshold | average precision | 95% confidence interval | images with it |
|---|---|---|---|---|---|
$classes

## Warnings

$answers

## Limitations

$seen- The model knows its $num_classes labels alone, and tells nothing else about an image.
- $limits On other images (another
  camera, another place, drawings) it may be overconfident; evaluate it on your own images.
- Labels that were missing in the training images count as absent, which lowers their probability.
- Details smaller than a few pixels at $height x $width are lost.
"""
)


class CardLabel(FrozenModel):
    """What is known about one label of a multi-label model."""

    images: int
    """Number of test images that have it."""
    average_precision: MetricEstimate | None
    """None where no test image tells it."""


class CardFacts(FrozenModel):
    """Facts about a model that are known to its training run but not in its description."""

    name: str = ""
    """Name of the model in the registry."""
    images: dict[str, int] = Field(default_factory=dict)
    """Number of images by split."""
    metrics: dict[str, MetricEstimate] = Field(default_factory=dict)
    """Metrics with their confidence intervals, by `SPLIT/metric`."""
    labels: tuple[CardLabel, ...] = ()
    """Of a multi-label model: each label, in the order of the outputs."""
    answers: tuple[str, ...] = ()
    """What was measured of prediction sets and warnings, in words."""
    initial_weights: str = ""
    """What training started from; empty for random weights."""
    taught_by: str = ""
    """The teacher whose predictions it was trained towards, in words; empty without one."""
    license: str = ""
    """Of published initial weights; empty if it is not known."""
    seen_before: tuple[str, ...] = ()
    """What the initial weights have seen of the images that the metrics belong to."""
    training: str = ""
    """Duration and device of the training, in words."""
    commit: str = ""
    """Commit of Patchline's source."""


def model_card(
    description: ModelDescription,
    facts: CardFacts,
    *,
    parameters: int,
    check: str,
    latency: str = "",
    provenance: ProvenanceSummary = UNKNOWN,
) -> str:
    """Return the card as Markdown, without paths of the machine.

    Args:
        description: the content of `model.json`.
        facts: facts from the training run.
        parameters: number of parameters.
        check: how closely the package matches what is reported, in words.
        latency: how long batches took when it was packaged, in words.
        provenance: whether all images that the weights have seen are recorded.
    """
    image, is_calibrated = description.image, _is_calibrated(description)
    resize = {
        "crop": "scaled to cover, then cropped at the centre",
        "squash": "each side scaled independently",
        "pad": "scaled to fit, in a border of the image's mean colour",
    }
    kind = "classifier" if description.classes else "encoder"
    template = _CARD if description.classes else _ENCODER_CARD
    if description.is_multi_label:
        template, kind = _SETS_CARD, "multi-label classifier"
    return template.substitute(
        title=escaped(facts.name or f"{description.model.name} {kind}"),
        name=facts.name or "NAME",
        num_classes=len(description.classes),
        calibrated=" calibrated" if is_calibrated else "",
        limits=_limits(description),
        thresholds=escaped(description.thresholds.sentence(description.classes))
        if description.thresholds
        else "",
        height=image.height,
        width=image.width,
        channels="RGB" if image.channels == 3 else "greyscale",  # noqa: PLR2004 - R, G, B
        resize=resize[image.resize],
        facts="\n".join(
            f"| {key} | {escaped(value)} |"
            for key, value in (
                *_facts(description, facts, parameters, provenance),
                ("package compared with the report", check),
                ("latency", latency),
            )
            if value
        ),
        metrics="\n".join(_metrics(facts)),
        answers="\n".join(_answers(facts)),
        seen="".join(f"- {escaped(note[:1].upper() + note[1:])}.\n" for note in facts.seen_before),
        classes="\n".join(
            _labels(description, facts)
            if description.is_multi_label
            else _classes(description.classes)
        ),
    )


def escaped(text: str) -> str:
    """Return text escaped for Markdown: one line, shown literally, with no links."""
    one_line = _CONTROL.sub(" ", text.encode("utf-8", "backslashreplace").decode())
    marked = _MARKDOWN.sub(r"\\\1", one_line)
    return _ADDRESS.sub(lambda match: re.sub(r"([:.])", r"\\\1", match[0]), marked)


def _facts(
    description: ModelDescription,
    facts: CardFacts,
    parameters: int,
    provenance: ProvenanceSummary,
) -> Iterator[tuple[str, str]]:
    embedding = named_patch_embedding(description.model).name
    plugins = [f"{each.name} ({each.distribution} {each.version})" for each in description.plugins]
    images = ", ".join(f"{count:,} {split}" for split, count in facts.images.items())
    yield from {
        "model": description.model.name,
        "patch embedding": "" if embedding == NO_PATCH_EMBEDDING else embedding,
        "plugins": ", ".join(plugins),
        "parameters": f"{parameters:,}",
        "calibration": _calibration(description),
        "test-time flip": "an image is predicted together with its mirror image"
        if description.model.settings.get("test_time_flip")
        else "",
        "initial weights": facts.initial_weights,
        "teacher": facts.taught_by,
        "license of the initial weights": facts.license,
        "images seen": f"{provenance.state}: {provenance.sentence('the model')}",
        "pixel values": "; ".join(_pixel_values(description.image.pixel_values)),
        "training": facts.training,
        "images": images,
        "data version": description.data_fingerprint,
        "MLflow run": description.run_id,
        "Patchline commit": facts.commit,
    }.items()


def _is_calibrated(description: ModelDescription) -> bool:
    return description.logit_calibration.is_calibrated


def _limits(description: ModelDescription) -> str:
    """Return what is known of the probabilities, and of labels that come from them."""
    fit = description.logit_calibration
    known = _CALIBRATED if _is_calibrated(description) else _UNKNOWN
    known = _NOT_CALIBRATED if fit.off else known
    biased = isinstance(fit, TemperatureFit) and fit.class_bias.any()
    return f"{_MOST_PROBABLE} {known}" if biased else known


def _calibration(description: ModelDescription) -> str:
    """Return how the probabilities were calibrated; empty for an encoder."""
    if description.is_multi_label:
        fit = description.label_calibration
        return fit.sentence(description.classes) if fit else UNRECORDED.sentence()
    if not description.classes:
        return ""
    fit_of_one = description.calibration or UNRECORDED
    return fit_of_one.sentence()


def _pixel_values(values: PixelValues) -> Iterator[str]:
    """Say what becomes of values and bands that are not 8 bits of grey or RGB."""
    for each in values.ranges:
        yield (
            f"{each.kind} from {each.low:,.6g} to {each.high:,.6g} become 256 grey levels "
            f"({each.origin})"
        )
    if not values.eight_bit:
        yield "no training image had 8 bits per color"
    if values.bands:
        yield f"bands {', '.join(map(str, values.bands))}, counted from 1"
    if not values.opacity:
        yield "opacity is ignored"


def _metrics(facts: CardFacts) -> Iterator[str]:
    if not facts.metrics:
        yield "No metrics were available when the model was packaged."
        return
    yield "| metric | split | value | 95% confidence interval | images |"
    yield "|---|---|---|---|---|"
    for key, estimate in facts.metrics.items():
        split, _, metric = key.rpartition("/")
        title = ALL_METRICS[metric].title if metric in ALL_METRICS else metric
        interval = f"{estimate.low:.4f} to {estimate.high:.4f}"
        yield (
            f"| {escaped(title)} | {escaped(split)} | {estimate.value:.4f} | {interval} "
            f"| {estimate.n:,} |"
        )


def _answers(facts: CardFacts) -> Iterator[str]:
    if not facts.answers:
        yield "Not known: nothing was measured when the model was packaged."
    for sentence in facts.answers:
        yield f"- {escaped(sentence[:1].upper() + sentence[1:])}."


def _labels(description: ModelDescription, facts: CardFacts) -> Iterator[str]:
    """Yield a row for each label, with its threshold and what was measured on the test images."""
    thresholds, classes = description.thresholds, description.classes
    for number, name in enumerate(classes[:_LISTED_CLASSES]):
        threshold = f"{thresholds.values[number]:.3f}" if thresholds else "not known"
        measured = facts.labels[number] if facts.labels else None
        if measured is None:
            precision = "not known | | "
        elif measured.average_precision is None:
            precision = f"not known | | {measured.images:,}"
        else:
            estimate = measured.average_precision
            interval = f"{estimate.low:.4f} to {estimate.high:.4f}"
            precision = f"{estimate.value:.4f} | {interval} | {measured.images:,}"
        yield f"| {number} | {escaped(name)} | {threshold} | {precision} |"
    if len(classes) > _LISTED_CLASSES:
        more = f"and {len(classes) - _LISTED_CLASSES:,} more, all in `model.json`"
        yield f"| … | {more} | | | | |"


def _classes(classes: tuple[str, ...]) -> Iterator[str]:
    for number, name in enumerate(classes[:_LISTED_CLASSES]):
        yield f"| {number} | {escaped(name)} |"
    if len(classes) > _LISTED_CLASSES:
        yield f"| … | and {len(classes) - _LISTED_CLASSES:,} more, all in `model.json` |"
