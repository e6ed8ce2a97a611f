"""`model_card.md` of a package: what the model does, how to ask it, how good it is, its limits.

In the order of Mitchell et al., Model Cards for Model Reporting (arXiv 1810.03993), as far as a
packaging process can know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Template

from pydantic import Field

from pipeline.metrics.intervals import MetricEstimate
from pipeline.metrics.names import METRICS
from pipeline.models.model_description import ModelDescription
from pipeline.plugin_api import NO_PATCH_EMBEDDING
from pipeline.plugin_system.plugin_settings import named_patch_embedding
from pipeline.section import Section

_LISTED_CLASSES = 200
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_ADDRESS = re.compile(r"\b(https?|ftp)://|\bwww\.", re.IGNORECASE)

_CARD = Template("""\
# $title

Labels an image with one of $num_classes classes and gives every class a calibrated probability.

## Ask it

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

**Input**: a column `image` with one or many images: encoded bytes (JPEG, PNG, …), base64 text,
uint8 arrays (height, width[, channels]), and, unless it is served over HTTP, paths. They are turned
upright by their EXIF orientation and brought to $height x $width pixels, $channels ($resize).

**Output**, for each image: `label`, `probability`, `top_k` (the most probable classes with their
probabilities) and `error`, the reason where an image cannot be read; the others get their answers.

## How it was made

| | |
|---|---|
$facts

## How good it is

$figures

## Limits

- It answers one of its classes for every image, also for one that shows none of them: it has no
  answer "something else".
- Its probabilities are calibrated on images like those it was trained with. On others (another
  camera, another place, drawings) it may be surer than it is right; measure it on your own images.
- What is smaller than a few pixels at $height x $width is not seen.
- Whatever is unbalanced or wrongly labelled in the training images is learned, too.

## Classes

| output | class |
|---|---|
$classes
""")


class CardFacts(Section):
    """What a training run knows about a model beyond its description."""

    name: str = ""
    """Name of the model in the registry."""
    images: dict[str, int] = Field(default_factory=dict)
    """Number of images by split."""
    figures: dict[str, MetricEstimate] = Field(default_factory=dict)
    """Figures with their intervals by `SPLIT/metric`."""
    training: str = ""
    """How long and on what it was trained, in words."""
    commit: str = ""
    """Commit of Patchline's own source."""


def model_card(
    description: ModelDescription, facts: CardFacts, *, parameters: int, check: str
) -> str:
    """Return the card as Markdown; it names no folder of the machine.

    Args:
        description: what `model.json` holds.
        facts: what the training run knows.
        parameters: how many numbers were learned.
        check: how close the package is to the trained model, in words.
    """
    image = description.image
    resize = {
        "crop": "scaled until it covers them, cut at the centre",
        "squash": "each side scaled alone",
    }
    return _CARD.substitute(
        title=escaped(facts.name or f"{description.model.name} classifier"),
        name=facts.name or "NAME",
        num_classes=len(description.classes),
        height=image.height,
        width=image.width,
        channels="RGB" if image.channels == 3 else "greyscale",  # noqa: PLR2004 - R, G, B
        resize=resize[image.resize],
        facts="\n".join(_facts(description, facts, parameters, check)),
        figures="\n".join(_figures(facts)),
        classes="\n".join(_classes(description.classes)),
    )


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line, without a link in it."""
    one_line = _CONTROL.sub(" ", text.encode("utf-8", "backslashreplace").decode())
    marked = _MARKDOWN.sub(r"\\\1", one_line)
    return _ADDRESS.sub(lambda found: re.sub(r"([:.])", r"\\\1", found[0]), marked)


def _facts(
    description: ModelDescription, facts: CardFacts, parameters: int, check: str
) -> Iterator[str]:
    embedding = named_patch_embedding(description.model).name
    plugins = [f"{each.name} ({each.distribution} {each.version})" for each in description.plugins]
    images = ", ".join(f"{count:,} {split}" for split, count in facts.images.items())
    rows = {
        "model": description.model.name,
        "patch embedding": "" if embedding == NO_PATCH_EMBEDDING else embedding,
        "plugins": ", ".join(plugins),
        "parameters": f"{parameters:,}",
        "temperature": f"{description.temperature:.4g} (divides the logits, so that probabilities "
        "are calibrated)",
        "training": facts.training,
        "images": images,
        "data version": description.data_fingerprint,
        "MLflow run": description.run_id,
        "Patchline commit": facts.commit,
        "package against trained model": check,
    }
    for key, value in rows.items():
        if value:
            yield f"| {key} | {escaped(value)} |"


def _figures(facts: CardFacts) -> Iterator[str]:
    if not facts.figures:
        yield "No figures were given when it was packaged."
        return
    yield "| figure | images of | value | 95 % interval | images |"
    yield "|---|---|---|---|---|"
    for key, estimate in facts.figures.items():
        split, _, metric = key.rpartition("/")
        title = METRICS[metric].title if metric in METRICS else metric
        interval = f"{estimate.low:.4f} to {estimate.high:.4f}"
        yield (
            f"| {escaped(title)} | {escaped(split)} | {estimate.value:.4f} | {interval} "
            f"| {estimate.n:,} |"
        )


def _classes(classes: tuple[str, ...]) -> Iterator[str]:
    for number, name in enumerate(classes[:_LISTED_CLASSES]):
        yield f"| {number} | {escaped(name)} |"
    if len(classes) > _LISTED_CLASSES:
        yield f"| … | and {len(classes) - _LISTED_CLASSES:,} more, all in `model.json` |"
