"""What cannot be converted is refused in a sentence; what had to be assumed is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers import RmsNorm

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.pretrained.layouts import convert
from tests.pipeline.models.pretrained.published_files import PUBLISHED
from tests.pipeline.models.pretrained.tiny_models import (
    DIM,
    HEADS,
    MLP,
    Tensors,
    saved,
    state_of,
    timm_vit,
)

Make = Callable[[], Tensors]


def _without(name: str) -> Make:
    return lambda: {each: own for each, own in state_of(timm_vit()).items() if each != name}


def _with(name: str, *shape: int, value: float = 1.0) -> Make:
    return lambda: {**state_of(timm_vit()), name: torch.full(shape, value)}


def _unlike(**settings: Any) -> Make:
    return lambda: state_of(timm_vit(**settings))


_LORA = "base_model.model.blocks.0.attn.qkv.lora_A.weight"
REFUSED: dict[str, tuple[Make, str]] = {
    "unknown": (_with("blocks.1.attn.rel_pos_h", 3), r"'blocks.1.attn.rel_pos_h' is not part of"),
    "swiglu": (_with("blocks.0.mlp.w12.weight", 3), r"a gated MLP \(SwiGLU\)"),
    "buffer": (_with("relative_position_index", 3), "its purpose is unknown"),
    "twice": (
        lambda: {
            **_with("blocks.0.gamma_1", DIM)(),
            "blocks.0.ls1.gamma": torch.ones(DIM),
        },
        r"'blocks.0.ls1.gamma' and 'blocks.0.gamma_1' are the same part .*Remove one",
    ),
    "no positions": (_without("pos_embed"), "no position embeddings: .*rotary"),
    "no norm": (_without("norm.weight"), "nothing in the file becomes norm.weight"),
    "shape": (_with("blocks.1.norm1.weight", 7), r"'blocks.1.norm1.weight' has the shape \(7,\)"),
    "token": (_with("cls_token", 1, 1, 7), r"'cls_token' has the shape \(1, 1, 7\)"),
    "kernel": (_with("patch_embed.proj.weight", DIM, 3, 8, 4), "not a kernel of square patches"),
    "positions": (_with("pos_embed", 1, 23, DIM), "do not form a square grid. Put the model's"),
    "gains of one block": (_with("blocks.0.ls1.gamma", DIM), "attention_scale|mlp_scale"),
    "average": (_unlike(class_token=False, global_pool="avg"), "a norm after averaging .*fc_norm"),
    "qk norm": (_unlike(qk_norm=True), "a norm of queries and keys"),
    "registers": (
        _unlike(class_token=False, reg_tokens=2, global_pool="map"),
        "registers but no class",
    ),
    "pooling": (_unlike(global_pool="map"), "has a class token but pools the patches"),
    "RMS norm": (_unlike(norm_layer=RmsNorm), "nothing in the file becomes .*bias"),
    "no ViT": (
        lambda: {"layer1.0.conv1.weight": torch.ones(2)},
        r"'layer1\.0.conv1.weight'. Use weights .*torchvision",
    ),
    "adapter": (_with(_LORA, 4, DIM), "Merge it into"),
    "nan": (_with("blocks.1.mlp.fc1.bias", MLP, value=torch.nan), "96 of 96 values .* NaN"),
    "infinite": (_with("pos_embed", 1, 17, DIM, value=torch.inf), "'pos_embed' has .* infinite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_whole_model_of_ours_is_refused(case: str, tmp_path: Path) -> None:
    """A missing, foreign or misshapen tensor is named, with the layout and the remedy.

    Models that our plugins cannot represent are never converted to something else. An adapter is no
    model, and a training run that diverged leaves no weights.
    """
    make, expected = REFUSED[case]
    file = saved(tmp_path, make())
    with pytest.raises(ConfigError, match=expected) as caught:
        convert(file, num_heads=HEADS)
    message = str(caught.value)
    assert message.startswith(f"'{file}'")
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "pixels", "resizing"),
    [
        ("torchvision", "mean 0.485, 0.456, 0.406", "bicubic_corners"),
        ("transformers DINOv2", "mean 0.485, 0.456, 0.406", "bicubic"),
        ("transformers DINOv2 with registers", "deviation 0.229, 0.224, 0.225", "antialiased"),
        ("DINOv2, chunks", "as usual for DINOv2", "bicubic_offset"),
        ("DINOv2, registers", "as usual for DINOv2 with registers", "antialiased"),
        ("JAX", "mean 0.5, 0.5, 0.5", "linear_corners"),
        ("timm", "as usual for timm ViT; DeiT and DINO used", "antialiased"),
    ],
)
def test_what_a_layout_leaves_unsaid_is_that_of_its_authors(
    name: str, pixels: str, resizing: str, tmp_path: Path
) -> None:
    """Mean and deviation are said, whatever the layout; positions are resized as they are there."""
    converted = convert(PUBLISHED[name](tmp_path).file, num_heads=HEADS)
    assert any(pixels in note for note in converted.notes)
    assert converted.resizing == resizing


def test_the_number_of_heads_is_never_a_silent_guess(tmp_path: Path) -> None:
    """It is what is set, or published, or a multiple of 64 with a note; else it is asked for."""
    file = saved(tmp_path, state_of(timm_vit()))
    given = convert(file, num_heads=2)
    assert given.settings["num_heads"] == 2
    assert not any("heads" in note for note in given.notes)
    assumed = convert(file)
    assert assumed.settings["num_heads"] == 1
    assert any("1, of size 64" in note for note in assumed.notes)
    with pytest.raises(ConfigError, match="7 attention heads do not divide the dimension 64"):
        convert(file, num_heads=7)
    assert convert(PUBLISHED["JAX"](tmp_path).file).settings["num_heads"] == HEADS
    file = saved(tmp_path, state_of(timm_vit(embed_dim=48)))
    with pytest.raises(ConfigError, match=r"not known for dimension 48. Set model.num_heads"):
        convert(file)


def test_settings_follow_the_file(tmp_path: Path) -> None:
    """CLIP's norm before the blocks, its activation, its epsilon and its pixels are set."""
    published = PUBLISHED["OpenAI CLIP"](tmp_path)
    converted = convert(published.file, num_heads=HEADS)
    assert converted.model == "vit"
    expected = {"norm_epsilon": 1e-5, "activation": "quick_gelu", "embedding_norm": True}
    assert converted.settings.items() >= expected.items()
    assert (converted.grid, converted.patch_size, converted.image_size) == ((4, 4), 8, 32)
    assert converted.channels == 3
    assert converted.mean == (0.48145466, 0.4578275, 0.40821073)
    assert (converted.num_classes, converted.classes) == (None, None)
    assert converted.sources["patch_embedding.projection.bias"] == ()
    assert converted.skipped["visual.proj"] == "projection to the space shared with texts"
    assert any("quick_gelu" in note for note in converted.notes)


