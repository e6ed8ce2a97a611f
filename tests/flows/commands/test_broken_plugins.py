"""A broken plugin that is installed is explained by its own sentence, and hurts nobody else."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from patchline.plugin_api import API_VERSION
from tests.conftest import Finished, patchline, write_photos
from tests.patience import patient

_SOUND = '''"""Eight patches a side."""

import torch
from torch import nn

from patchline.plugin_api import PatchEmbeddingPlugin, PatchTokens, PluginConfig


class GuestConfig(PluginConfig):
    """There is nothing to set."""


class Guest(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        self.grid = (context.height // 8, context.width // 8)
        self.projection = nn.Conv2d(context.channels, context.embed_dim, 8, 8)

    def forward(self, images_BCHW):
        return PatchTokens(self.projection(images_BCHW).flatten(2).transpose(1, 2), self.grid)


plugin = PatchEmbeddingPlugin(
    summary="Eight patches a side", paper="", config_class=GuestConfig, build=Guest
)
'''
_BUILT = "        super().__init__()\n"


@dataclass(frozen=True)
class Broken:
    """A distribution with a broken plugin of its name, and what is said about it."""

    name: str
    source: str | None
    sentence: str
    listed: str | None = None
    """What the list knows without importing it."""


BROKEN = [
    Broken(
        "lacking",
        "import no_such_library\n",
        "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'. Repair or "
        "uninstall guest-lacking.",
    ),
    Broken(
        "raising",
        'raise RuntimeError("not on a Monday")\n',
        "cannot be imported: RuntimeError: not on a Monday. Repair or uninstall guest-raising.",
    ),
    Broken(
        "mistyped",
        "plugin = 3\n",
        "is a int, not a PatchEmbeddingPlugin. Point its entry point at the right object.",
    ),
    Broken(
        "kindred",
        "from patchline.plugins.augmentations.none import plugin\n",
        "is a AugmentationPlugin, not a PatchEmbeddingPlugin. Point its entry point at the right "
        "object.",
    ),
    Broken(
        "dated",
        "from dataclasses import replace\nfrom patchline.plugins.patch_embeddings import linear\n"
        f"plugin = replace(linear.plugin, api_version={API_VERSION + 1})\n",
        f"was written for plugin API {API_VERSION + 1}; this Patchline has {API_VERSION}. Install "
        "a matching version of one of them.",
    ),
    Broken(
        "absent",
        None,
        "cannot be imported: ModuleNotFoundError: No module named 'guest_absent'. Repair or "
        "uninstall guest-absent.",
        listed="module guest_absent does not exist",
    ),
    Broken(
        "garbled",
        "def plugin(:\n",
        "cannot be imported: SyntaxError: invalid syntax (guest_garbled.py, line 1). Repair or "
        "uninstall guest-garbled.",
        listed="SyntaxError: invalid syntax",
    ),
    Broken(
        "hollow",
        "other = 3\n",
        "cannot be imported: AttributeError: module 'guest_hollow' has no attribute 'plugin'. "
        "Repair or uninstall guest-hollow.",
    ),
    Broken(
        "failing",
        _SOUND.replace(_BUILT, _BUILT + '        raise ValueError("no such width")\n'),
        "failed to build: ValueError: no such width. Run `patchline plugins check patch_embedding "
        "failing` and fix the plugin.",
    ),
    Broken(
        "modular",
        _SOUND.replace("build=Guest", "build=lambda *_: 3"),
        "built a int, not a torch.nn.Module. Repair its build.",
    ),
]


def _install(site: Path, distribution: str, entry: str, modules: dict[str, str]) -> None:
    """Lay out an installed distribution with one patch embedding."""
    information = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8"
    )
    (information / "entry_points.txt").write_text(
        f"[patchline.patch_embeddings]\n{entry}\n", encoding="utf-8"
    )
    for name, source in modules.items():
        (site / name).write_text(source, encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of installed distributions: each broken one, a sound one, and two rivals."""
    folder = tmp_path_factory.mktemp("site")
    for broken in BROKEN:
        module = f"guest_{broken.name}"
        modules = {} if broken.source is None else {f"{module}.py": broken.source}
        _install(folder, f"guest-{broken.name}", f"{broken.name} = {module}:plugin", modules)
    _install(folder, "guest-sound", "sound = guest_sound:plugin", {"guest_sound.py": _SOUND})
    for owner in ("first-rival", "second-rival"):
        _install(folder, owner, "wanted = guest_sound:plugin", {})
    return folder


def _patchline(site: Path, *arguments: str, cwd: Path) -> Finished:
    return patchline(*arguments, cwd=cwd, env={"PYTHONPATH": str(site)})


_COMMANDS = [
    ("plugins", "list", "--json"),
    ("plugins", "list"),
    *(("plugins", "show", broken.name) for broken in BROKEN),
    ("plugins", "show", "wanted"),
    ("plugins", "show", "sound", "--json"),
    ("plugins", "show", "image_folder"),
    ("plugins", "check", "failing"),
    ("plugins", "check", "lacking"),
]
_ALL_COMMANDS = """
import contextlib, io, json, sys
from patchline.flows.command_line import run_command_line
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command_line(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
Answers = dict[tuple[str, ...], Finished]


@pytest.fixture(scope="module")
def answers(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Return how all those commands end, in one process where the distributions are installed."""
    folder = tmp_path_factory.mktemp("empty")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _ALL_COMMANDS, json.dumps(_COMMANDS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=patient(300),
    )
    assert not list(folder.iterdir())
    lines = done.stdout.splitlines()
    return {
        command: Finished(*json.loads(line)) for command, line in zip(_COMMANDS, lines, strict=True)
    }


