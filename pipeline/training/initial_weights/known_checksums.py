"""Recognise published weights by a checksum that their publisher states.

torchvision has the first eight digits of a file's SHA-256 in its address, and checks nothing else
after a download; so do DeiT and the first ViTs of timm (`torch.hub.load_state_dict_from_url`). The
digits in the name of a file on this machine count for nothing: whoever names it may write there
what they like. The cache of the Hugging Face hub, which timm uses too, names each file after the
checksum that the hub has stated: its SHA-256, or Git's SHA-1 for a small one. Both are known
without a network. A file that nobody on this machine knows has an unrecognised origin.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_BLOBS, _MODELS = "blobs", "models--"
_TORCH = (".pth", ".pt")
_STATED_DIGITS = 8
_STATED = {
    "a1311bcf": "deit:deit_tiny_patch16_224",
    "cd65a155": "deit:deit_small_patch16_224",
    "b5f2ef4d": "deit:deit_base_patch16_224",
    "8de9b5d1": "deit:deit_base_patch16_384",
    "b40b3cf7": "deit:deit_tiny_distilled_patch16_224",
    "649709d9": "deit:deit_small_distilled_patch16_224",
    "df68dfff": "deit:deit_base_distilled_patch16_224",
    "d0272ac0": "deit:deit_base_distilled_patch16_384",
    "80ecf9dd": "timm:vit_base_patch16_224.orig_in21k_ft_in1k",
    "83fb41ba": "timm:vit_base_patch16_384.orig_in21k_ft_in1k",
    "9b920ba8": "timm:vit_large_patch32_384.orig_in21k_ft_in1k",
}
"""The first digits of the SHA-256 in the addresses of other publishers, as timm 1.0 lists them."""


def publisher_of(file: Path, sha256: str) -> str:
    """Return the published name of a file whose content has a known checksum; else empty.

    Args:
        file: of weights.
        sha256: of its content.
    """
    if file.suffix.lower() in _TORCH:
        name = _STATED.get(sha256[:_STATED_DIGITS], "") or _stated_by_torchvision(sha256)
        if name:
            return name
    return _of_hub(file, sha256)


def _stated_by_torchvision(sha256: str) -> str:
    from torchvision.models import get_model_weights as weights_of
    from torchvision.models import list_models

    for model in list_models(include="vit_*"):
        for weights in weights_of(model):
            stated = str(weights.url).rpartition("-")[2].partition(".")[0]
            if stated and sha256.startswith(stated):
                return f"torchvision:{weights}"
    return ""


def _of_hub(file: Path, sha256: str) -> str:
    """Return the repository whose cached file this is, or has the same content as."""
    blob = file.resolve()
    if blob.parent.name == _BLOBS and blob.name in (sha256, _git_digest(blob)):
        return _repository(blob)
    for copy in hub_cache().glob(f"{_MODELS}*/{_BLOBS}/{sha256}"):
        return _repository(copy)
    return ""


def _repository(blob: Path) -> str:
    folder = blob.parent.parent.name
    owner_and_name = folder.removeprefix(_MODELS).replace("--", "/")
    return f"hf:{owner_and_name}" if folder.startswith(_MODELS) else ""


def hub_cache() -> Path:
    """Return the folder of the hub's cache, as huggingface_hub finds it."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("HF_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (Path(home).expanduser() if home else cache / "huggingface") / "hub"


def _git_digest(file: Path) -> str:
    """Return the SHA-1 by which Git names the content of a file."""
    digest = hashlib.sha1(f"blob {file.stat().st_size}\0".encode(), usedforsecurity=False)
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
