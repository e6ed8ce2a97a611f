"""The model card tells what is known, shows every class name as it is, and names no folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.metrics.intervals import MetricEstimate
from patchline.pipeline.metrics.temperature import TemperatureFit
from patchline.pipeline.models.model_description import ModelDescription, PluginRecord
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.packaging.__main__ import package
from patchline.pipeline.packaging.calibrated_onnx import ProbabilityModel
from patchline.pipeline.packaging.job import PackagingJob
from patchline.pipeline.packaging.model_card import CardFacts, escaped, model_card
from patchline.pipeline.workers.event_log import EventWriter
from tests.conftest import draw_photo
from tests.pipeline.conftest import CLASSES, SIDE, image_spec, random_model, vit_choice

FACTS = CardFacts(
    name="flowers",
    images={"train": 7000, "test": 286},
    metrics={"test/accuracy": MetricEstimate(value=0.9825, low=0.96, high=0.99, n=286)},
    initial_weights="timm:vit_tiny",
    license="apache-2.0",
    training="20 epochs on cpu",
    commit="0123456789ab",
)


FITTED = TemperatureFit(temperature=1.25, state="fitted", low=1.1, high=1.4, images=300)


def _description(classes: tuple[str, ...] = ("rose", "tulip"), **given: Any) -> ModelDescription:
    choice = {
        "name": "vit",
        "test_time_flip": True,
        "patch_embedding": {"name": "conv", "patch_size": 4},
    }
    plugin = PluginRecord(kind="model", name="vit", distribution="patchline", version="0.1.0")
    return ModelDescription(
        model=ModelChoice.model_validate(choice),
        plugins=(plugin,),
        classes=classes,
        image=image_spec(3),
        temperature=1.25,
        calibration=given.pop("calibration", FITTED),
        data_fingerprint="fingerprint-1",
        run_id="run-1",
        **given,
    )


def _card(description: ModelDescription, facts: CardFacts = FACTS) -> str:
    return model_card(description, facts, parameters=302_506, check="differ by at most 1e-07")


def test_the_card_tells_what_is_known() -> None:
    """Model, data, training, figures with intervals and the ways to ask are all there.

    What is not known is left out, and a long list of classes ends with where the rest is.
    """
    card = _card(_description())
    for words in (
        "# flowers\n", "one of 2 classes", "| model | vit |", "| patch embedding | conv |",
        "| test-time flip |",
        "vit (patchline 0.1.0)", "302,506", "temperature 1.25, fitted on 300", "20 epochs on cpu",
        "| license of the initial weights | apache-2.0 |",
        "7,000 train, 286 test", "fingerprint-1", "run-1", "0123456789ab", "1e-07",
        "| Accuracy | test | 0.9825 | 0.9600 to 0.9900 | 286 |", "16 x 16 pixels, RGB",
        'load_model("models:/flowers@champion")', "patchline predict flowers@champion",
        "--model-uri models:/flowers@champion", "## Limitations", "| 0 | rose |", "| 1 | tulip |",
    ):  # fmt: skip
        assert words in card
    assert "$" not in card
    assert "## Limitations\n\n- The" in card
    seen = FACTS.model_copy(update={"seen_before": ("3 of the 286 test images were seen",)})
    optimistic = _card(_description(), seen)
    assert "## Limitations\n\n- 3 of the 286 test images were seen.\n- The" in optimistic
    unknown = _card(_description(tuple(f"class {number}" for number in range(1000))), CardFacts())
    assert unknown.startswith("# vit classifier\n")
    for words in ("models:/NAME@champion", "No metrics were available", "| 199 | class 199 |",
                  "and 800 more, all in `model.json`"):  # fmt: skip
        assert words in unknown
    assert "Patchline commit" not in unknown


@pytest.mark.parametrize(
    "name",
    [
        "a|b", "*b* _x_ ~~c~~ `d`", "[click](http://example.org)", "<script>alert(1)</script>",
        "# title", "back\\slash", "&lt;", "![i](x)", "$x$", "line\nbreak\t", "www.example.org", "",
    ],
)  # fmt: skip
def test_a_class_name_is_shown_as_it_is(name: str) -> None:
    """Markdown and HTML in a class name are text, in one cell of the table."""
    [row] = [line for line in _card(_description((name, "other"))).splitlines() if "| 0 |" in line]
    cell = row.removeprefix("| 0 | ").removesuffix(" |")
    assert cell == escaped(name)
    assert not re.search(r"(?<!\\)[`*_\[\]<>|#~&$!]", cell.replace("\\\\", ""))
    assert not re.search(r"https?://|www\.", cell)
    unescaped = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell)
    assert unescaped == re.sub(r"[\n\t]", " ", name)


def test_packaging_writes_the_card(tmp_path: Path) -> None:
    """The packaging process adds what it measured, and the card names no folder."""
    model = random_model(3).model
    description = ModelDescription(
        model=vit_choice("conv"), plugins=(), classes=CLASSES, image=image_spec(3)
    )
    (tmp_path / "trained").mkdir()
    save_model(tmp_path / "trained", model, description)
    rows = {"path": [f"{n}.png" for n in range(12)], "split": "test", "status": "ok"}
    manifests.save(pd.DataFrame(rows), tmp_path / "manifest.parquet")
    (tmp_path / "store").mkdir()
    np.save(tmp_path / "store/images.npy", np.stack([draw_photo(n, n, SIDE) for n in range(12)]))
    bias = tuple(-float(k) for k in range(len(description.classes)))
    fit = FITTED.model_copy(update={"temperature": 1.5, "bias": bias})
    job = PackagingJob(
        model_folder=tmp_path / "trained",
        manifest_file=tmp_path / "manifest.parquet",
        store=tmp_path / "store",
        calibration=fit,
        reported=tmp_path / "predictions.parquet",
        folder=tmp_path / "package",
        card=FACTS,
    )
    job.folder.mkdir()
    pixels = torch.from_numpy(np.load(tmp_path / "store/images.npy"))
    probabilities = ProbabilityModel(model, image_spec(3), fit)(pixels).detach().numpy()
    table = pd.DataFrame(rows).assign(row=range(12), probabilities=list(probabilities))
    table.to_parquet(job.reported)
    made = package(job, EventWriter(tmp_path / "events.jsonl"))
    names = "digests.json model.json model.onnx model.safetensors model_card.md model_server.py"
    assert sorted(file.name for file in made.folder.iterdir()) == names.split()
    card = (made.folder / "model_card.md").read_text()
    assert "of all 12 test images differ from the reported ones by at most" in card
    assert "temperature 1.5, fitted on 300 validation images (95% interval 1.10 to 1.40)" in card
    assert "test-time flip" not in card
    assert made.latency is not None
    assert [each.batch_size for each in made.latency.batches] == [1, 4, 16]
    assert escaped(made.latency.sentence()) in card
    assert str(tmp_path) not in card


def test_a_card_says_where_calibration_is_unknown() -> None:
    """Probabilities are only called calibrated if images determine the temperature."""
    reason = "all 58 validation images are classified correctly, which allows any temperature"
    unfitted = TemperatureFit(temperature=1, state="not fitted", images=58, reason=reason)
    for calibration in (unfitted, None):
        card = _card(_description(calibration=calibration))
        assert "with a probability for each class" in card
        assert "It is not known whether its probabilities are calibrated" in card
    assert reason in _card(_description(calibration=unfitted))
    off = FITTED.model_copy(update={"off": "on 300 test images, 'c' has a mean probability of 33%"})
    card = _card(_description(calibration=off))
    assert "with a probability for each class" in card
    assert "Its probabilities are not calibrated" in card
    assert "'c' has a mean probability of 33%" in card
    assert "with a calibrated probability" in _card(_description())
