"""The command line's own promises: help, lists, JSON, plugins from a file."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.conftest import patchline, patchline_here
from tests.structure.pages import ROOT


def test_help_lists_the_commands(tmp_path: Path) -> None:
    """`--help` names what there is."""
    shown = patchline("--help", cwd=tmp_path)
    assert shown.code == 0
    for command in (
        "run", "plugins", "predict", "evaluate", "explain", "models", "promote", "rollback",
        "up", "down", "schedule", "data", "approve", "reject", "notify", "export",
        "sweep", "monitor", "label",
    ):  # fmt: skip
        assert f"│ {command}" in shown.out


def test_run_help_holds_the_settings_of_the_chosen_plugins(tmp_path: Path) -> None:
    """Every setting has its help text, plugins' included; what only runs record is left out."""
    shown = patchline_here("run", "--help", cwd=tmp_path, env={"COLUMNS": "250"}).out
    for flag in ("--model.depth", "--model.patch-embedding.patch-size", "--training.time-limit"):
        assert flag in shown
    assert "Side of a patch in pixels" in shown
    assert "--record" not in shown


def test_the_schema_describes_every_setting(tmp_path: Path) -> None:
    """`run --schema` prints a JSON schema with descriptions, plugin settings included."""
    schema = patchline_here("run", "--schema", cwd=tmp_path).json
    assert schema["additionalProperties"] is False
    for section in schema["$defs"].values():
        for name, setting in section.get("properties", {}).items():
            assert setting.get("description"), name


def test_dry_run_prints_the_resolved_settings_and_trains_nothing(
    tmp_path: Path, photos: Path
) -> None:
    """`run --dry-run` reads the data, fills in what depends on it, and opens no run."""
    arguments = ("run", photos, "--dry-run", "--preset", "none", "--training.epochs", "3")
    done = patchline_here(*arguments, cwd=tmp_path)
    settings = yaml.safe_load(done.out)
    assert settings["name"] == "photos"
    assert settings["data"]["image_size"] == 32
    assert settings["data"]["channels"] == 3
    assert settings["model"]["patch_embedding"]["patch_size"] == 4
    assert (
        settings["augmentation"]["horizontal_flip"] is False
    )  # rising stripes, mirrored, would be falling ones
    assert settings["training"]["epochs"] == 3
    assert not (tmp_path / "mlflow.db").exists()


def test_debug_shows_the_trace(tmp_path: Path) -> None:
    """`--debug` adds the trace to the sentence."""
    done = patchline_here("run", "no/such", "--debug", cwd=tmp_path)
    assert done.code == 2
    assert "Traceback" in done.err
    assert "DataError" in done.err


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


def test_a_plugin_file_that_is_missing_on_a_rerun_is_asked_for(tmp_path: Path) -> None:
    """A name that no installed plugin has is answered with `--plugin` too."""
    done = patchline_here("run", "--model.patch-embedding.name", "thick", cwd=tmp_path)
    assert done.code == 2
    assert "--plugin FILE.py" in done.err


def test_version_is_the_distributions(tmp_path: Path) -> None:
    """`--version` prints one line."""
    assert patchline("--version", cwd=tmp_path).out.strip() == "0.1.0"


def test_json_answers_are_one_object(tmp_path: Path) -> None:
    """An empty registry is an empty list, not an error and not a sentence."""
    shown = patchline_here("models", "--json", cwd=tmp_path)
    assert (shown.code, json.loads(shown.out)) == (0, {"models": []})
