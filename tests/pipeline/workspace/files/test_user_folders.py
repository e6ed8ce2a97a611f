"""A path that begins with an unknown user is refused with its setting, wherever it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.config_files import validated
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.initial_weights.recipe import is_file


def test_an_unknown_user_is_named_with_the_setting(photos: Path, tmp_path: Path) -> None:
    """Of the data, of the table of excluded files, and of the initial weights."""
    rule = "there is no user 'no-such-user'. Check the path"
    with pytest.raises(ConfigError, match=f"data.path is ~no-such-user/photos, but {rule}"):
        ingest(validated({"data": {"path": "~no-such-user/photos"}}), tmp_path)
    table = {"path": str(photos), "exclude": "~no-such-user/findings.csv"}
    with pytest.raises(ConfigError, match=f"data.exclude is .*, but {rule}"):
        ingest(validated({"data": table}), tmp_path)
    with pytest.raises(ConfigError, match=f"model.init is .*, but {rule}"):
        is_file("~no-such-user/vit.safetensors")