def _refused(done: Finished, sentence: str) -> None:
    """Check for exit code 2, and for the sentence as the only error, without a trace."""
    assert done.code == 2, done.err
    errors = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert errors == [f"Error: {sentence}"]
    assert "Traceback" not in done.err
    assert not done.out


def _beginning(broken: Broken) -> str:
    return f"The patch_embedding plugin '{broken.name}' of guest-{broken.name} 1.0"


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_plugin_that_is_asked_for_is_explained(answers: Answers, broken: Broken) -> None:
    """`plugins show` names plugin, distribution, reason and remedy in one sentence."""
    done = answers["plugins", "show", broken.name]
    _refused(done, f"{_beginning(broken)} {broken.sentence}")


def test_a_name_with_two_owners_is_explained(answers: Answers) -> None:
    """Neither is chosen; both are named."""
    done = answers["plugins", "show", "wanted"]
    sentence = (
        "The patch_embedding name 'wanted' is taken by first-rival and second-rival. Uninstall "
        "one of them, or rename its entry point."
    )
    _refused(done, sentence)


def test_the_list_has_them_all_and_marks_what_it_can_know(answers: Answers) -> None:
    """Listing imports nothing, so it shows what is missing, unreadable or taken twice."""
    done = answers["plugins", "list", "--json"]
    assert (done.code, done.err) == (0, "")
    plugins = done.json["plugins"]
    errors = {p["name"]: p["error"] for p in plugins if p["distribution"] != "patchline"}
    assert set(errors) == {"sound", "wanted", *(broken.name for broken in BROKEN)}
    for broken in BROKEN:
        if broken.listed is None:
            assert errors[broken.name] is None
        else:
            assert broken.listed in errors[broken.name]
    assert "its name is taken by" in errors["wanted"]
    assert "first-rival" in errors["wanted"]
    assert "second-rival" in errors["wanted"]
    assert errors["sound"] is None
    assert all(p["error"] is None for p in plugins if p["distribution"] == "patchline")
    lines = answers["plugins", "list"].out.splitlines()
    assert len([line for line in lines if line.startswith("  ")]) == len(plugins)
    marked = [line.split()[0] for line in lines if "cannot be used: " in line]
    assert sorted(marked) == ["absent", "garbled", "wanted", "wanted"]


def test_a_sound_plugin_works_beside_them(answers: Answers) -> None:
    """Others' faults are not its own, nor those of the built-in ones."""
    shown = answers["plugins", "show", "sound", "--json"].json
    assert (shown["name"], shown["tokens"]) == ("sound", 28 * 28)
    built_in = answers["plugins", "show", "image_folder"]
    assert (built_in.code, built_in.err) == (0, "")


def test_a_plugin_that_fails_to_build_fails_its_checks(answers: Answers) -> None:
    """What can be imported is checked: exit code 1, and each check says why."""
    done = answers["plugins", "check", "failing"]
    assert (done.code, done.err) == (1, "")
    [line] = [line for line in done.out.splitlines() if "returns_patch_tokens" in line]
    assert " failed " in line
    assert line.endswith("It raised ValueError: no such width")


def test_a_plugin_that_cannot_be_imported_is_not_checked(answers: Answers) -> None:
    """There is nothing to check: exit code 2, and the sentence of the loader."""
    [broken] = [broken for broken in BROKEN if broken.name == "lacking"]
    done = answers["plugins", "check", "lacking"]
    _refused(done, f"{_beginning(broken)} {broken.sentence}")


def _unfinished(folder: Path) -> list[str]:
    """Return the names of the runs that the store calls running."""
    database = folder / "mlflow.db"
    if not database.exists():
        return []
    with sqlite3.connect(database) as connection:
        query = "SELECT name FROM runs WHERE status = 'RUNNING'"
        return [name for (name,) in connection.execute(query)]


@pytest.mark.parametrize(
    "name",
    [
        "lacking",
        # runs of 15 seconds each
        pytest.param("failing", marks=pytest.mark.slow),
        pytest.param("modular", marks=pytest.mark.slow),
    ],
)
def test_a_run_with_a_broken_plugin_ends_in_its_sentence(
    site: Path, name: str, tmp_path: Path
) -> None:
    """Exit code 2, no trace, and nothing is left that claims to run."""
    [broken] = [broken for broken in BROKEN if broken.name == name]
    write_photos(tmp_path / "photos", images=8)
    done = _patchline(
        site,
        *(
            "run",
            "photos",
            "--preset",
            "none",
            "--model.patch-embedding.name",
            name,
            "--training.epochs",
            "1",
        ),
        cwd=tmp_path,
    )
    _refused(done, f"{_beginning(broken)} {broken.sentence}")
    assert _unfinished(tmp_path) == []
    if name == "lacking":  # known before anything is begun
        assert [file.name for file in tmp_path.iterdir()] == ["photos"]


@pytest.mark.slow  # a whole run
def test_a_run_with_a_sound_plugin_succeeds_beside_them(site: Path, tmp_path: Path) -> None:
    """A run needs the plugins that it names, and no others."""
    write_photos(tmp_path / "photos", images=8)
    done = _patchline(
        site,
        *(
            "run",
            "photos",
            "--preset",
            "none",
            "--model.patch-embedding.name",
            "sound",
            "--training.epochs",
            "1",
        ),
        "--json",
        cwd=tmp_path,
    )
    assert done.code in (0, 3), done.err
    assert _unfinished(tmp_path) == []
    assert done.json
