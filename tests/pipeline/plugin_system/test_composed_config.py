"""The settings of the command line, composed from the chosen plugins' own."""

from __future__ import annotations

from typing import Any

import pytest

from patchline.pipeline.plugin_system.composed_config import compose_config

_NULLS: list[tuple[str, str]] = [
    ("optimizer", "gradient_clip"),
    ("training", "time_limit"),
    ("data", "image_size"),
    ("model", "layer_scale"),
    ("model", "init"),
]


@pytest.mark.parametrize(("section", "key"), _NULLS, ids=lambda each: each)
def test_null_is_read_as_none(section: str, key: str) -> None:
    """As in YAML, and it counts as given: it overrides the file."""
    flags: Any = compose_config([], {}).model_validate({section: {key: "null"}})
    assert flags.model_dump(exclude_unset=True) == {section: {key: None}}
