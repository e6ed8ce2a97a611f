"""What earlier runs found is used only where nothing that decides it has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.installation import PACKAGE
from patchline.pipeline.plugin_system.plugin_loader import PluginEntry
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory, StageRecord, key_of

TEXT = st.text(max_size=20)
INGREDIENTS = st.dictionaries(TEXT, TEXT, max_size=6)
SAME = {"data": "4e81", "training.epochs": "2"}


class Made(FrozenModel):
    """A result with a path in its folder and one elsewhere."""

    folder: Path
    file: Path
    elsewhere: Path | None
    value: float


def a_run(workspace: Path, name: str, *, fresh: bool = False) -> StageMemory:
    """Return the memory of a run with a folder of its own."""
    memory = StageMemory(workspace, fresh=fresh)
    memory.enter(name, workspace / "runs" / name)
    return memory


def work(
    memory: StageMemory, value: float = 0.1, elsewhere: Path | None = Path("/data/photos")
) -> Made:
    """Do the stage `bake` in the folder of a run, and remember it."""
    assert memory.run_folder is not None
    folder = memory.run_folder / "bake"
    (folder / "inside").mkdir(parents=True)
    (folder / "inside" / "bread.bin").write_bytes(b"bread" * 100)
    (folder / "events.jsonl").write_text('{"seq": 0}\n', "utf-8")
    (folder / "worker.log").write_text("not a part of it", "utf-8")
    bread = folder / "inside/bread.bin"
    made = Made(folder=folder, file=bread, elsewhere=elsewhere, value=value)
    memory.remember("bake", made, folder, SAME)
    return made


def recall(memory: StageMemory, ingredients: dict[str, str] | None = None) -> Made | None:
    """Ask for the stage `bake` of a run."""
    assert memory.run_folder is not None
    return memory.recall("bake", ingredients or SAME, Made, memory.run_folder / "bake")


# -- the key -----------------------------------------------------------------------------------


@given(INGREDIENTS, TEXT, TEXT)
def test_any_changed_ingredient_changes_the_key(
    ingredients: dict[str, str], name: str, value: str
) -> None:
    """Another value, one more or one less input, and another stage each give another key."""
    changed = {**ingredients, name: value}
    same = changed == ingredients
    assert (key_of("train", changed) == key_of("train", ingredients)) is same
    assert key_of("train", ingredients) != key_of("evaluate", ingredients)
    assert key_of("train", dict(reversed(changed.items()))) == key_of("train", changed)


def test_each_file_of_a_plugin_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a `--plugin` file its content, not its place; of a package each module."""

    def code(target: str) -> str:
        return stage_keys.plugin_code(PluginEntry("model", "x", "x.py", "-", "", None, target))

    package, copy = tmp_path / "rare_blocks", tmp_path / "elsewhere" / "block.py"
    block = package / "block.py"
    for file in (package / "__init__.py", package / "plugin.py", block, copy):
        file.parent.mkdir(exist_ok=True)
        file.write_text("", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before, plugin = code("rare_blocks.plugin:plugin"), code(str(block))
    assert code(str(copy)) == plugin
    block.write_text("x = 1\n", "utf-8")
    assert code("rare_blocks.plugin:plugin") != before
    assert code(str(block)) != plugin


def test_the_code_of_a_stage_is_what_it_imports_and_nothing_else() -> None:
    """Editing the registry or a cleaning must not train anybody's model again."""
    found = stage_keys.files_of(
        "patchline.pipeline.training.__main__", "patchline.pipeline.models.layers"
    )
    files = {file.relative_to(PACKAGE).as_posix().removeprefix("pipeline/") for file in found}
    assert {"plugin_api.py", "training/loop.py", "models/layers/attention.py"} <= files
    rooms = {name.partition("/")[0] for name in files if not name.endswith("/config.py")}
    assert not rooms & {"registry", "packaging", "stages"}
    other = (".j2", "cleaning.py", "live_runs.py", "tracking_store.py", "tracked_run.py")
    assert not {name for name in files if name.endswith(other)}
    templates = stage_keys.files_of("patchline.pipeline.evaluation.html_report")
    assert "report.html.j2" in {file.name for file in templates}
    with pytest.raises(ValueError, match=r"pipeline\.gone"):  # a module that was moved is noticed
        stage_keys.code("patchline.pipeline.gone")


def test_what_explains_code_does_not_change_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment, a docstring or another layout repeats no training; another number does."""
    monkeypatch.syspath_prepend(tmp_path)

    def digest(text: str) -> str:
        (tmp_path / "bakery.py").write_text(text)
        stage_keys.code.cache_clear()
        stage_keys._source.cache_clear()
        return stage_keys.code("bakery")

    plain = digest("class Oven:\n    degrees = 180\n")
    oven = 'class Oven:\n    """An oven."""\n\n    degrees = 180\n    """Celsius."""\n'
    explained = f'"""Bake."""\n\n# hot\n{oven}'
    assert digest(explained) == plain
    assert digest("class Oven:\n    degrees = 200\n") != plain


# -- records -----------------------------------------------------------------------------------


def test_an_unchanged_stage_is_recalled_with_files_of_its_own(tmp_path: Path) -> None:
    """The next run gets the result and its own copies, so that the first run may be deleted."""
    first, second, third = (a_run(tmp_path, name) for name in ("one", "two", "three"))
    made = work(first, value=0.1 + 0.2)
    found = recall(second)
    own = tmp_path / "runs/two/bake"
    expected = {"folder": own, "file": own / "inside/bread.bin"}
    assert found == made.model_copy(update=expected)
    assert found.file.read_bytes() == b"bread" * 100
    assert not (own / "worker.log").exists()
    assert second.reused == {"bake": "one"}
    shutil.rmtree(tmp_path / "runs/one")
    assert recall(third) is not None
    assert third.reused == {"bake": "one"}


def test_a_file_that_grows_is_not_shared(tmp_path: Path) -> None:
    """What a later run appends to its events does not reach the run that it took them from."""
    made, found = work(a_run(tmp_path, "one")), recall(a_run(tmp_path, "two"))
    assert found is not None
    with (found.folder / "events.jsonl").open("a", encoding="utf-8") as opened:
        opened.write("more\n")
    assert (made.folder / "events.jsonl").read_text("utf-8") == '{"seq": 0}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [("inside/bread.bin", b"Bread" * 100), ("events.jsonl", b"{"), ("events.jsonl", None)],
)
def test_a_damaged_file_is_noticed_and_not_used(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    """One bad file makes the stage run again, and is said; nothing half taken is left."""
    file = work(a_run(tmp_path, "one")).folder / name
    file.unlink() if content is None else file.write_bytes(content)
    second, said = a_run(tmp_path, "two"), list[str]()
    second.on_note = said.append
    assert recall(second) is None
    assert name.rpartition("/")[2] in said[0]
    assert second.reused == {}
    assert not list(tmp_path.glob("runs/two/**/*.part"))
    assert not (tmp_path / "runs/two/bake").exists()
    assert recall(second) is None
    assert len(said) == 1  # the record is gone


def test_a_record_that_was_changed_by_hand_is_not_used(tmp_path: Path) -> None:
    """Neither text that is no record, nor a record whose inputs do not give its key."""
    work(a_run(tmp_path, "one"))
    [file] = (tmp_path / "stages/bake").iterdir()
    record = StageRecord.model_validate_json(file.read_text("utf-8"))
    wrong = record.model_copy(update={"ingredients": {**SAME, "training.epochs": "3"}})
    for text in ("{half a rec", wrong.model_dump_json(), '{"stage": "bake"}'):
        file.write_text(text, "utf-8")
        memory, said = a_run(tmp_path, "two"), list[str]()
        memory.on_note = said.append
        assert recall(memory) is None
        assert "is ignored" in said[0]


def test_fresh_uses_only_what_the_same_run_has_done(tmp_path: Path) -> None:
    """A fresh run computes all stages; resumed, it only finds its own stages.

    A run that changed its number of processes recalls its own results; no other run does.
    """
    work(a_run(tmp_path, "one"))
    fresh = a_run(tmp_path, "two", fresh=True)
    assert recall(fresh) is None
    own = work(fresh, value=0.2)
    mixed = a_run(tmp_path, "three")
    mixed.private = True
    made = work(mixed, value=0.3)
    assert recall(mixed) == made
    assert recall(a_run(tmp_path, "two", fresh=True)) == own
    assert recall(a_run(tmp_path, "two")) == own
    other = recall(a_run(tmp_path, "four"))
    assert other is None or other.value != made.value
