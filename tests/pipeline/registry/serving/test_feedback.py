"""Feedback to a served model is a row of the table that `patchline label` writes, and an image."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.registry.serving.interfaces.feedback_api import open_table
from patchline.pipeline.registry.serving.traffic_recorder import PARTS
from patchline.pipeline.registry.serving.traffic_recorder import rows_of as recorded
from tests.pipeline.registry.serving.served import Registry, Serving, png, serving
from tests.plugins.tools.label.labelled import rows_of


def test_a_corrected_image_is_kept_with_its_label(registry: Registry, server: Serving) -> None:
    """Off by default; wrong labels and images that cannot be read leave nothing.

    The image has been answered before, so it is no traffic.
    """
    assert server.ask("POST", "/feedback?label=rose", png(1)).status == HTTPStatus.NOT_FOUND
    table = registry.folder / "corrections" / "labels.csv"
    table.parent.mkdir(mode=0o755)
    traffic = registry.folder / "traffic"
    with serving(registry.folder, "--feedback", str(table), "--record", str(traffic)) as keeping:
        refused = keeping.ask("POST", "/feedback?label=rose&by=ada", png(1))
        assert refused.status == HTTPStatus.BAD_REQUEST
        assert "no class 'rose' (down, rising, up)" in refused.json["error"]
        kept = keeping.ask("POST", "/feedback?label=rose&by=ada&new_class=true", png(1))
        assert kept.status == HTTPStatus.OK, kept.body
        assert kept.json["new_classes"] == ["rose"]
        image = table.parent / kept.json["path"]
        assert image.read_bytes() == png(1)
        assert image.stat().st_mode & 0o777 == 0o600
        [row] = rows_of(table)
        assert (row["label"], row["labeled_by"], row["source"]) == ("rose", "ada", "feedback")
        assert row["suggestion"] == keeping.predict(png(1)).json["label"]
        for wrong in ("", "?label=up&label=down", "?none=true", "?label=up&new_class=x"):
            assert keeping.ask("POST", f"/feedback{wrong}", png(2)).status == HTTPStatus.BAD_REQUEST
        broken = keeping.ask("POST", "/feedback?label=rose", b"no image")
        assert broken.status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert len(rows_of(table)) == 1
    answered = [row for part in traffic.glob(PARTS) for row in recorded(part)]
    assert [row["digest"] for row in answered] == [hashlib.sha256(png(1)).hexdigest()]


def test_images_go_into_no_folder_of_others(tmp_path: Path) -> None:
    """Neither through a link, nor where others may write."""
    table = tmp_path / "labels.csv"
    (tmp_path / "feedback").symlink_to("/")
    with pytest.raises(ConfigError, match="feedback is a link to /, and --feedback follows none"):
        open_table(table, several=False, classes=["a"])
    (tmp_path / "feedback").unlink()
    (tmp_path / "feedback").mkdir()
    (tmp_path / "feedback").chmod(0o777)
    with pytest.raises(ConfigError, match=r"every user of this machine .* \(mode 0777\)"):
        open_table(table, several=False, classes=["a"])
    assert [each.name for each in tmp_path.iterdir()] == ["feedback"]
