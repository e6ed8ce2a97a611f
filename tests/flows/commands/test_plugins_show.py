"""`patchline plugins show`: settings and costs of one plugin, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from patchline.flows.command_line import run_command_line
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_cost import ModelCost, model_cost
from patchline.pipeline.plugin_system.plugin_loader import FILES_VARIABLE
from tests.conftest import patchline_here

Output = pytest.CaptureFixture[str]

SHIFTED = {"size": "mini", "patch_embedding": {"name": "shifted"}}
_MODEL = '''
"""One linear layer on averaged patches."""

import torch
from torch import nn

from patchline.plugin_api import ModelPlugin, PluginConfig


class FlatConfig(PluginConfig):
    """One setting."""

    width: int = 8
    """Dimension of a token."""


class Flat(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        self.patches = context.patch_embedding(config.width)
        self.head = nn.Linear(config.width, context.num_classes)

    def forward(self, images_BCHW):
        return self.head(self.patches(images_BCHW).tokens_BND.mean(1))


plugin = ModelPlugin(
    summary="A linear model", paper="", config_class=FlatConfig, build=Flat,
    patch_embedding="linear",
)
'''


def _shown(output: Output, *arguments: str) -> Any:
    """Return the JSON object that `plugins show` prints."""
    code = run_command_line(["plugins", "show", *arguments, "--json"])
    answer = output.readouterr()
    assert code == 0, answer.err
    return json.loads(answer.out)


def _figures(image_size: int, **choice: Any) -> dict[str, Any]:
    return model_cost(ModelChoice.model_validate(choice), image_size).model_dump()


def _refusal(output: Output, *arguments: str) -> str:
    """Return the one sentence that `plugins show` refuses the arguments with."""
    code = run_command_line(["plugins", "show", *arguments])
    answer = output.readouterr()
    assert code == 2, answer.err
    [sentence] = answer.err.splitlines()
    assert sentence.startswith("Error: ")
    assert sentence.endswith((".", "?"))
    assert "Unexpected" not in sentence
    assert answer.out == ""
    return sentence


# -- what it shows -------------------------------------------------------------------------------


def test_the_text_has_settings_and_figures(tmp_path: Path) -> None:
    """It prints summary, paper, settings with what was given, and every figure."""
    done = patchline_here("plugins", "show", "vit", "--model.size", "ti", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("model vit (patchline ")
    assert "arXiv 2010.11929" in done.out
    lines = done.out.splitlines()
    [size] = [line for line in lines if line.startswith("  size ")]
    assert re.fullmatch(r'  size +Dimensions: .* \[default "micro", set to "ti"\]', size)
    [depth] = [line for line in lines if line.startswith("  depth ")]
    assert re.fullmatch(r"  depth +Number of encoder blocks; .* \[default null\]", depth)
    assert "vit with patch embedding conv, 224x224 pixels, 1000 classes:" in done.out
    figures = _figures(224, size="ti")
    for text in (
        f"{figures['parameters']:,} ({figures['parameters_without_head']:,} without the head)",
        f"{figures['tokens']}",
        f"{figures['macs'] / 1e9:.3f} GMACs per image",
        f"{figures['activation_bytes'] / 2**20:.1f} MiB per image in training, float32",
    ):
        assert [line for line in lines if line.startswith("  ") and line.endswith(f" {text}")], text


def test_json_is_one_object_with_every_figure(tmp_path: Path) -> None:
    """It prints one JSON object and nothing else."""
    done = patchline_here(
        *("plugins", "show", "patch_embedding", "cct", "--json", "--data.image-size=32"),
        *("--model.name", "cct", "--model.patch-embedding.num-layers", "1"),
        cwd=tmp_path,
    )
    assert (done.code, done.err) == (0, "")
    figures = _figures(32, name="cct", patch_embedding={"name": "cct", "num_layers": 1})
    settings = done.json.pop("settings") if isinstance(done.json, dict) else None
    shown = {key: value for key, value in done.json.items() if key != "settings"}
    assert shown == {"kind": "patch_embedding", "name": "cct", "image_size": 32, **figures}
    assert set(figures) == set(ModelCost.model_fields)
    assert settings is not None
    assert set(settings["properties"]) == {"num_layers", "kernel_size", "channels"}


@pytest.mark.parametrize(
    ("arguments", "image_size", "choice"),
    [
        (["vit"], 224, {}),
        (["shifted", "--model.size=mini", "--data.image-size=32"], 32, SHIFTED),
        (["--data.image-size", "32", "--model.depth=2", "vit"], 32, {"depth": 2}),
        (["model", "cct", "--data.image-size", "32"], 32, {"name": "cct"}),
        (
            ["vit", "--model.patch-embedding.name", "cct", "--data.image-size", "32"],
            *(32, {"patch_embedding": {"name": "cct"}}),
        ),
        (
            ["conv", "--model.patch-embedding.patch-size", "8", "--data.image-size", "32"],
            *(32, {"patch_embedding": {"name": "conv", "patch_size": 8}}),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_settings_are_the_flags_of_run(
    capsys: Output, arguments: list[str], image_size: int, choice: dict[str, Any]
) -> None:
    """The figures are those of the model that the flags describe; the image is 224 by default."""
    shown = _shown(capsys, *arguments)
    assert shown["image_size"] == image_size
    figures = _figures(image_size, **choice)
    assert {key: shown[key] for key in figures} == figures


@pytest.mark.parametrize(
    "arguments",
    [
        ["--augmentation.horizontal-flip", "light"],
        ["--augmentation.no-horizontal-flip", "augmentation", "light"],
        ["light", "--augmentation.horizontal-flip"],
    ],
    ids=" ".join,
)
def test_a_switch_takes_no_value(capsys: Output, arguments: list[str]) -> None:
    """A flag that is on or off may stand in front of the plugin's name."""
    assert _shown(capsys, *arguments)["name"] == "light"


