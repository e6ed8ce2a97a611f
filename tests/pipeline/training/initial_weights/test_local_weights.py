"""Weights on this machine are found by their headers: safetensors of ViTs, in the real layouts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import VisionTransformer

from patchline.pipeline.training.initial_weights import local_weights
from patchline.pipeline.training.initial_weights.local_weights import VARIABLE, WeightsSearch

Tensors = dict[str, torch.Tensor]


def search() -> WeightsSearch:
    """Return what is at hand for a model of its own."""
    return local_weights.search("own")


def tiny_vit(width: int = 32) -> Tensors:
    """Return the weights of a ViT in torchvision's layout."""
    torch.manual_seed(width)
    model = VisionTransformer(
        image_size=32, patch_size=8, num_layers=1, num_heads=2, hidden_dim=width, mlp_dim=64
    )
    return dict(model.state_dict())


def timm_vit() -> Tensors:
    """Return tensors with timm's names."""
    return {
        "cls_token": torch.zeros(1, 1, 16),
        "pos_embed": torch.zeros(1, 17, 16),
        "patch_embed.proj.weight": torch.zeros(16, 3, 8, 8),
        "blocks.0.attn.qkv.weight": torch.zeros(48, 16),
    }


def cached(home: Path, repository: str, tensors: Tensors, name: str = "model.safetensors") -> str:
    """Write a file as the cache of the hub holds it, and return its digest."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    commit = folder / "snapshots" / ("a" * 40)
    for each in (folder / "blobs", folder / "refs", commit):
        each.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "new")
    digest = hashlib.sha256((folder / "new").read_bytes()).hexdigest()
    (folder / "new").rename(folder / "blobs" / digest)
    (folder / "refs" / "main").write_text("a" * 40)
    (commit / name).symlink_to(Path("../../blobs") / digest)
    return digest


def test_vits_in_the_cache_of_the_hub_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of timm under timm's own names, the largest first, with the cache's digest."""
    assert search() == WeightsSearch()
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    small = cached(tmp_path, "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", timm_vit())
    large = cached(tmp_path, "google/vit", tiny_vit())
    found = search().weights
    assert [each.stamp for each in found] == [large, small]
    assert [each.reference for each in found] == [
        "hf:google/vit",
        "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    ]
    assert (found[1].parameters, found[1].tokens, found[1].channels) == (
        16 * (1 + 17 + 192 + 48),
        17,
        3,
    )


def test_what_is_no_vit_or_no_safetensors_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolutional network, a text model, pickles, damaged files, a download that stopped."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    cached(tmp_path, "timm/resnet", {"layer1.0.conv1.weight": torch.zeros(4, 4, 3, 3)})
    cached(tmp_path, "some/text", {"encoder.layer.0.weight": torch.zeros(4, 4)})
    cached(tmp_path, "some/pickle", timm_vit(), name="pytorch_model.bin")
    damaged = cached(tmp_path, "some/damaged", timm_vit())
    (tmp_path / "hub/models--some--damaged/blobs" / damaged).write_bytes(b"\xff" * 64)
    gone = cached(tmp_path, "some/gone", timm_vit())
    (tmp_path / "hub/models--some--gone/blobs" / gone).unlink()
    (tmp_path / "hub/models--no--reference").mkdir()
    assert search().weights == ()


def test_the_variable_names_a_file_or_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with files and folders of any depth, a file, and what is said of anything else."""
    folder = tmp_path / "weights"
    below = folder / "vit" / "snapshots" / "1"
    below.mkdir(parents=True)
    (below / "back").symlink_to(folder)
    save_file(timm_vit(), below / "model.safetensors")
    save_file(tiny_vit(), folder / "own.safetensors")
    monkeypatch.setenv(VARIABLE, str(folder))
    paths = [str(folder / "own.safetensors"), str(below / "model.safetensors")]
    assert [each.reference for each in search().weights] == paths
    monkeypatch.setenv(VARIABLE, paths[0])
    [before] = search().weights
    assert before.reference == paths[0]
    save_file(tiny_vit(48), paths[0])
    assert search().weights[0].stamp != before.stamp  # a plan with that of before is not used
    (tmp_path / "vit.pth").write_bytes(b"")
    (tmp_path / "cut.safetensors").write_bytes(Path(paths[0]).read_bytes()[:20])
    save_file({"weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    for value, words in (
        (tmp_path / "nowhere", "which does not exist"),
        (tmp_path / "vit.pth", "plans open .safetensors files only: --model.init"),
        (
            tmp_path / "cut.safetensors",
            "which PATCHLINE_WEIGHTS names, is damaged",
        ),
        (tmp_path / "other.safetensors", "holds no known Vision Transformer"),
    ):
        monkeypatch.setenv(VARIABLE, str(value))
        assert any(words in each for each in search().passed)


def test_pickles_of_torch_hub_are_named_and_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to give to start from them."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "vit_b_16-c867db91.pth").write_bytes(b"code")
    (folder / "resnet18-f37072fd.pth").write_bytes(b"code")
    there = search()
    assert there.weights == ()
    (sentence,) = there.passed
    assert "is a pickle file, which a plan does not open by itself" in sentence
    assert f"--model.init {folder / 'vit_b_16-c867db91.pth'} starts from it" in sentence


def test_masked_autoencoders_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their name, or by the decoder that the published files hold."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    cached(tmp_path, "timm/vit_base_patch16_224.mae", timm_vit())
    decoder = {"decoder_pred.weight": torch.zeros(2, 16)}
    cached(tmp_path, "facebook/vit", {**timm_vit(), **decoder})
    there = search()
    assert there.weights == ()
    assert all("is a masked autoencoder" in each for each in there.passed)
    assert len(there.passed) == 2
