"""`patchline plugins list`, and what becomes of plugins that are broken."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from patchline.pipeline.plugin_system.plugin_loader import KINDS
from patchline.plugin_api import API_VERSION
from tests.conftest import Finished, write_photos
from tests.made.servers import Command

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


BROKEN: list[tuple[str, str | None, str, str | None]] = [
    (
        "lacking",
        "import no_such_library\n",
        (
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'. Repair or "
            "uninstall guest-lacking."
        ),
        None,
    ),
    (
        "mistyped",
        "plugin = 3\n",
        "is a int, not a PatchEmbeddingPlugin. Point its entry point at the right object.",
        None,
    ),
    (
        "dated",
        (
            "from dataclasses import replace\n"
            "from patchline.plugins.patch_embeddings import linear\n"
            f"plugin = replace(linear.plugin, api_version={API_VERSION + 1})\n"
        ),
        (
            f"was written for plugin API {API_VERSION + 1}; this Patchline has {API_VERSION}. "
            "Install a matching version of one of them."
        ),
        None,
    ),
    (
        "absent",
        None,
        (
            "cannot be imported: ModuleNotFoundError: No module named 'guest_absent'. Repair or "
            "uninstall guest-absent."
        ),
        "module guest_absent does not exist",
    ),
    (
        "garbled",
        "def plugin(:\n",
        (
            "cannot be imported: SyntaxError: invalid syntax (guest_garbled.py, line 1). Repair or "
            "uninstall guest-garbled."
        ),
        "SyntaxError: invalid syntax",
    ),
    (
        "failing",
        _SOUND.replace(_BUILT, _BUILT + '        raise ValueError("no such width")\n'),
        (
            "failed to build: ValueError: no such width. Run `patchline plugins check "
            "patch_embedding failing` and fix the plugin."
        ),
        None,
    ),
    (
        "modular",
        _SOUND.replace("build=Guest", "build=lambda *_: 3"),
        "built a int, not a torch.nn.Module. Repair its build.",
        None,
    ),
]
"""Its name, its source, what is said of it, and what the list knows without importing it."""


def _install(site: Path, distribution: str, entries: list[str], source: str | None) -> None:
    """Lay out an installed distribution with patch embeddings of a module of its name."""
    information = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    information.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    (information / "METADATA").write_text(metadata, encoding="utf-8")
    points = "\n".join(["[patchline.patch_embeddings]", *entries])
    (information / "entry_points.txt").write_text(points, encoding="utf-8")
    if source is not None:
        (site / f"{distribution.replace('-', '_')}.py").write_text(source, encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of installed distributions: each broken one, a sound one, and two rivals."""
    folder = tmp_path_factory.mktemp("site")
    for name, source, *_ in [*BROKEN, ("sound", _SOUND)]:
        _install(folder, f"guest-{name}", [f"{name} = guest_{name}:plugin"], source)
    for owner in ("first-rival", "second-rival"):
        _install(folder, owner, ["wanted = guest_sound:plugin"], None)
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process find those distributions."""
    monkeypatch.syspath_prepend(str(site))


def _refused(done: Finished, sentence: str) -> None:
    """Check for exit code 2, and for the sentence as the only error, without a trace."""
    assert (done.code, done.out) == (2, ""), done.err
    errors = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert errors == [f"Error: {sentence}"]
    assert "Traceback" not in done.err


def _sentence(name: str) -> str:
    [(_, _, sentence, _)] = [each for each in BROKEN if each[0] == name]
    return f"The patch_embedding plugin '{name}' of guest-{name} 1.0 {sentence}"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", [name for name, *_ in BROKEN])
def test_a_broken_plugin_that_is_asked_for_is_explained(run_here: Command, name: str) -> None:
    """`plugins show` names plugin, distribution, reason and remedy in one sentence."""
    _refused(Finished(*run_here("plugins", "show", name)), _sentence(name))


@pytest.mark.usefixtures("installed")
def test_others_are_not_hurt(run_here: Command, tmp_path: Path) -> None:
    """Of a name with two owners neither is chosen, both are named; what is sound works.

    What can be imported is checked, with exit code 1; for the rest, and a run, there is nothing to
    begin.
    """
    _refused(
        Finished(*run_here("plugins", "show", "wanted")),
        "The patch_embedding name 'wanted' is taken by first-rival and second-rival. Uninstall "
        "one of them, or rename its entry point.",
    )
    assert run_here.json("plugins", "show", "sound")["tokens"] == 28 * 28
    code, out, err = run_here("plugins", "check", "failing")
    assert (code, err) == (1, "")
    [line] = [line for line in out.splitlines() if "returns_patch_tokens" in line]
    assert " failed " in line
    assert line.endswith("It raised ValueError: no such width")
    _refused(Finished(*run_here("plugins", "check", "lacking")), _sentence("lacking"))
    run = ("run", "photos", "--preset", "none", "--model.patch-embedding.name", "lacking")
    _refused(Finished(*run_here(*run)), _sentence("lacking"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("installed")
def test_the_list_has_them_all_and_marks_what_it_can_know(run_here: Command) -> None:
    """Listing imports nothing, so it shows what is missing, unreadable or taken twice.

    Kinds are headings; names stand below in alphabetical order, with owner and summary.
    """
    plugins = run_here.json("plugins", "list")["plugins"]
    keys = {"kind", "name", "distribution", "version", "summary", "error"}
    assert all(set(plugin) == keys for plugin in plugins)
    errors = {p["name"]: p["error"] or "" for p in plugins if p["distribution"] != "patchline"}
    expected = {name: listed or "" for name, _, _, listed in BROKEN}
    expected |= {"sound": "", "wanted": "its name is taken by first-rival and second-rival"}
    assert set(errors) == set(expected)
    for name, listed in expected.items():
        assert listed in errors[name]
        assert bool(listed) == bool(errors[name])
    assert not [p for p in plugins if p["distribution"] == "patchline" and p["error"]]
    blocks = [block.splitlines() for block in run_here.out("plugins", "list").strip().split("\n\n")]
    assert [block[0] for block in blocks] == list(KINDS)
    for heading, *lines in blocks:
        under = [plugin for plugin in plugins if plugin["kind"] == heading]
        assert [line.split()[0] for line in lines] == sorted(p["name"] for p in under)
        for line, plugin in zip(lines, under, strict=True):
            assert line.split()[1:3] == [plugin["distribution"], plugin["version"]]
            assert line.endswith(plugin["error"] or plugin["summary"])
            assert ("cannot be used: " in line) == bool(plugin["error"])


@pytest.mark.slow  # imports and training
@pytest.mark.usefixtures("installed", "prefect_server", "own_store")
def test_a_run_with_a_broken_plugin_ends_in_its_sentence(
    run_here: Command, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, no trace, and nothing is left that claims to run."""
    monkeypatch.setenv("PYTHONPATH", str(site))  # of the training process
    write_photos(tmp_path / "photos", images=8)
    run = ("run", "photos", "--preset", "none", "--model.patch-embedding.name", "failing")
    _refused(Finished(*run_here(*run)), _sentence("failing"))
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        assert not list(connection.execute("SELECT name FROM runs WHERE status = 'RUNNING'"))