@pytest.mark.parametrize("spelling", ["patch-embedding", "patch_embedding"])
def test_a_name_with_an_underscore_is_the_same_flag(capsys: Output, spelling: str) -> None:
    """Flags may be spelled as in a file, and the chosen plugin's settings are known then too."""
    flag = f"--model.{spelling}"
    arguments = (f"{flag}.name", "cct", f"{flag}.num-layers", "1", "--data.image-size", "32")
    assert _shown(capsys, "vit", *arguments)["tokens"] == 256


@pytest.mark.parametrize(
    ("arguments", "kind", "setting"),
    [
        (["image_folder"], "data_source", "mirror_symmetric"),
        (["digits"], "data_source", None),
        (["augmentation", "light", "--augmentation.shift", "0.2"], "augmentation", "shift"),
        (["augmentation", "none"], "augmentation", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_other_kinds_show_settings_and_no_costs(
    capsys: Output, arguments: list[str], kind: str, setting: str | None
) -> None:
    """A data source and an augmentation have settings, and nothing that a model costs."""
    shown = _shown(capsys, *arguments)
    assert set(shown) == {"kind", "name", "settings"}
    assert shown["kind"] == kind
    assert (setting in shown["settings"]["properties"]) if setting else True
    assert run_command_line(["plugins", "show", *arguments]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{kind} {shown['name']} (patchline ")
    assert "parameters" not in text
    if "--augmentation.shift" in arguments:
        assert "[default 0.12, set to 0.2]" in text


def test_a_model_from_a_file_is_fed_by_what_it_declares(tmp_path: Path) -> None:
    """`--plugin FILE.py` adds a model, whose settings are flags and whose embedding is its own."""
    (tmp_path / "flat.py").write_text(_MODEL, encoding="utf-8")
    common = ("flat", "--plugin", "flat.py", "--data.image-size", "32")
    shown = patchline_here(
        "plugins", "show", *common, "--model.width=16", "--json", cwd=tmp_path
    ).json
    assert shown["parameters_without_head"] == (3 * 4 * 4 + 1) * 16
    assert shown["parameters"] == (3 * 4 * 4 + 1) * 16 + 1000 * 17
    assert shown["macs"] == 64 * 48 * 16 + 1000 * 16
    assert set(shown["settings"]["properties"]) == {"width"}


def test_a_model_that_fails_on_an_image_is_named(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward pass that raises is the plugin's fault: one sentence names it."""
    monkeypatch.setenv(FILES_VARIABLE, "")  # put back when the test ends
    broken = _MODEL.replace("return self.head(", "return self.head(images_BCHW) * self.head(")
    assert broken != _MODEL
    (tmp_path / "flat.py").write_text(broken, encoding="utf-8")
    arguments = ["flat", "--plugin", "flat.py", "--data.image-size", "32"]
    assert run_command_line(["plugins", "show", *arguments]) != 0
    answer = capsys.readouterr()
    [sentence] = [line for line in answer.err.splitlines() if line.startswith("Error: ")]
    assert sentence.startswith("Error: The model plugin 'flat'")
    assert answer.out == ""


def test_help_names_the_flags(capsys: Output) -> None:
    """`--help` without a plugin explains NAME and every flag; with one, its settings too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "250")
        assert run_command_line(["plugins", "show", "--help"]) == 0
        general = capsys.readouterr().out
        assert run_command_line(["plugins", "show", "patch_embedding", "cct", "--help"]) == 0
        named = capsys.readouterr().out
    assert "[KIND] NAME" in general
    for flag in ("--json", "--picture", "--photo"):
        assert flag in named
        assert flag in general
    for flag in ("--model.patch-embedding.num-layers", "--model.size", "--data.image-size"):
        assert flag in named


# -- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vit", "--model.sise", "b"], ["--model.sise", "--model.size"]),
        (["vit", "--model.size", "x"], ["model.size", "'x'", "'micro'"]),
        (["vit", "--model.depth", "0"], ["model.depth", "0", "from 1 to 256"]),
        (["conv", "--model.patch-embedding.patch-sise", "4"], ["patch-sise", "patch-size"]),
        (
            ["hybrid", "--model.patch-embedding.stage", "9"],
            ["model.patch_embedding.stage", "9", "from 1 to 4"],
        ),
        (
            ["vit", "--model.patch-embedding.patch-size", "5", "--data.image-size", "32"],
            ["patch_size 5", "32x32", "data.image_size"],
        ),
        (["vit", "--model.num-heads", "7"], ["model.num_heads 7", "96"]),
        (["vit", "--data.image-size", "0"], ["data.image_size", "from 4 to 1024"]),
        (
            ["timm", "--model.patch-embedding.name", "none", "--data.image-size", "0"],
            ["data.image_size", "from 4 to 1024"],
        ),
        (["vit", "--model.name", "simple_vit"], ["model.name", "simple_vit", "vit"]),
        (
            ["conv", "--model.patch-embedding.name", "cct"],
            ["model.patch_embedding.name", "cct", "conv"],
        ),
        (["light", "--augmentation.name", "none"], ["augmentation.name", "none", "light"]),
        (["digits", "--data.source", "image_folder"], ["data.source", "image_folder", "digits"]),
        (["cct"], ["'cct'", "a model and a patch_embedding", "Add the kind before the name"]),
        (["modle", "vit"], ["modle", "Did you mean model?"]),
        (["vitt"], ["'vitt'", "Did you mean 'vit'?"]),
        (["model", "konv"], ["model", "konv"]),
        (["conv", "--model.name", "torchvision"], ["conv", "torchvision", "no patch embedding"]),
        (["model", "torchvision", "--model.patch-embedding.name", "conv"], ["no patch embedding"]),
        (["model", "torchvision", "--model.architecture", "resnet19"], ["resnet19", "resnet18"]),
        (["torchvision"], ["data_source and a model", "Add the kind"]),
        ([], ["[KIND] NAME"]),
        (["model", "vit", "b"], ["[KIND] NAME"]),
        (["--json"], ["[KIND] NAME"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_answered_in_a_sentence(
    capsys: Output, arguments: list[str], words: list[str]
) -> None:
    """The value, the rule and the remedy stand in one sentence, and nothing else is printed."""
    sentence = _refusal(capsys, *arguments)
    for word in words:
        assert word in sentence


def test_no_remedy_names_a_flag_that_is_not_there(capsys: Output) -> None:
    """There is no flag `--data`, so nobody is sent to it."""
    assert "Did you mean --data?" not in _refusal(capsys, "digits", "--data.source", "digit")


# -- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vit", "--picture", "a.png"], ["--picture", "vit", "model"]),
        (["light", "--picture", "a.png"], ["--picture", "light", "augmentation"]),
        (["vit", "--json", "--picture", "a.png"], ["--picture", "vit", "model"]),
        (["conv", "--picture", "a.gif"], ["a.gif", ".png"]),
        (["conv", "--photo", "a.png"], ["--photo", "--picture"]),
        (["conv", "--photo", "none.png", "--picture", "a.png"], ["none.png", "cannot be read"]),
        (["conv", "--photo", "text.png", "--picture", "a.png"], ["text.png", "cannot be read"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_picture_that_cannot_be_drawn_is_refused(
    capsys: Output, arguments: list[str], words: list[str]
) -> None:
    """Without a patch embedding, a kind of picture, a place or a photo nothing is printed."""
    Path("text.png").write_text("no image", encoding="utf-8")
    sentence = _refusal(capsys, *arguments)
    for word in words:
        assert word in sentence
    assert [file.name for file in Path.cwd().iterdir()] == ["text.png"]


def test_a_picture_is_written_beside_the_answer(capsys: Output) -> None:
    """`--picture` writes the file and says so on standard error; the answer stays one object."""
    Image.new("RGB", (300, 240), (200, 120, 40)).save("photo.png")
    arguments = ["conv", "--data.image-size", "32", "--photo", "photo.png", "--picture", "x.png"]
    assert run_command_line(["plugins", "show", *arguments, "--json"]) == 0
    answer = capsys.readouterr()
    assert json.loads(answer.out)["tokens"] == 64
    assert answer.err == "Picture: x.png\n"
    with Image.open("x.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
