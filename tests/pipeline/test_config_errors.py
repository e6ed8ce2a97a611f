"""What is wrong with a setting is one sentence: the value, the rule, the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.errors import ConfigError


def sentence_of(settings: dict[str, Any]) -> str:
    """Return what the user reads about these settings."""
    with pytest.raises(ConfigError) as raised:
        validate_config(settings)
    return str(raised.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"training": {"epochs": 0}},
            "training.epochs is 0, but must be at least 1. Choose a value from 1 to 100000.",
        ),
        (
            {"optimizer": {"learning_rate": float("inf")}},
            (
                "optimizer.learning_rate is inf, but must be a finite number. Choose a value "
                "above 0 and at most 1."
            ),
        ),
        (
            {"data": {"validation_fraction": 0}},
            (
                "data.validation_fraction is 0, but must be greater than 0.0. Choose a value above "
                "0 and below 0.9."
            ),
        ),
        (
            {"data": {"resize": "stretch"}},
            "data.resize is 'stretch', but must be one of 'crop', 'squash' or 'pad'.",
        ),
        (
            {"training": {"final_model": "ensemble"}},
            (
                "training.final_model is ensemble, but an ensemble needs folds. Set "
                "training.folds, such as 5, or leave out training.final_model."
            ),
        ),
        (
            {"name": "my flowers"},
            (
                "name is 'my flowers', but must be 1 to 100 letters, digits, dots, dashes or "
                "underscores, the first a letter or digit."
            ),
        ),
        (
            {"data": {"validation_fraction": 0.6, "test_fraction": 0.6}},
            (
                "data.validation_fraction and data.test_fraction add up to 1.20, but at most 0.9 "
                "is allowed. Make one of them smaller."
            ),
        ),
    ],
)
def test_bad_value_is_answered_with_value_rule_and_range(
    settings: dict[str, Any], sentence: str
) -> None:
    """A bad value is repeated with its setting, the rule and, for a number, the range."""
    assert sentence_of(settings) == sentence


@pytest.mark.parametrize(
    ("settings", "wrong", "meant"),
    [
        ({"training": {"epoch": 3}}, "training.epoch", "training.epochs"),
        ({"model": {"name": "vit", "dept": 3}}, "model.dept", "model.depth"),
        (
            {"data": {"source": "image_folder", "options": {"mirror": True}}},
            "data.options.mirror",
            "data.options.mirror_symmetric",
        ),
    ],
)
def test_misspelt_setting_is_answered_with_the_nearest(
    settings: dict[str, Any], wrong: str, meant: str
) -> None:
    """A setting that does not exist is named, with the one that was probably meant."""
    assert sentence_of(settings) == f"There is no setting {wrong}. Did you mean {meant}?"


def test_setting_like_no_other_is_answered_with_all() -> None:
    """When nothing is near, the settings that exist there are listed."""
    sentence = sentence_of({"optimizer": {"zzz": 1}})
    assert "There is no setting optimizer.zzz. Available settings: optimizer.beta1, " in sentence
    assert sentence.endswith("optimizer.weight_decay.")


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        ([[3, 0.0, 90]], "must have a knot (step, progress, end) at step 0"),
        ([[0, 0.0, 90], [5, 0.1, 90], [5, 0.2, 90]], "knot at step 5 after one from step 5 to 90"),
        ([[0, 0.0, 90], [5, 0.1, 4]], "ends at 4, before its last knot at step 5"),
        ([[0, 0.5, 90], [5, 0.1, 90]], "rises from 0 to 1"),
    ],
)
def test_a_step_plan_by_which_no_training_can_go_is_refused(plan: list[Any], rule: str) -> None:
    """Nothing of it reaches the training: the setting is named, with the rule that it breaks."""
    sentence = sentence_of({"record": {"step_plan": plan}})
    assert "record.step_plan" in sentence
    assert rule in sentence
    assert "Choose" not in sentence.partition(rule)[0]
