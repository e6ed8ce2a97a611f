"""The command line's own promises: help, lists, JSON, plugins from a file."""

from __future__ import annotations

from pathlib import Path

from patchline.flows.commands.application import commands
from tests.conftest import patchline, patchline_here
from tests.structure.pages import ROOT


def test_a_plugin_from_a_file_is_listed_and_shown(tmp_path: Path) -> None:
    """`--plugin FILE.py` makes a plugin of the file's name, with settings of its own."""
    file = ("--plugin", ROOT / "examples/my_stem.py")
    listed = patchline_here("plugins", "list", "--json", *file, cwd=tmp_path).json
    assert ("patch_embedding", "my_stem", "Two strided 3x3 convolutions") in {
        (p["kind"], p["name"], p["summary"]) for p in listed["plugins"]
    }
    shown = patchline_here("plugins", "show", "my_stem", "--json", *file, cwd=tmp_path)
    assert shown.json["tokens"] == 56 * 56
    chosen = (*file, "--model.patch-embedding.name", "my_stem")
    unknown = patchline_here("run", *chosen, "--model.patch-embedding.widht", "3", cwd=tmp_path)
    assert unknown.code == 2
    assert "--model.patch-embedding.width" in unknown.err


def test_help_and_version_are_printed_by_a_process(tmp_path: Path) -> None:
    """`--help` names what there is, `--version` is one line.

    An empty registry is an empty list, not an error and not a sentence.
    """
    shown = patchline("--help", cwd=tmp_path)
    assert shown.code == 0
    for command in commands():
        assert f"\n  {command.words.split()[0]} " in shown.out
    assert patchline_here("--version", cwd=tmp_path).out.strip() == "0.1.0"
    assert "No models are registered yet." in patchline_here("models", cwd=tmp_path).out
    models = patchline_here("models", "--json", cwd=tmp_path)
    assert (models.code, models.json) == (0, {"models": []})
