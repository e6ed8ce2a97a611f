"""Published weights: by name (`timm:NAME`, `torchvision:NAME`, `hf:OWNER/NAME`), or by checksum.

torchvision has the first eight digits of a file's SHA-256 in its address, and checks nothing else
after a download; so do DeiT and the first ViTs of timm (`torch.hub.load_state_dict_from_url`). The
digits in the name of a file on this machine count for nothing: whoever names it may write there
what they like. The cache of the Hugging Face hub, which timm uses too, names each file after the
checksum that the hub has stated: its SHA-256, or Git's SHA-1 for a small one. Both are known
without a network. A file that nobody on this machine knows has an unrecognised origin.

Named weights are found in the cache of the library that they come from, and downloaded into it only
when asked, by a process of its own: everywhere else the libraries are told to stay offline.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from patchline.pipeline.errors import ConfigError, PluginError, first_line
from patchline.pipeline.models.pretrained.companion_files import COMPANION_FILES
from patchline.pipeline.training.initial_weights.recipe import split_name
from patchline.pipeline.workers.host import environment_variables

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
        file: the file of weights.
        sha256: SHA-256 of the file's content.
    """
    if file.suffix.lower() in _TORCH:
        name = _STATED.get(sha256[:_STATED_DIGITS], "") or _find_in_torchvision(sha256)
        if name:
            return name
    return _of_hub(file, sha256)


def _find_in_torchvision(sha256: str) -> str:
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


_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Files of a repository of weights, in order of preference."""
_CARD_FILE = "README.md"
"""File of a repository that states the license."""


class PublishedWeights(NamedTuple):
    """Where published weights are cached, and what to bring to a machine without network."""

    cached: Path | None
    file: str
    """Name of the file, with the place that it is published at."""
    license: str
    """License as the library states it; empty if it does not."""


class Downloaded(NamedTuple):
    """A file in a library's cache, and its license."""

    file: Path
    license: str


def file_of(reference: str, *, download: bool, setting: str = "model.init") -> Downloaded:
    """Return the file of published weights.

    Args:
        reference: the library and the name of the weights there, such as `timm:vit_tiny_patch16`.
        download: whether to download the file if it is not in the library's cache.
        setting: the setting that names the weights, for errors.

    Raises:
        ConfigError: if there are no such weights, they are not cached, or cannot be downloaded.
        OrchestrationError: if the proxy of the environment cannot be used for the download.
        PluginError: if the library is not installed.
    """
    weights = find_published(reference)
    if weights.cached is not None:
        return Downloaded(weights.cached, weights.license)
    bring = f"or bring {weights.file} to this machine and give its path"
    if not download:
        licensed = f" (license: {weights.license})" if weights.license else ""
        raise ConfigError(
            f"{setting} {reference}{licensed} has not been downloaded yet. Add --download to "
            f"allow it, {bring}."
        )
    environment_variables.check_proxy(_address_of(reference))
    answer = _download_apart(reference)
    if "error" in answer:
        raise ConfigError(
            f"{setting} {reference} could not be downloaded ({answer['error']}). Check the "
            f"network, {bring}."
        )
    return Downloaded(Path(answer["file"]), answer["license"] or weights.license)


def find_published(reference: str) -> PublishedWeights:
    """Return what is known about published weights without a network.

    Raises:
        ConfigError: if the library has no such weights.
        PluginError: if the library is not installed.
    """
    library, name = split_name(reference)
    if library == "torchvision":
        return _of_torchvision(name)
    repository, license_name = _of_timm(name) if library == "timm" else (name, "")
    license_name = license_name or _license_on_card(repository)
    cached = next((found for file in _WEIGHTS if (found := _find_cached(repository, file))), None)
    return PublishedWeights(cached, f"{_WEIGHTS[0]} of the repository {repository}", license_name)


def _of_torchvision(name: str) -> PublishedWeights:
    import torch
    from torchvision.models import get_model_weights as weights_of
    from torchvision.models import get_weight, list_models

    vits = [str(each) for model in list_models(include="vit_*") for each in weights_of(model)]
    if name not in vits:
        raise _unknown("torchvision", name, vits)
    weights = get_weight(name)
    url, license_name = str(weights.url), str(weights.meta.get("license", ""))
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    return PublishedWeights(file if file.is_file() else None, f"{file.name} ({url})", license_name)


