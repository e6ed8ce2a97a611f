"""What the key of a stage covers: the code that computes it, and nothing else."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from patchline.pipeline.installation import PACKAGE
from patchline.pipeline.plugin_system.plugin_loader import PluginEntry
from patchline.pipeline.stages.evaluate import Evaluate
from patchline.pipeline.stages.package import PackageModel
from patchline.pipeline.stages.stage import StageClass
from patchline.pipeline.stages.train import Train
from patchline.pipeline.workspace.run_memory import stage_keys
from tests.conftest import Run

NOT_LOADED = {
    "pipeline.models.layers": "all count: the plugin that uses some is another ingredient",
    "pipeline.training.__main__": "it is what runs",
}
"""What the key of a training covers beside the modules that its process has loaded, and why."""


@pytest.mark.parametrize(
    "stage", [Train, Evaluate, PackageModel], ids=lambda stage: str(stage.name)
)
def test_a_key_covers_what_its_process_has_loaded(finished_run: Run, stage: StageClass) -> None:
    """Every module of the library, and no object store; that of a training covers no others.

    What talks to a shared workspace is loaded where there is one, and decides no result.
    """
    assert stage.worker is not None
    file = finished_run.folder / f"modules-{stage.worker.module}.txt"
    loaded = _files(file.read_text("utf-8").split())
    covered = _files(_name(each) for each in stage_keys.files_of(*stage.code))
    assert len(loaded) > 100
    assert not loaded - covered
    assert not any("object_store" in name for name in covered)
    if stage is Train:
        more = {name.removeprefix("patchline.") for name in covered - loaded}
        assert not {name for name in more if not name.startswith(tuple(NOT_LOADED))}


def test_two_threads_read_code_at_once(tmp_path: Path) -> None:
    """As two trials of a search do, while a library watches the garbage collector."""
    source = (PACKAGE / "pipeline" / "training" / "loop.py").read_text("utf-8")
    entries = []
    for number in range(60):
        file = tmp_path / f"plugin_{number}.py"
        file.write_text(f"{source}\nNUMBER = {number}\n", "utf-8")
        entries.append(PluginEntry("model", file.stem, "", "", "", None, str(file)))

    def watch(*_: object) -> None:
        for step in range(50):  # Python code, in which threads may change
            assert step >= 0

    gc.callbacks.append(watch)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert len({*pool.map(stage_keys.plugin_code, entries)}) == len(entries)
    finally:
        gc.callbacks.remove(watch)


def test_what_was_parsed_is_kept_until_it_changes(tmp_path: Path) -> None:
    """The next process takes the digest of a file as it was kept, unless the file has changed."""
    digest = _digest_in(tmp_path)
    [file] = tmp_path.glob("share/patchline/*.json")
    kept = json.loads(file.read_text("utf-8"))
    [(state, _, own)] = [each for path, each in kept.items() if path.endswith("/waiting.py")]
    assert _digest_in(tmp_path) == digest
    file.write_text(file.read_text("utf-8").replace(own, own[::-1]), "utf-8")
    assert _digest_in(tmp_path) != digest
    file.write_text(file.read_text("utf-8").replace(str(state[0]), "0"), "utf-8")
    assert _digest_in(tmp_path) == digest
    assert json.loads(file.read_text("utf-8")) == kept


def _digest_in(environment: Path) -> str:
    """Return the digest of some code, computed by a process of an environment."""
    script = (
        "import sys; sys.prefix = sys.argv[1]\n"
        "from patchline.pipeline.workspace.run_memory import stage_keys\n"
        "print(stage_keys.code('patchline.pipeline.waiting'))"
    )
    command = [sys.executable, "-c", script, str(environment)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _files(names: Iterable[str]) -> set[str]:
    """Return the modules of the library among names, without packages."""
    return {
        name
        for name in names
        if name.startswith(("patchline.pipeline.", "patchline.plugin_api"))
        and PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py").is_file()
    }


def _name(file: Path) -> str:
    return ".".join(("patchline", *file.relative_to(PACKAGE).with_suffix("").parts))
