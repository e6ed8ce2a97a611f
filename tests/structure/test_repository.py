"""What the repository offers to its public: the workflow, the issue forms, the map of its rooms."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def _loaded(file: Path) -> Any:
    return yaml.safe_load(file.read_text("utf-8"))


def test_the_workflow_runs_what_a_change_must_pass_on_supported_versions_of_python() -> None:
    """It calls `.ci/run`, on the oldest version of Python that the package accepts."""
    jobs = _loaded(ROOT / ".github/workflows/tests.yml")["jobs"]
    assert any(step.get("run") == ".ci/run" for step in jobs["tests"]["steps"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    assert oldest in jobs["tests"]["strategy"]["matrix"]["python"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_has_what_its_site_demands(form: Path) -> None:
    """A name, a description, and fields with unique ids and a label each."""
    content = _loaded(form)
    assert content["name"]
    assert content["description"]
    ids = [field["id"] for field in content["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in content["body"])


def test_the_guide_for_contributors_names_targets_that_exist() -> None:
    """Each `make` target and each linked file is there."""
    guide = (ROOT / ".github/CONTRIBUTING.md").read_text("utf-8")
    targets = set(re.findall(r"`?make ([a-z-]+)", guide))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    for link in re.findall(r"\]\(([^)#]+)\)", guide):
        assert (ROOT / ".github" / link).exists(), link


def test_the_readme_says_what_lives_in_each_room() -> None:
    """The folders below the top level are those that the README lists, and no other."""
    tree = (ROOT / "README.md").read_text("utf-8").split("## Where everything lives")[1]
    listed: dict[str, set[str]] = {}
    for top, entries in re.findall(r"^(\w+)/ .*\n((?: +\w.*\n)+)", tree, re.MULTILINE):
        rooms = listed.setdefault(top, set())
        room = ""
        for indent, name in re.findall(r"^( +)(\w+)/ ", entries, re.MULTILINE):
            room = name if len(indent) == 2 else room
            rooms.add(name if name == room else f"{room}/{name}")
    for top, level in (("pipeline", "**"), ("flows", "*")):
        there = {
            room.parent.relative_to(ROOT / top)
            for room in (ROOT / top).glob(f"{level}/__init__.py")
        }
        assert listed[top] == {room.as_posix() for room in there if len(room.parts) in (1, 2)}