def _of_timm(name: str) -> tuple[str, str]:
    timm = _library("timm", "timm")
    try:
        config = timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:  # a tag that this model does not have
        tagged = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        raise _unknown("timm", name, tagged or timm.list_pretrained("*vit*")) from error
    if config is None or not config.hf_hub_id:
        raise _unknown("timm", name, timm.list_pretrained("*vit*"))
    return str(config.hf_hub_id), str(config.license or "")


def _license_on_card(repository: str) -> str:
    """Return the license that the cached card of a repository states; empty if none does."""
    file = _find_cached(repository, _CARD_FILE)
    text = file.read_text(encoding="utf-8", errors="replace") if file else ""
    if not text.startswith("---"):
        return ""
    try:
        facts = yaml.safe_load(text.split("---")[1])
    except yaml.YAMLError:
        return ""
    facts = facts if isinstance(facts, dict) else {}
    return str(facts.get("license_name") or facts.get("license") or "")


def _find_cached(repository: str, file: str) -> Path | None:
    hub = _library("huggingface_hub", "hf")
    try:
        cached = hub.try_to_load_from_cache(repository, file)
    except ValueError as error:  # not a valid name of a repository
        reason = first_line(error)
        raise ConfigError(
            f"model.init hf:{repository} does not name a repository ({reason}). Write "
            "hf:OWNER/NAME."
        ) from error
    return Path(cached) if isinstance(cached, str) else None


def _library(module: str, prefix: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PluginError(
            f"model.init {prefix}:… needs the package {module}, which is not installed. Install it "
            "with: pip install 'patchline[timm]'"
        ) from error


def _unknown(library: str, name: str, names: list[str]) -> ConfigError:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
    hint = f" Did you mean {' or '.join(close)}?" if close else f" Try {names[0]}."
    return ConfigError(f"{library} has no pre-trained ViT '{name}'.{hint}")


# -- downloading -----------------------------------------------------------------------------------


def _address_of(reference: str) -> str:
    """Return the address that published weights are downloaded from."""
    library, name = split_name(reference)
    if library == "torchvision":
        from torchvision.models import get_weight

        return str(get_weight(name).url)
    from huggingface_hub.constants import ENDPOINT

    return os.environ.get("HF_ENDPOINT") or str(ENDPOINT)


def _download_apart(reference: str) -> dict[str, str]:
    """Download in a process that may use the network; its progress bar is on the terminal."""
    command = [sys.executable, "-P", "-m", __name__, reference]
    environment = {**os.environ, "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"the download exited with code {done.returncode}"}
    return answer


def _download(reference: str) -> dict[str, str]:
    """Download the file, and what says more about it, into the library's cache."""
    library, name = split_name(reference)
    if library == "torchvision":
        import torch
        from torchvision.models import get_weight

        _announce(reference, _of_torchvision(name).license)
        torch.hub.load_state_dict_from_url(
            get_weight(name).url, check_hash=True, map_location="cpu", weights_only=True
        )
        download = _of_torchvision(name)
        return {"file": str(download.cached), "license": download.license}
    repository, license_name = _of_timm(name) if library == "timm" else (name, "")
    hub = _library("huggingface_hub", "hf")
    card = hub.model_info(repository)
    there = {each.rfilename for each in card.siblings}
    file = next((each for each in _WEIGHTS if each in there), None)
    if file is None:
        return {"error": f"the repository {repository} has none of {', '.join(_WEIGHTS)}"}
    stated = (card.card_data or {}).get("license") or license_name
    _announce(reference, str(stated or ""))
    for companion in (*COMPANION_FILES, _CARD_FILE):
        if companion in there:
            hub.hf_hub_download(repository, companion)
    return {"file": hub.hf_hub_download(repository, file), "license": str(stated or "")}


def _announce(reference: str, license_name: str) -> None:
    """Name the license on the terminal, above the progress bar."""
    stated = license_name or "not stated by the library"
    sys.stderr.write(f"downloading {reference}; license: {stated}\n")
    sys.stderr.flush()


def _main(reference: str) -> None:
    try:
        answer = _download(reference)
    except Exception as error:  # noqa: BLE001 - the libraries' errors have no common class
        answer = {"error": first_line(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1])
