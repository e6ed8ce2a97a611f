"""`patchline plugins new` says what it wrote and what to do next."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchline.pipeline.plugin_system.plugin_loader import KINDS
from tests.made.servers import Command

FLAGS = {
    "patch_embedding": "run --model.patch-embedding.name mine",
    "data_source": "run --data.source mine --data.path labels.csv",
    "model": "run --model.name mine",
    "store": "run --workspace mine://team",
    "tool": "mine .",
}


def test_files_and_next_commands_are_told(run_here: Command, tmp_path: Path) -> None:
    """`--json` has the files that exist; for people, a place with a space is quoted."""
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        answer = run_here.json("plugins", "new", kind, "mine", "--into", kind)
        folder = f"{kind}/patchline-mine"
        assert (answer["kind"], answer["name"], answer["folder"]) == (kind, "mine", folder)
        files = {file for file in (tmp_path / folder).rglob("*") if file.is_file()}
        assert {tmp_path / folder / file for file in answer["files"]} == files
        assert answer["next"] == [
            f"pip install -e {folder}",
            f"patchline plugins check {kind} mine",
            f"patchline {FLAGS.get(kind, f'run --{kind}.name mine')}",
            f"python -m pytest {folder}",
        ]
    (tmp_path / "my plugins").mkdir()
    out = run_here.out("plugins", "new", "patch_embedding", "my_stem", "--into", "my plugins")
    assert "  tests/" in out
    assert "  pip install -e 'my plugins/patchline-my-stem'\n" in out


def test_images_lie_in_a_new_store(
    run_here: Command, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file alone is enough, for the images and for a workspace."""
    monkeypatch.setenv("SHARED_DISK", str(tmp_path / "disk"))
    shutil.copytree(photos, tmp_path / "disk/photos")
    written = tmp_path / run_here.json("plugins", "new", "store", "hub")["folder"]
    shutil.copy(written / "patchline_hub/plugin.py", tmp_path / "hub.py")
    own = ("--plugin", "hub.py", "--workspace", "hub://team")
    found = run_here.json("data", "inspect", "hub://photos", *own)
    assert found["images"] == 60
    assert list((tmp_path / "disk/team").rglob("patchline.json"))
