"""`patchline settings`: every setting by name, and by what it has to do with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patchline.pipeline.config import RunConfig, flatten_settings
from patchline.pipeline.plugin_system.known_settings import (
    Setting,
    search_settings,
    settings_of_runs,
)
from tests.made.servers import Command as RunHere


@pytest.fixture(scope="module")
def known() -> list[Setting]:
    """Return all settings, as the command prints them as JSON."""
    from tests.conftest import patchline_here

    listed = json.loads(patchline_here("settings --json", cwd=Path()).out)["settings"]
    return [Setting.model_validate(each) for each in listed]


def test_all_settings_of_a_run_and_of_plugins_are_listed(known: list[Setting]) -> None:
    """With the default and the page that says most about it."""
    names = {each.name: each for each in known if not each.plugins and "run" in each.commands}
    written = flatten_settings(RunConfig().model_dump(mode="json", exclude={"record", "preset"}))
    free = {"data.options", "promotion.minimum", "promotion.maximum"}
    assert set(written) - set(names) <= free
    assert names["training.batch_size"].flag == "--training.batch-size"
    assert names["data.validation_fraction"].default == "0.15"
    assert names["training.teacher"].docs == "docs/how_to/teach.md"
    plugins = {(plugin, each.name) for each in known for plugin in each.plugins}
    assert ("patch_embedding linear", "model.patch_embedding.patch_size") in plugins
    assert ("data_source table", "data.label_column") in plugins
    [depth] = [each for each in known if each.name == "model.depth"]
    assert {"model vit", "model rope_vit", "model cct"} <= {*depth.plugins}
    [allowed] = [each for each in known if each.name == "tls_key"]
    assert allowed.commands == ("label", "serve")
    assert {"sweep.trials", "port", "work_pool"} <= {each.name for each in known}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("learning rate", "optimizer.learning_rate"),
        ("rare classes", "training.class_balance"),
        ("patients", "data.group_pattern"),
        ("distillation", "training.teacher"),
        ("training.batch-size", "training.batch_size"),
        ("mirrored", "data.mirror_symmetric"),
        ("corrupted", "evaluation.corruptions"),
    ],
)
def test_a_setting_is_found_by_what_it_has_to_do_with(
    known: list[Setting], words: str, name: str
) -> None:
    """It is among the first three."""
    assert name in [each.name for each in search_settings(known, words.split())[:3]]


def test_words_that_no_setting_has_find_nothing(known: list[Setting], run_here: RunHere) -> None:
    """The command says so, and how to ask; of several words, which one."""
    assert search_settings(known, ["xylophone"]) == []
    assert "No setting has to do with these words." in run_here.out("settings xylophone")
    code, _, err = run_here("settings learning raet")
    assert (code, err) == (0, "No setting has to do with 'raet'. Check the spelling.\n")


def test_the_settings_fit_into_a_head(known: list[Setting]) -> None:
    """What one more would do is decided by the program, or takes the place of another."""
    assert len([*settings_of_runs()]) <= 90
    assert len(known) <= 340
