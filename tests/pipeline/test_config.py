"""The run's config: frozen, strict, and the same after every round trip."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from patchline.pipeline.config import RunConfig, flatten_settings
from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.training.config import OptimizerConfig, duration_seconds
from patchline.pipeline.training.record import RunRecord

configs = st.builds(
    RunConfig,
    data=st.builds(
        DataConfig, path=st.none() | st.text(max_size=20), test_fraction=st.floats(0.01, 0.4)
    ),
    model=st.just(
        {"name": "vit", "depth": 3, "patch_embedding": {"name": "conv", "patch_size": 4}}
    ),
    optimizer=st.builds(OptimizerConfig, learning_rate=st.floats(1e-9, 1)),
    record=st.builds(RunRecord, step_plan=st.none() | st.just(((0, 0.0, 80), (7, 0.25, 90)))),
)


@settings(max_examples=15)
@given(configs)
def test_yaml_gives_back_the_config(config: RunConfig) -> None:
    """A config written as YAML or JSON and read again is equal."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    assert RunConfig.model_validate(yaml.safe_load(text)) == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("name", "is_taken"),
    [
        *((name, True) for name in ("a", "7", "v1.2_x-y", "x" * 100)),
        *((name, False) for name in ("", "-a", ".a", "a b", "a/b", "ü", "x" * 101, "a\n")),
    ],
)
def test_a_name_is_one_that_folders_and_addresses_take(name: str, *, is_taken: bool) -> None:
    """Letters, digits, dots, dashes and underscores make a name."""
    with contextlib.nullcontext() if is_taken else pytest.raises(ValidationError):
        assert RunConfig(name=name).name == name


def test_durations_are_seconds_minutes_or_hours() -> None:
    """A duration is a number with a unit; without one, of zero, or with more it is refused."""
    durations = {"90s": 90, "20m": 1200, "2h": 7200, "0.5m": 30}
    assert {text: duration_seconds(text) for text in durations} == durations
    for text in ("", "90", "0s", "-5m", "5 m", "5d", "1e3s", "5m\n"):
        with pytest.raises(ValueError, match="90s, 20m or 2h"):
            duration_seconds(text)


def test_nested_settings_are_read_by_dotted_keys() -> None:
    """An empty section is a value; MLflow params hold all values as text."""
    settings = {"data": {"path": "photos", "options": {}}, "seed": None}
    assert flatten_settings(settings) == {"data.path": "photos", "data.options": {}, "seed": None}
    flat = RunConfig().flat()
    assert (flat["training.epochs"], flat["training.time_limit"]) == ("", "")
    assert not any(key.startswith("preset") for key in flat)
