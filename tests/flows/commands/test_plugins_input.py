"""What `patchline plugins show`, `check` and `new` refuse, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made.servers import Command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("show vit --model.sise b", ["--model.sise", "--model.size"]),
        ("show vit --model.depth 0", ["model.depth", "0", "from 1 to 256"]),
        ("show vit --model.patch-embedding.patch-size 5 --data.image-size 32",
         ["patch_size 5", "32x32", "data.image_size"]),
        ("show timm --model.patch-embedding.name none --data.image-size 0",
         ["data.image_size", "from 4 to 1024"]),
        ("show vit --model.name simple_vit", ["model.name", "simple_vit", "vit"]),
        ("show cct", ["'cct'", "a model and a patch_embedding", "Add the kind before the name"]),
        ("show conv --model.name torchvision", ["conv", "torchvision", "no patch embedding"]),
        ("show model torchvision --model.architecture resnet19", ["resnet19", "resnet18"]),
        ("show", ["[KIND] NAME"]),
        ("show schedule cosin", ["There is no schedule 'cosin'", "cosine", "wsd"]),
        ("show vit --picture a.png", ["--picture", "vit", "model"]),
        ("show conv --photo a.png", ["--photo", "--picture"]),
        ("show conv --photo none.png --picture a.png", ["none.png", "cannot be read"]),
        ("check", ["Name one plugin: [KIND] NAME.", "`patchline plugins list`"]),
        ("check model linear", ["There is no model plugin 'linear'.", "Installed: cct,"]),
        ("check conv_stem --model.patch-embedding.norm layer",
         ["model.patch_embedding.norm is 'layer'", "'batch' or 'group'"]),
        ("check linear --model.patch-embedding.patch-size 5", ["patch_size 5 does not divide"]),
        ("check none --training.epochs 3", ["--training.epochs"]),
        ("check mine --plugin mine.py", ["mine.py does not exist"]),
        # A switch would be on whatever the word behind it says.
        ("check image_folder --data.options.mirror-symmetric false", ["false"]),
        ("new patch_embeding my_stem", ["Did you mean 'patch_embedding'?"]),
        ("new model vit", ["The model plugin 'vit' already exists"]),
        ("new model mine --into none", ["There is no folder none"]),
        ("new model mine --into file", ["file is not a folder"]),
        ("new model mine --into full", ["full/patchline-mine already exists"]),
        ("new model", ["NAME"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_answered_in_a_sentence(
    run_here: Command, tmp_path: Path, arguments: str, words: list[str]
) -> None:
    """Value, rule and remedy; nothing else is printed, and nothing is written."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "full/patchline-mine").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run_here("plugins", *arguments.split())
    assert (code, out) == (2, ""), err
    [sentence] = err.splitlines()
    assert sentence.startswith("Error: ")
    assert sentence.endswith((".", "?"))
    for word in words:
        assert word in sentence
    for wrong in ("Unexpected", "Did you mean --data?"):  # there is no such flag
        assert wrong not in sentence
    assert sorted(tmp_path.rglob("*")) == before
