"""The space of a search: defaults from the fields, refusals as in a run, configs of trials."""

from __future__ import annotations

from typing import Any

import pytest

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.plugins.tools.sweep.config import SweepConfig
from patchline.plugins.tools.sweep.space import (
    Choices,
    NumberRange,
    SearchSpace,
    Value,
    parse_dimension,
)


@pytest.fixture(scope="module")
def plan() -> RunConfig:
    """Return the defaults for the built-in digits."""
    return config_files.build_config("digits", preset_name="none")


def test_the_default_space_comes_from_the_fields_of_the_config_and_of_plugins(
    plan: RunConfig,
) -> None:
    """It contains the plan's values, and a plugin's own ranges."""
    space = SearchSpace.of({}, plan)
    assert {"optimizer.learning_rate", "training.mixup", "model.stochastic_depth"} <= set(
        space.dimensions
    )
    assert "optimizer.layer_decay" not in space.dimensions  # without initial weights, no effect
    values = space.plan_values(plan)
    assert values is not None
    assert values["optimizer.learning_rate"] == plan.optimizer.learning_rate
    assert space.config_of(plan, values) == plan


def test_a_default_range_is_widened_to_the_value_of_the_plan(plan: RunConfig) -> None:
    """A plan with a learning rate above the range is still the first trial."""
    fast = config_files.merge_settings(
        plan.model_dump(mode="json"), {"optimizer": {"learning_rate": 0.5}}
    )
    space = SearchSpace.of({}, config_files.validate_config(fast))
    dimension = space.dimensions["optimizer.learning_rate"]
    assert isinstance(dimension, NumberRange)
    assert dimension.high == 0.5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": {"lerning_rate": "1e-4..1e-2"}}, "Did you mean optimizer.learning_rate"),
        ({"model": {"name": "vit,vti"}}, "vti"),
        ({"optimizer": {"learning_rate": "1e-4..5"}}, "at most 1"),
        ({"training": {"precision": "float32,int3"}}, "int3"),
        ({"data": {"image_size": "32,64"}}, "read, split and decoded once"),
        ({"seed": "1..9"}, "luck"),
        ({"model": {"init": "a.pth,b.pth"}}, "same weights"),
        ({"model": {"depth": "1.5..3"}}, "whole number"),
    ],
)
def test_what_a_run_would_refuse_is_refused_before_any_trial(
    plan: RunConfig, given: dict[str, Any], words: str
) -> None:
    """Unknown keys, bad values, and settings that all trials share."""
    with pytest.raises(Exception, match=words):
        SearchSpace.of(given, plan)


def test_a_trial_with_another_plugin_has_its_settings(plan: RunConfig) -> None:
    """Settings of the plugin that was replaced are left out, shared ones are set."""
    given = {"model": {"name": "vit,cct", "depth": "2..6", "qk_norm": "true,false"}}
    space = SearchSpace.of(given, plan)
    values: dict[str, Value] = {"model.name": "cct", "model.depth": 3, "model.qk_norm": True}
    config = space.config_of(plan, values)
    assert config.model.name == "cct"
    assert config.model.settings["depth"] == 3
    assert "qk_norm" not in config.model.settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"storage": "postgresql://ada:secret@host/db"}, "must not hold a password"),
        ({"time_limit": "5"}, "with a unit"),
    ],
)
def test_bad_settings_of_a_search_are_refused(settings: dict[str, Any], words: str) -> None:
    """An address with a password would end up in files."""
    with pytest.raises(ValueError, match=words):
        SweepConfig(**settings)


@pytest.mark.parametrize(
    ("given", "log"),
    [
        ("1e-4..1e-2", True),
        ("1e-4..1e-2 linear", False),
        ({"low": 1e-4, "high": 1e-2}, True),
        ({"low": 1e-4, "high": 1e-2, "scale": "linear"}, False),
        ("-1..1", False),
    ],
)
def test_a_range_is_logarithmic_where_that_is_sensible(given: Any, log: bool) -> None:
    """Positive ends a factor of ten apart, unless the scale is named."""
    dimension = parse_dimension("key", given)
    assert isinstance(dimension, NumberRange)
    assert dimension.log is log


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("a,b,c", ("a", "b", "c")),
        ("true,false", (True, False)),
        ("null,1e-5", (None, 1e-5)),
        ("1,true", (1, True)),
    ],
)
def test_values_are_read_as_in_a_file(given: Any, values: tuple[Any, ...]) -> None:
    """Numbers, truth values and null, each once."""
    dimension = parse_dimension("key", given)
    assert isinstance(dimension, Choices)
    assert [(type(each), each) for each in dimension.values] == [(type(v), v) for v in values]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0.1", "nothing to choose"),
        ("a..b", "no number"),
        ("0..1 log", "must begin above 0"),
        ("1..inf", "no number"),
        ({"low": 1, "high": 2, "step": 1}, "no step"),
        ([[1], [2]], "a group"),
    ],
)
def test_a_bad_range_is_refused_with_the_form(given: Any, words: str) -> None:
    """The sentence names the setting and the problem."""
    with pytest.raises(ConfigError, match=words) as error:
        parse_dimension("optimizer.beta1", given)
    assert "optimizer.beta1" in str(error.value)
