"""`patchline plugins check` runs a plugin's conformance checks and prints the outcome."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.plugin_system import plugin_loader
from patchline.plugin_checks import checks_of
from tests.conftest import patchline_here

FAULTY = '''
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
        print('hello')
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


def test_a_plugin_from_a_file_that_breaks_a_rule(tmp_path: Path) -> None:
    """The failed check says why, the others are run all the same, and the exit code is 1.

    Settings are flags. `--json` is one object; the lines, and what a plugin prints, go to standard
    error.
    """
    (tmp_path / "one_class.py").write_text(FAULTY, encoding="utf-8")
    arguments = ("plugins", "check", "one_class", "--plugin", "one_class.py")
    done = patchline_here(*arguments, "--data.options.label", "spot", cwd=tmp_path)
    assert done.code == 1
    assert "data_source one_class (" in done.out
    [failed] = [line for line in done.out.splitlines() if " failed " in line]
    assert failed.split()[0] == "lists_labelled_images"
    assert failed.endswith("The example has the classes ['spot']. At least two are required.")
    assert done.out.rstrip().endswith("9 passed, 0 excepted, 1 failed")
    done = patchline_here(*arguments, "--json", cwd=tmp_path)
    answer = done.json
    assert (done.code, answer["passed"], "hello" in done.err) == (1, False, True)
    assert (answer["kind"], answer["name"]) == ("data_source", "one_class")
    assert [check["name"] for check in answer["checks"]] == _names("data_source", "image_folder")
    for check in answer["checks"]:
        faulty = check["name"] == "lists_labelled_images"
        assert check["status"] == ("failed" if faulty else "passed")
        assert (bool(check["message"]), check["seconds"] >= 0) == (faulty, True)
        assert check["name"] in done.err


def test_a_declared_exception_is_shown_with_its_reason(tmp_path: Path) -> None:
    """What a plugin cannot do by design is no failure."""
    done = patchline_here("plugins", "check", "none", "--json", cwd=tmp_path)
    assert (done.code, done.json["passed"]) == (0, True)
    [excepted] = [check for check in done.json["checks"] if check["status"] == "excepted"]
    assert excepted["name"] == "changes_something"
    assert excepted["message"] == "it is meant to change nothing"
    assert "expected: it is meant to change nothing" in done.err
    assert "9 passed, 1 excepted, 0 failed" in done.err
