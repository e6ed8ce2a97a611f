"""Which patch embedding feeds a model: the model's own, unless another is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from patchline.flows.command_line import run_command_line
from patchline.pipeline import config_files
from patchline.pipeline.config import ModelChoice, RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.composed_config import composed_config
from patchline.pipeline.plugin_system.plugin_loader import FILES_VARIABLE, installed
from patchline.pipeline.plugin_system.plugin_settings import named_patch_embedding
from tests.conftest import Run, write_photos
from tests.flows.commands.test_plugins_show import _MODEL

Output = pytest.CaptureFixture[str]
OWN = {
    "vit": "conv",
    "simple_vit": "conv",
    "vit_registers": "conv",
    "rope_vit": "conv",
    "cct": "cct",
    "vit_small_data": "shifted",
    "torchvision": "none",
    "timm": "none",
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of a few images of 16 pixels."""
    return write_photos(tmp_path / "photos", classes=2, images=4, side=16)


def _planned(output: Output, *arguments: str | Path) -> Any:
    """Return the resolved settings that `run --preset none --dry-run` prints."""
    code = run_command_line(["run", *map(str, arguments), "--preset", "none", "--dry-run"])
    answer = output.readouterr()
    assert code == 0, answer.err
    return yaml.safe_load(answer.out)


def _refused(output: Output, *arguments: str | Path) -> str:
    code = run_command_line(["run", *map(str, arguments), "--preset", "none", "--dry-run"])
    answer = output.readouterr()
    assert (code, answer.out) == (2, "")
    [sentence] = [line for line in answer.err.splitlines() if line.startswith("Error: ")]
    assert sentence.endswith((".", "?"))
    return sentence


def _embedding(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the checked embedding of settings as a file holds them."""
    return config_files.validated(settings).model.patch_embedding.model_dump()


@pytest.mark.parametrize(("model", "embedding"), OWN.items())
def test_a_model_is_fed_by_its_own_embedding(model: str, embedding: str) -> None:
    """Where nothing is chosen, or `auto`, the checked config names the model's own embedding."""
    nothing: list[dict[str, Any]] = [{}, {"patch_embedding": {}}]
    for chosen in (*nothing, {"patch_embedding": {"name": "auto"}}):
        assert _embedding({"model": {"name": model, **chosen}})["name"] == embedding
    choice = named_patch_embedding(ModelChoice(name=model))
    assert (choice.name, choice.settings) == (embedding, {})


def test_every_built_in_model_is_looked_at() -> None:
    """The table of this module holds each model that ships with Patchline."""
    models = [entry.name for entry in installed("model") if entry.distribution == "patchline"]
    assert set(models) == set(OWN)


def test_the_default_config_leaves_the_choice_to_the_model() -> None:
    """A config that nobody touched says `auto`, and its checked form says `conv`."""
    assert RunConfig().model.patch_embedding.name == "auto"
    checked = config_files.validated({}).model
    assert checked.names == ["vit", "conv"]
    assert config_files.validated({"model": {"name": "torchvision"}}).model.names == ["torchvision"]


@pytest.mark.parametrize("model", ["vit", "cct", "vit_small_data", "simple_vit"])
@pytest.mark.parametrize("embedding", ["conv", "cct", "overlap"])
def test_an_explicit_choice_wins(model: str, embedding: str) -> None:
    """Any embedding feeds any ViT when it is named."""
    settings = {"model": {"name": model, "patch_embedding": {"name": embedding}}}
    assert _embedding(settings)["name"] == embedding


def test_settings_of_the_own_embedding_need_no_name() -> None:
    """A file may set the own embedding's settings alone; those of another are unknown."""
    own = {"model": {"name": "cct", "patch_embedding": {"num_layers": 1}}}
    assert _embedding(own)["name"] == "cct"
    assert _embedding(own)["num_layers"] == 1
    with pytest.raises(ConfigError, match=r"no setting model\.patch_embedding\.patch_size"):
        _embedding({"model": {"name": "cct", "patch_embedding": {"patch_size": 4}}})


@pytest.mark.parametrize(
    ("embedding", "words"),
    [
        ({"name": "conv"}, ["model.patch_embedding.name is conv", "torchvision", "none"]),
        ({"patch_size": 4}, ["model.patch_embedding.patch_size is set", "torchvision", "Omit it"]),
        ({"name": "none", "patch_size": 4}, ["patch_size is set", "torchvision", "Omit it"]),
    ],
)
def test_a_model_without_an_embedding_refuses_one(
    embedding: dict[str, Any], words: list[str]
) -> None:
    """An embedding, or settings for one, are answered in a sentence."""
    with pytest.raises(ConfigError) as raised:
        _embedding({"model": {"name": "torchvision", "patch_embedding": embedding}})
    for word in words:
        assert word in str(raised.value)


def test_a_vit_without_an_embedding_is_refused() -> None:
    """A model that needs an embedding says which one to take."""
    with pytest.raises(ConfigError, match=r"cct needs a patch embedding\. Set it to cct"):
        _embedding({"model": {"name": "cct", "patch_embedding": {"name": "none"}}})


# -- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "settings", "flag"),
    [
        (["--model.name", "cct"], {}, "num_layers"),
        (["--model.name=cct"], {}, "num_layers"),
        ([], {"model": {"name": "cct"}}, "num_layers"),
        (["--model.name", "cct"], {"model": {"patch_embedding": {"name": "conv"}}}, "patch_size"),
        (["--model.patch-embedding.name", "auto"], {"model": {"name": "cct"}}, "num_layers"),
        (["--model.patch-embedding.name", "conv_stem"], {"model": {"name": "cct"}}, "norm"),
        (["--model.patch_embedding.name", "cct"], {}, "num_layers"),
    ],
)
def test_flags_are_those_of_the_embedding_that_feeds_the_model(
    arguments: list[str], settings: dict[str, Any], flag: str
) -> None:
    """Model, file and flags decide together whose settings are flags."""
    model: Any = composed_config(arguments, settings).model_fields["model"].annotation
    embedding: Any = model.model_fields["patch_embedding"].annotation
    assert flag in embedding.model_fields


