"""`patchline plugins check` runs a plugin's conformance checks and prints the outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.flows.command_line import run_command_line
from patchline.pipeline.plugin_system import plugin_loader
from patchline.plugin_checks import checks_of
from tests.conftest import patchline, patchline_here

_FAULTY = '''
"""A data source of one class."""

from pathlib import Path

from PIL import Image

from patchline.plugin_api import (
    DataError, DataSourcePlugin, ImageListing, ListedImage, PluginConfig
)


class OneClassConfig(PluginConfig):
    """One setting."""

    label: str = "mark"
    """The one class."""


class OneClass:
    def __init__(self, config, context):
        self.config, self.path = config, context.path

    def list_images(self):
        root = Path(self.path)
        if not root.is_dir():
            raise DataError(f"There is no folder {root}. Check the path.")
        images = [ListedImage(file.name, self.config.label) for file in sorted(root.iterdir())]
        return ImageListing(name="marks", root=root, images=images)


def example(folder):
    Image.new("L", (8, 8)).save(folder / "a.png")
    return str(folder)


plugin = DataSourcePlugin(
    summary="One class", paper="", config_class=OneClassConfig, build=OneClass, example=example
)
'''


def _names(kind: plugin_loader.Kind, name: str) -> list[str]:
    return [check.name for check in checks_of(plugin_loader.load(kind, name))]


def test_a_plugin_that_keeps_its_contract(tmp_path: Path) -> None:
    """Each check is one line with its outcome and what it means; the exit code is 0."""
    done = patchline_here("plugins", "check", "image_folder", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    first, *lines, last = [line for line in done.out.splitlines() if line]
    assert first == "data_source image_folder (patchline 0.1.0)"
    assert [line.split()[:2] for line in lines] == [
        [name, "passed"] for name in _names("data_source", "image_folder")
    ]
    assert lines[0].endswith("The summary is one line.")
    assert last == f"{len(lines)} passed, 0 excepted, 0 failed"
    assert not list(tmp_path.iterdir())


def test_a_plugin_from_a_file_that_breaks_a_rule(tmp_path: Path) -> None:
    """The failed check says why, the others are run all the same, and the exit code is 1."""
    (tmp_path / "one_class.py").write_text(_FAULTY, encoding="utf-8")
    done = patchline_here("plugins", "check", "one_class", "--plugin", "one_class.py", cwd=tmp_path)
    assert (done.code, done.err) == (1, "")
    [failed] = [line for line in done.out.splitlines() if " failed " in line]
    assert failed.split()[0] == "lists_labelled_images"
    assert failed.endswith("The example has the classes ['mark']. At least two are required.")
    assert done.out.rstrip().endswith("9 passed, 0 excepted, 1 failed")


def test_settings_of_the_plugin_are_flags(tmp_path: Path) -> None:
    """The checks run with the settings that the flags set."""
    (tmp_path / "one_class.py").write_text(_FAULTY, encoding="utf-8")
    done = patchline_here(
        *("plugins", "check", "data_source", "one_class", "--plugin", "one_class.py"),
        *("--data.options.label", "spot"),
        cwd=tmp_path,
    )
    assert done.code == 1
    assert "The example has the classes ['spot']." in done.out


def test_json_is_one_object_with_every_check(tmp_path: Path) -> None:
    """`--json` answers with kind, name, outcome and each check; the lines go to standard error."""
    (tmp_path / "one_class.py").write_text(_FAULTY, encoding="utf-8")
    done = patchline_here(
        "plugins", "check", "one_class", "--plugin", "one_class.py", "--json", cwd=tmp_path
    )
    answer = done.json
    assert done.code == 1
    assert set(answer) == {"kind", "name", "passed", "checks"}
    assert (answer["kind"], answer["name"]) == ("data_source", "one_class")
    assert answer["passed"] is False
    assert [check["name"] for check in answer["checks"]] == _names("data_source", "image_folder")
    for check in answer["checks"]:
        assert set(check) == {"name", "status", "seconds", "message"}
        faulty = check["name"] == "lists_labelled_images"
        assert check["status"] == ("failed" if faulty else "passed")
        assert bool(check["message"]) is faulty
        assert check["seconds"] >= 0
        assert check["name"] in done.err


def test_a_declared_exception_is_shown_with_its_reason(tmp_path: Path) -> None:
    """What a plugin cannot do by design is no failure."""
    done = patchline_here("plugins", "check", "none", "--json", cwd=tmp_path)
    assert done.code == 0
    assert done.json["passed"] is True
    [excepted] = [check for check in done.json["checks"] if check["status"] == "excepted"]
    assert excepted["name"] == "changes_something"
    assert excepted["message"] == "it is meant to change nothing"
    assert "expected: it is meant to change nothing" in done.err
    assert "9 passed, 1 excepted, 0 failed" in done.err


def test_a_patch_embedding_with_a_setting_keeps_its_contract(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A network's checks are run with the settings that are given."""
    flag = "--model.patch-embedding.norm"
    arguments = ["plugins", "check", "patch_embedding", "conv_stem", flag, "group"]
    assert run_command_line(arguments) == 0
    out = capsys.readouterr().out
    assert "patch_embedding conv_stem (patchline 0.1.0)" in out
    assert "images_do_not_see_each_other" in out
    assert ", 0 excepted, 0 failed" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Name one plugin: [KIND] NAME.", "`patchline plugins list`"]),
        (["model", "vit", "linear"], ["Name one plugin: [KIND] NAME."]),
        (["cct"], ["'cct' is the name of a model and a patch_embedding.", "Add the kind before"]),
        (["lineer"], ["There is no plugin 'lineer'.", "Did you mean 'linear'?", "image_folder"]),
        (["modell", "vit"], ["There is no plugin kind 'modell'.", "Did you mean model?"]),
        (["model", "linear"], ["There is no model plugin 'linear'.", "Installed: cct,"]),
        (["model", "vti"], ["There is no model plugin 'vti'.", "Did you mean 'vit'?"]),
        (
            ["conv_stem", "--model.patch-embedding.norm", "layer"],
            ["model.patch_embedding.norm is 'layer'", "'batch' or 'group'"],
        ),
        (
            ["linear", "--model.patch-embedding.patch-sise", "4"],
            ["--model.patch-embedding.patch-sise", "--model.patch-embedding.patch-size?"],
        ),
        (
            ["linear", "--model.patch-embedding.name", "conv"],
            ["model.patch_embedding.name is conv, but the command names linear."],
        ),
        (["none", "--training.epochs", "3"], ["--training.epochs"]),
        (["mine", "--plugin", "mine.py"], ["mine.py does not exist"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_answered_with_a_sentence(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one sentence on standard error, nothing on standard output."""
    assert run_command_line(["plugins", "check", *arguments]) == 2
    out, err = capsys.readouterr()
    [sentence] = err.splitlines()
    assert sentence.startswith("Error: ")
    assert sentence.endswith((".", "?"))
    for word in words:
        assert word in sentence
    assert not out


def test_a_range_in_an_answer_is_the_plugins_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The rule and the remedy of a refused value agree with each other."""
    flag = "--model.patch-embedding.patch-size"
    assert run_command_line(["plugins", "check", "conv_stem", flag, "0"]) == 2
    sentence = capsys.readouterr().err
    assert "must be at least 2. Choose a value from 2 to 512." in sentence


@pytest.mark.parametrize("value", ["perhaps", "false"])
def test_a_value_that_a_flag_does_not_take_is_not_passed_over(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A switch with a word behind it is refused, for it would be on whatever the word says."""
    flag = "--data.options.mirror-symmetric"
    assert run_command_line(["plugins", "check", "image_folder", flag, value]) == 2
    assert value in capsys.readouterr().err


def test_a_switch_may_stand_in_front_of_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The name is found wherever it stands."""
    flag = "--data.options.no-mirror-symmetric"
    assert run_command_line(["plugins", "check", flag, "image_folder"]) == 0
    assert "data_source image_folder" in capsys.readouterr().out


def test_json_is_one_object_whatever_a_plugin_prints(tmp_path: Path) -> None:
    """Standard output is the command's; what a plugin prints goes to standard error."""
    chatty = _FAULTY.replace("self.config, self.path", "print('hello'); self.config, self.path")
    (tmp_path / "chatty.py").write_text(chatty, encoding="utf-8")
    done = patchline("plugins", "check", "chatty", "--plugin", "chatty.py", "--json", cwd=tmp_path)
    assert done.out.startswith("{")
    assert "hello" in done.err


def test_settings_that_fit_no_image_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A value that the plugin itself refuses is the caller's mistake, and no broken contract."""
    flag = "--model.patch-embedding.patch-size"
    assert run_command_line(["plugins", "check", "linear", flag, "5"]) == 2
    assert "patch_size 5 does not divide" in capsys.readouterr().err


def test_help_without_a_name_says_how_to_name_a_plugin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help asks for no name; with one it has the plugin's own settings."""
    assert run_command_line(["plugins", "check", "--help"]) == 0
    general = capsys.readouterr().out
    assert "[KIND] NAME" in general
    assert "--json" in general
    assert "--model.patch-embedding" not in general
    monkeypatch.setenv("COLUMNS", "250")
    assert run_command_line(["plugins", "check", "conv_stem", "--help"]) == 0
    own = capsys.readouterr().out
    assert "[KIND] NAME" in own
    assert "--model.patch-embedding.norm" in own
    assert "group normalises each image" in own
    assert "--training" not in own