def test_grey_weights_have_one_mean(tmp_path: Path) -> None:
    """Weights for one channel get one mean and one standard deviation."""
    converted = convert(saved(tmp_path, state_of(timm_vit(in_chans=1))), num_heads=HEADS)
    assert (converted.channels, converted.mean, converted.std) == (1, (0.5,), (0.5,))


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    """Weights in float16, such as OpenAI's, become float32."""
    tensors = {name: tensor.half() for name, tensor in state_of(timm_vit()).items()}
    converted = convert(saved(tmp_path, tensors), num_heads=HEADS)
    assert {tensor.dtype for tensor in converted.weights.values()} == {torch.float32}


def _config(folder: Path, contents: object, name: str = "config.json") -> None:
    (folder / name).write_text(json.dumps(contents), "utf-8")


def test_a_config_of_transformers_is_read(tmp_path: Path) -> None:
    """Heads, activation, epsilon, classes and pixels come from the files beside the weights."""
    published = PUBLISHED["transformers ViT"](tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    names = {"2": "cat", "10": "eel", "0": "ant", "1": "bee", "3": "dog"}
    _config(
        tmp_path, config | {"id2label": names, "layer_norm_eps": 1e-7, "hidden_act": "gelu_new"}
    )
    pixels = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    _config(tmp_path, pixels, "preprocessor_config.json")
    converted = convert(published.file)
    assert converted.settings["num_heads"] == HEADS
    assert converted.settings["activation"] == "gelu_tanh"
    assert converted.settings["norm_epsilon"] == 1e-7
    assert converted.classes == ("ant", "bee", "cat", "dog", "eel")
    assert (converted.mean, converted.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert converted.notes == ()


def test_a_hidden_layer_without_its_output_layer_is_skipped(tmp_path: Path) -> None:
    """Weights whose last layer was removed keep no half of a head."""
    hidden = {"pre_logits.fc.weight": torch.ones(DIM, DIM), "pre_logits.fc.bias": torch.ones(DIM)}
    file = saved(tmp_path, state_of(timm_vit(num_classes=0)) | hidden)
    converted = convert(file, num_heads=HEADS)
    assert (converted.settings["head"], converted.num_classes) == ("linear", None)
    assert converted.skipped.keys() == hidden.keys()
    assert not any(name.startswith("head") for name in converted.weights)


@pytest.mark.parametrize(
    ("name", "epsilon", "activation"),
    [
        ("timm", 1e-6, "gelu"),
        ("timm, norm before", 1e-5, "gelu"),
        ("transformers ViT", 1e-12, "gelu"),
        ("transformers CLIP tower", 1e-5, "quick_gelu"),
    ],
)
def test_a_layout_has_its_epsilon_and_activation(
    name: str, epsilon: float, activation: str, tmp_path: Path
) -> None:
    """Without a config, both are those of the library that wrote the file."""
    file = PUBLISHED[name](tmp_path).file
    (tmp_path / "config.json").unlink(missing_ok=True)
    settings = convert(file, num_heads=HEADS).settings
    assert (settings["norm_epsilon"], settings["activation"]) == (epsilon, activation)


def test_a_config_of_timm_is_read(tmp_path: Path) -> None:
    """The config of timm's hub gives heads, activation and pixels, so that nothing is assumed."""
    file = saved(tmp_path, state_of(timm_vit()))
    _config(
        tmp_path,
        {
            "architecture": "vit_base_patch16_clip_quickgelu_224",
            "num_features": DIM,
            "model_args": {"num_heads": HEADS},
            "label_names": ["a", "b", "c", "d", "e"],
            "pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]},
        },
    )
    converted = convert(file)
    assert converted.settings["num_heads"] == HEADS
    assert converted.settings["activation"] == "quick_gelu"
    assert converted.classes == ("a", "b", "c", "d", "e")
    assert converted.mean == (0.1, 0.2, 0.3)
    assert converted.notes == ()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architecture": "eva02_base_patch14_224"}, "eva02_base_patch14_224', which Patchline's"),
        ({"architecture": "vit_base_patch16_rope_ape_224"}, "use the model plugin timm"),
        ({"architecture": "vit_base", "global_pool": "avg"}, "pools the patches"),
        ({"hidden_size": DIM, "hidden_act": "relu"}, "activation 'relu', which Patchline's vit"),
        (None, r"config\.json beside the weights is not valid JSON"),
    ],
)
def test_a_config_of_another_model_is_refused(
    config: object, expected: str, tmp_path: Path
) -> None:
    """A function that the tensors do not show, but the config does, is never ignored.

    Neither is a config that is no JSON.
    """
    file = saved(tmp_path, state_of(timm_vit()))
    _config(tmp_path, config)
    if config is None:
        (tmp_path / "config.json").write_text("{", "utf-8")
    with pytest.raises(ConfigError, match=expected):
        convert(file, num_heads=HEADS)


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"hidden_size": 768, "hidden_act": "relu"}, "is for dimension 768, the weights have 64"),
        ({"hidden_size": DIM, "id2label": {"0": "ant", "1": "bee"}}, "2 class names beside the"),
    ],
)
def test_a_config_of_other_weights_is_ignored_with_a_note(
    config: dict[str, Any], note: str, tmp_path: Path
) -> None:
    """A config for another dimension, or names for another head, say nothing about the weights."""
    file = saved(tmp_path, state_of(timm_vit()))
    _config(tmp_path, config)
    converted = convert(file, num_heads=HEADS)
    assert (converted.settings["activation"], converted.classes) == ("gelu", None)
    assert any(note in each for each in converted.notes)


def test_the_config_of_openclip_is_read(tmp_path: Path) -> None:
    """OpenCLIP's config tells whether its towers use QuickGELU."""
    file = PUBLISHED["OpenAI CLIP"](tmp_path).file
    _config(tmp_path, {"model_cfg": {"vision_cfg": {}}}, "open_clip_config.json")
    assert convert(file, num_heads=HEADS).settings["activation"] == "gelu"


def test_images_that_are_not_square_need_the_config(tmp_path: Path) -> None:
    """Positions of a 4x8 grid are recognised from the image size in the config."""
    model = timm_vit(img_size=(32, 64))
    file = saved(tmp_path, state_of(model))
    _config(tmp_path, {"hidden_size": DIM, "image_size": [32, 64]})
    assert convert(file, num_heads=HEADS).grid == (4, 8)