def test_a_model_without_an_embedding_has_no_settings_of_one() -> None:
    """Only the name is left, so that `none` can be said."""
    model: Any = composed_config(["--model.name", "timm"], {}).model_fields["model"].annotation
    embedding: Any = model.model_fields["patch_embedding"].annotation
    assert set(embedding.model_fields) == {"name"}


def test_a_plan_names_the_own_embedding_and_takes_its_settings(
    photos: Path, capsys: Output
) -> None:
    """`--model.name cct` with a setting of its embedding is a whole plan."""
    arguments = ("--model.name", "cct", "--model.patch-embedding.num-layers", "1")
    planned = _planned(capsys, photos, *arguments)["model"]
    assert (planned["name"], planned["size"]) == ("cct", "2")
    assert (planned["patch_embedding"]["name"], planned["patch_embedding"]["num_layers"]) == (
        "cct",
        1,
    )
    assert None not in planned["patch_embedding"].values()


def test_a_resolved_config_keeps_its_embedding(photos: Path, capsys: Output) -> None:
    """A plan with conv, run again with another model, keeps conv and its settings."""
    flags = ("--model.patch-embedding.patch-size", "8")
    first = _planned(capsys, photos, *flags)
    assert first["model"]["patch_embedding"] == {"name": "conv", "patch_size": 8}
    Path("plan.yaml").write_text(yaml.safe_dump(first), encoding="utf-8")
    assert _planned(capsys, "--config", "plan.yaml") == first
    other = _planned(capsys, "--config", "plan.yaml", "--model.name", "cct")["model"]
    assert other["name"] == "cct"
    assert other["patch_embedding"] == {"name": "conv", "patch_size": 8}
    back = ("--model.name", "cct", "--model.patch-embedding.name", "auto")
    own = _planned(capsys, "--config", "plan.yaml", *back)["model"]
    assert own["patch_embedding"]["name"] == "cct"


def test_naming_the_own_embedding_keeps_its_settings(photos: Path, capsys: Output) -> None:
    """To name what feeds the model anyway is no other choice, so the file's settings hold."""
    Path("a.yaml").write_text("model: {patch_embedding: {patch_size: 8}}", encoding="utf-8")
    for flags in ((), ("--model.patch-embedding.name", "conv")):
        planned = _planned(capsys, photos, "--config", "a.yaml", *flags)
        assert planned["model"]["patch_embedding"] == {"name": "conv", "patch_size": 8}


