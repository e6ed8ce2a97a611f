"""`patchline plugins list`: one line a plugin, whatever state the plugin is in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patchline.flows.command_line import run_command_line
from patchline.pipeline.plugin_system.plugin_loader import KINDS
from tests.patience import patient

Output = pytest.CaptureFixture[str]
MODULE = '"""A guest of the tests."""\n\nraise RuntimeError("a listing runs no plugin")\n'
_LISTING = """
import json, sys
from patchline.flows.command_line import run_command_line
code = run_command_line(["plugins", "list", "--json"])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which distributions can be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def _install(site: Path, distribution: str, kind: str, names: list[str], module: str) -> None:
    """Install a distribution whose entry points all lead to one module."""
    info = site / f"{distribution}-2.5.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.5\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    points = "".join(f"{name} = {module}:plugin\n" for name in names)
    (info / "entry_points.txt").write_text(f"[patchline.{kind}s]\n{points}", encoding="utf-8")


def _listed(output: Output) -> list[dict[str, Any]]:
    assert run_command_line(["plugins", "list", "--json"]) == 0
    answer = json.loads(output.readouterr().out)
    assert set(answer) == {"plugins"}
    plugins: list[dict[str, Any]] = answer["plugins"]
    return plugins


def test_the_text_has_a_line_for_each_plugin_under_its_kind(capsys: Output) -> None:
    """Kinds are headings, names stand below in alphabetical order, with owner and summary."""
    plugins = _listed(capsys)
    keys = {"kind", "name", "distribution", "version", "summary", "error"}
    assert all(set(plugin) == keys and plugin["error"] is None for plugin in plugins)
    assert {"vit", "linear", "image_folder", "light"} <= {plugin["name"] for plugin in plugins}
    assert run_command_line(["plugins", "list"]) == 0
    text = capsys.readouterr().out
    blocks = [block.splitlines() for block in text.strip("\n").split("\n\n")]
    assert [block[0] for block in blocks] == list(KINDS)
    for heading, *lines in blocks:
        expected = [plugin for plugin in plugins if plugin["kind"] == heading]
        assert [line.split()[0] for line in lines] == sorted(p["name"] for p in expected)
        for line, plugin in zip(lines, expected, strict=True):
            assert line.split()[1:3] == [plugin["distribution"], plugin["version"]]
            assert line.endswith(plugin["summary"])
            assert plugin["summary"]


def test_a_name_that_is_taken_twice_is_marked(site: Path, capsys: Output) -> None:
    """Both owners of a name are listed with the reason why neither can be used; others are not."""
    (site / "guest_light.py").write_text(MODULE, encoding="utf-8")
    _install(site, "guests", "augmentation", ["light", "dark"], "guest_light")
    plugins = _listed(capsys)
    errors = {(p["distribution"], p["name"]): p["error"] for p in plugins if p["error"]}
    reason = "its name is taken by guests and patchline"
    assert errors == {("guests", "light"): reason, ("patchline", "light"): reason}
    assert run_command_line(["plugins", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(f"cannot be used: {reason}" in line for line in lines) == 2
    [dark] = [line for line in lines if line.split()[:1] == ["dark"]]
    assert dark.split()[1:] == ["guests", "2.5", "A", "guest", "of", "the", "tests"]
    assert run_command_line(["plugins", "show", "augmentation", "light"]) == 2
    refusal = capsys.readouterr().err
    assert "taken by guests and patchline" in refusal
    assert "Uninstall one of them" in refusal


def test_the_same_name_in_two_kinds_is_not_marked(site: Path, capsys: Output) -> None:
    """A model `cct` and an embedding `cct` ship together; a third kind may use the name too."""
    (site / "guest_cct.py").write_text(MODULE, encoding="utf-8")
    _install(site, "guests", "augmentation", ["cct"], "guest_cct")
    plugins = _listed(capsys)
    assert [p["kind"] for p in plugins if p["name"] == "cct"] == [
        "model",
        "patch_embedding",
        "augmentation",
    ]
    assert not [p for p in plugins if p["error"]]


def test_a_module_that_is_missing_is_marked(site: Path, capsys: Output) -> None:
    """An entry point that leads nowhere is listed with the reason."""
    _install(site, "guests", "model", ["lost"], "no_such_module")
    [lost] = [p for p in _listed(capsys) if p["name"] == "lost"]
    assert (lost["summary"], lost["error"]) == ("", "module no_such_module does not exist")


def test_many_more_plugins_change_nothing_about_what_is_imported(tmp_path: Path) -> None:
    """With 200 more entries the same modules are imported, and all of them are listed."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "crowd.py").write_text(MODULE, encoding="utf-8")
    names = [f"guest_{number:03d}" for number in range(100)]
    for kind in ("model", "patch_embedding"):
        _install(site, f"crowd_{kind}", kind, names, "crowd")
    answers = []
    for path in ("", str(site)):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys\nsys.path += [{path!r}][:{bool(path)}]{_LISTING}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=patient(120),
        )
        code, modules = json.loads(done.stderr)
        assert code == 0
        answers.append((json.loads(done.stdout)["plugins"], modules))
    (few, modules_before), (many, modules_after) = answers
    assert len(many) == len(few) + 200
    assert modules_after == modules_before
    assert "crowd" not in modules_after
    assert "torch" not in modules_after
    assert not [plugin for plugin in many if plugin["error"]]
