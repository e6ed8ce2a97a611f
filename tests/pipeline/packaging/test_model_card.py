"""The model card tells what is known, shows every class name as it is, and names no folder."""

from __future__ import annotations

import re
from typing import Any

import pytest

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit
from patchline.pipeline.models.model_description import ModelDescription, PluginRecord
from patchline.pipeline.packaging.model_card import CardFacts, model_card
from patchline.pipeline.templates import escaped
from tests.pipeline.conftest import image_spec

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
