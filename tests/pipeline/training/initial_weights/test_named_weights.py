"""Published weights by name: from a cache, from a server when asked, or else a sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torchvision.models import get_model_weights

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.initial_weights.finding import find
from patchline.pipeline.training.initial_weights.named_weights import _STATED, file_of, publisher_of
from patchline.pipeline.training.initial_weights.record import load_record, weights_folder
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint
from tests.pipeline.training.initial_weights.test_finding import written

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve one repository as a model hub does, and return the paths that were asked for."""
    weights = written(tmp_path / "published.safetensors").read_bytes()
    files = {"model.safetensors": weights, "config.json": json.dumps({"num_heads": 4}).encode()}
    files["README.md"] = b"---\nlicense: mit\n---\n# A small ViT\n"
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            asked.append(self.path)
            content = files.get(self.path.rpartition("/")[2])
            if self.path.startswith("/api/models/"):
                siblings = [{"rfilename": name} for name in files]
                card = {"id": "some/vit", "siblings": siblings, "cardData": {"license": "mit"}}
                content = json.dumps(card).encode()
            self.send_response(404 if content is None or "some/vit" not in self.path else 200)
            content = content or b""
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    yield asked
    server.shutdown()
    server.server_close()


def test_weights_are_downloaded_only_when_asked(
    hub: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """First a sentence and no request; then a file in the usual cache, which is used again.

    The license is named before the download, and follows the file under any name.
    """
    with pytest.raises(ConfigError, match=r"Add --download to allow it, or bring model\.safetens"):
        find("hf:some/vit", tmp_path / "work", "x", num_heads=4)
    assert hub == []
    capfd.readouterr()
    found = find("hf:some/vit", tmp_path / "work", "x", num_heads=4, download=True)
    assert found is not None
    assert found.reference == found.origin == "hf:some/vit"
    assert found.settings["embed_dim"] == 64
    assert "downloading hf:some/vit; license: mit\n" in capfd.readouterr().err
    assert "The license of hf:some/vit is mit." in found.notes
    requests = len(hub)
    assert requests > 0
    again = find("hf:some/vit", tmp_path / "work", "x", num_heads=4)
    assert again is not None
    assert again == found
    assert (tmp_path / "cache").is_dir()

    shutil.rmtree(folder := weights_folder(tmp_path / "work", found.sha256))
    find("hf:some/vit", tmp_path / "work", "x", num_heads=4)
    assert load_record(folder).license == "mit"  # of the cached card
    assert len(hub) == requests
    assert load_record(folder).provenance.state == "upstream corpus unknown"
    [published] = load_record(folder).provenance.published
    assert (published.name, published.sha256) == ("hf:some/vit", found.sha256)
    copied = find(str(tmp_path / "published.safetensors"), tmp_path / "work", "x", num_heads=4)
    assert copied is not None
    assert copied.provenance == found.provenance
    shutil.rmtree(tmp_path / "cache")  # the workspace remembers what the hub has stated
    start = StartingPoint(config=RunConfig(), weights=copied)
    assert start.tags()["patchline.initial_weights_license"] == "mit"


@pytest.mark.usefixtures("hub")
def test_a_file_that_nobody_has_published_is_unknown(tmp_path: Path) -> None:
    """Whatever its name or its place: the content decides, against what the hub has stated.

    A file in the cache that somebody has changed is none that was published under that name.
    """
    workspace = tmp_path / "work"
    fine = find("hf:some/vit", workspace, "x", num_heads=4, download=True)
    assert fine is not None
    other = written(tmp_path / "model.safetensors", seed=3)
    [blob] = (tmp_path / "cache").glob(f"models--some--vit/blobs/{fine.sha256}")
    blob.write_bytes(other.read_bytes())
    for reference in ("hf:some/vit", str(other)):
        found = find(reference, workspace, "x", num_heads=4)
        assert found is not None
        assert found.provenance.state == "unknown"
    assert found is not None
    assert "the checksum of hf:some/vit in the cache" in found.provenance.unknown[0]
    elsewhere = find(str(other), tmp_path / "new", "x", num_heads=4)
    assert elsewhere is not None
    assert "model.safetensors (SHA-256 " in elsewhere.provenance.unknown[0]
    assert "is a file of unrecognised origin" in elsewhere.provenance.unknown[0]


def test_publishers_state_the_first_digits(tmp_path: Path) -> None:
    """They are in the address of each file, so a copy under another name is recognised.

    The table is that of timm; digits in the name of a file of one's own are no statement.
    """
    [digits] = [
        str(each.url).rpartition("-")[2].partition(".")[0]
        for each in get_model_weights("vit_b_16")
        if each.name == "IMAGENET1K_V1"
    ]
    file = tmp_path / "mine.pth"
    name = "torchvision:ViT_B_16_Weights.IMAGENET1K_V1"
    assert publisher_of(file, digits.ljust(64, "0")) == name
    names = timm.list_models(["vit_base*", "vit_large*", "deit_*"], pretrained=True)
    addresses = [str(timm.models.get_pretrained_cfg(each).to_dict()["url"]) for each in names]
    for stated, name in _STATED.items():
        assert any(each.endswith(f"-{stated}.pth") for each in addresses), name
        assert publisher_of(file, stated.ljust(64, "0")) == name
    own = "0123456789abcdef" * 4
    assert publisher_of(tmp_path / f"deit_tiny_patch16_224-{own[:8]}.pth", own) == ""


def test_a_failed_download_is_a_sentence(hub: list[str]) -> None:
    """A repository that is not there is named with the file to bring instead."""
    with pytest.raises(ConfigError, match=r"could not be downloaded \(.*or bring model") as caught:
        file_of("hf:nobody/nothing", download=True)
    assert "\n" not in str(caught.value)
    assert hub


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (
            "timm:vit_tinny_patch16_224",
            r"no pre-trained ViT 'vit_tinny\S+'\. Did you mean vit_tiny",
        ),
        ("torchvision:ViT_B_17", "Did you mean ViT_"),
        ("hf:a/b/c", "does not name a repository"),
    ],
)
def test_an_unknown_name_is_a_sentence(reference: str, words: str) -> None:
    """The nearest names are suggested."""
    with pytest.raises(ConfigError, match=words) as caught:
        file_of(reference, download=False)
    assert "\n" not in str(caught.value)


def test_cached_files_of_torchvision_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch.hub has stored is used; what it has not is named with its address."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    name = "torchvision:ViT_B_16_Weights.IMAGENET1K_V1"
    with pytest.raises(ConfigError, match=r"bring vit_b_16-c867db91\.pth \(https://"):
        file_of(name, download=False)
    file = tmp_path / "checkpoints" / "vit_b_16-c867db91.pth"
    file.parent.mkdir()
    file.write_bytes(b"weights")
    assert file_of(name, download=False).file == file
    config: Any = timm.models.get_pretrained_cfg("vit_tiny_patch16_224")
    with pytest.raises(ConfigError, match=config.hf_hub_id):
        file_of("timm:vit_tiny_patch16_224", download=False)