def test_an_adapter_is_planned_without_an_embedding(photos: Path, capsys: Output) -> None:
    """The plan says `none`, and the same plan works again."""
    flags = ("--model.name", "torchvision", "--data.image-size", "64")
    planned = _planned(capsys, photos, *flags)
    assert planned["model"]["patch_embedding"] == {"name": "none"}
    Path("plan.yaml").write_text(yaml.safe_dump(planned), encoding="utf-8")
    assert _planned(capsys, "--config", "plan.yaml") == planned


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model.patch-embedding.name", "conv"], ["conv", "torchvision", "no patch embedding"]),
        (["--model.patch-embedding.patch-size", "4"], ["--model.patch-embedding.patch-size"]),
        (["--config", "a.yaml"], ["model.patch_embedding.patch_size", "torchvision", "Omit it"]),
        (["--config", "b.yaml"], ["conv", "torchvision", "no patch embedding"]),
    ],
    ids=" ".join,
)
def test_an_embedding_for_an_adapter_is_refused(
    photos: Path, capsys: Output, flags: list[str], words: list[str]
) -> None:
    """From a flag or a file, the answer is one sentence and exit code 2."""
    Path("a.yaml").write_text("model: {patch_embedding: {patch_size: 4}}", encoding="utf-8")
    Path("b.yaml").write_text("model: {patch_embedding: {name: conv}}", encoding="utf-8")
    sentence = _refused(capsys, photos, "--model.name", "torchvision", *flags)
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "none.yaml", "--training.epochs", "0"], ["training.epochs", "from 1 to"]),
        (
            ["--model.name", "torchvision", "--training.epochs", "0"],
            ["training.epochs", "from 1 to"],
        ),
        (["--config", "cct.yaml"], ["model.patch_embedding.num_layers", "from 1 to"]),
        (
            ["--config", "named.yaml", "--model.patch-embedding.num-layers", "0"],
            ["model.patch_embedding.num_layers", "from 1 to"],
        ),
    ],
    ids=lambda value: " ".join(value) if "--" in value[0] else None,
)
def test_a_bad_value_is_explained_whatever_feeds_the_model(
    photos: Path, capsys: Output, arguments: list[str], words: list[str]
) -> None:
    """Rule and range are named for the model that flags and file choose together."""
    files = {
        "none.yaml": "model: {name: torchvision}",
        "cct.yaml": "model: {name: cct, patch_embedding: {num_layers: 0}}",
        "named.yaml": "model: {name: cct}",
    }
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    if "none.yaml" in arguments:
        arguments = [*arguments, "--model.patch-embedding.name", "none"]
    sentence = _refused(capsys, photos, *arguments)
    for word in words:
        assert word in sentence


def test_a_model_from_a_file_gets_what_it_declares(
    photos: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third party's model with `patch_embedding="linear"` is planned with linear."""
    monkeypatch.setenv(FILES_VARIABLE, "")  # put back when the test ends
    (tmp_path / "flat.py").write_text(_MODEL, encoding="utf-8")
    common = (photos, "--plugin", "flat.py", "--model.name", "flat")
    planned = _planned(capsys, *common, "--model.patch-embedding.patch-size", "2")["model"]
    assert planned["patch_embedding"] == {"name": "linear", "patch_size": 2}
    other = _planned(capsys, *common, "--model.patch-embedding.name", "conv")["model"]
    assert other["patch_embedding"]["name"] == "conv"


@pytest.mark.parametrize("model", OWN)
def test_the_schema_has_the_embedding_of_the_model(capsys: Output, model: str) -> None:
    """`run --schema` works for every model; its default embedding is the model's own."""
    assert run_command_line(["run", "--schema", "--model.name", model]) == 0
    definitions = json.loads(capsys.readouterr().out)["$defs"]
    chosen = definitions[f"{model}_model"]["properties"]
    assert chosen["name"]["default"] == model
    reference = json.dumps(chosen["patch_embedding"])
    [section] = [part for key, part in definitions.items() if f'"#/$defs/{key}"' in reference]
    assert section["properties"]["name"]["default"] == OWN[model]
    assert (set(section["properties"]) == {"name"}) == (OWN[model] == "none")


@pytest.mark.slow
def test_the_config_that_a_run_writes_names_the_embedding(finished_run: Run) -> None:
    """Whoever reads the resolved config of a run finds no `auto`."""
    written = yaml.safe_load((finished_run.folder / finished_run.summary["config"]).read_text())
    assert written["model"]["name"] == "vit"
    assert written["model"]["patch_embedding"] == {"name": "conv", "patch_size": 4}


def test_a_model_that_is_no_group_gives_way_to_a_flag(tmp_path: Path) -> None:
    """A file whose model is a number is no reason to crash before it can be refused."""
    file = tmp_path / "run.yaml"
    file.write_text("model: 3\n", encoding="utf-8")
    flags = {"model": {"patch_embedding": {"name": "conv"}}}
    merged = config_files.assemble(preset_name=None, file=file, flags=flags)
    assert merged["model"] == flags["model"]
