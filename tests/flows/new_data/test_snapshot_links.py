"""A watch sees the files that a run reads, behind links too."""

from __future__ import annotations

from pathlib import Path

from flows.new_data import data_watch
from pipeline.plugin_api import SourceContext
from plugins.data_sources.image_folder import ImageFolder, ImageFolderConfig


def test_a_snapshot_sees_what_lies_behind_links_as_a_run_does(tmp_path: Path) -> None:
    """A new image behind a linked class folder, or in a linked folder inside one, is a change."""
    folder = tmp_path / "photos"
    (folder / "down").mkdir(parents=True)
    (folder / "down" / "0.png").touch()
    (tmp_path / "roses" / "old").mkdir(parents=True)
    (folder / "rose").symlink_to(tmp_path / "roses")
    (tmp_path / "more").mkdir()
    (folder / "down" / "more").symlink_to(tmp_path / "more")
    (folder / "down" / "back").symlink_to(folder)
    source = ImageFolder(ImageFolderConfig(), SourceContext(str(folder), tmp_path))
    seen = [data_watch.snapshot(folder)]
    for new in ("roses/1.png", "roses/old/2.png", "more/3.png"):
        (tmp_path / new).touch()
        seen.append(data_watch.snapshot(folder))
        assert len(source.list_images().images) == seen[-1].files
    assert len({snapshot.digest for snapshot in seen}) == 4
    assert [snapshot.files for snapshot in seen] == [1, 2, 3, 4]
