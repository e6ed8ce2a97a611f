"""A dry run finds what is wrong as early as it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.flows.training.dry_run import dry_run
from patchline.pipeline.config_files import requested
from patchline.pipeline.errors import ConfigError


def test_unsuitable_weights_are_found_before_an_image_is_opened(
    photos: Path, tmp_path: Path
) -> None:
    """Reading a large folder takes minutes, finding a file of weights seconds."""
    config = requested(str(photos), flags={"model": {"init": "gone.safetensors"}})
    workspace = tmp_path / "work"
    with pytest.raises(ConfigError, match=r"gone\.safetensors does not exist"):
        dry_run(config, workspace)
    assert not list(workspace.rglob("*.parquet"))
