"""A data set of torchvision, by the name of its class: `torchvision:CIFAR10`.

Its files are those that torchvision keeps below a root folder: `data`, or the folder in front of
the name, as in `torchvision:/datasets/CIFAR10`. They are downloaded only if asked for. The images
are copied once, without loss, into a zip archive in the workspace, which is read like any other.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from patchline.plugin_api import (
    DataError,
    DataSourcePlugin,
    ImageListing,
    ListedImage,
    PluginConfig,
    SourceContext,
    Split,
    made_once,
    open_archive,
)

_TRAIN_AND_TEST: tuple[str, ...] = ("train", "test")
_ALL_SPLITS: tuple[str, ...] = ("train", "val", "test")
_BY_FLAG = ("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST", "QMNIST", "USPS")
"""Their class takes `train=True` or `train=False`."""
_BY_SPLIT = {
    "Country211": ("train", "valid", "test"),
    "DTD": _ALL_SPLITS,
    "FGVCAircraft": _ALL_SPLITS,
    "Flowers102": _ALL_SPLITS,
    "Food101": _TRAIN_AND_TEST,
    "GTSRB": _TRAIN_AND_TEST,
    "Imagenette": ("train", "val"),
    "OxfordIIITPet": ("trainval", "test"),
    "PCAM": _ALL_SPLITS,
    "RenderedSST2": _ALL_SPLITS,
    "STL10": _TRAIN_AND_TEST,
    "SVHN": _TRAIN_AND_TEST,
    "StanfordCars": _TRAIN_AND_TEST,
}
"""Their class takes `split=` with one of these names."""
_WITHOUT_SPLITS = ("Caltech101", "Caltech256", "EuroSAT", "SUN397")
NAMES = tuple(sorted([*_BY_FLAG, *_BY_SPLIT, *_WITHOUT_SPLITS]))
"""The data sets that can be read, which have one class for each image; there are others."""
_MEANT: dict[str, Split] = {
    "train": "train",
    "trainval": "train",
    "val": "validation",
    "valid": "validation",
    "test": "test",
}
_NOT_SYMMETRIC = {"GTSRB", "KMNIST", "MNIST", "QMNIST", "RenderedSST2", "SVHN", "USPS"}
"""Text and signs: mirrored, they mean something else or nothing."""
_ROOT = "data"
_SAMPLED = 50
"""About how many images of a part tell its files from others of the same number."""


class TorchvisionDataConfig(PluginConfig):
    """Settings of the data set."""

    download: bool = False
    """Whether to download files that are not there."""


class _SplitDataset(NamedTuple):
    """A data set object for one split."""

    folder: str
    """The split as torchvision calls it; empty if there are none."""
    content: Any


class TorchvisionData:
    """List the images of a data set of torchvision."""

    def __init__(self, config: TorchvisionDataConfig, context: SourceContext) -> None:
        self.config, self.work_dir = config, context.work_dir
        given = Path(context.path or "").expanduser()
        self.name, self.root = given.name, given.parent if given.parent.name else Path(_ROOT)
        if self.name not in NAMES:
            plain = {name.lower(): name for name in NAMES}
            close = difflib.get_close_matches(self.name.lower().replace("-", ""), plain, n=1)
            hint = f" Did you mean torchvision:{plain[close[0]]}?" if close else ""
            raise DataError(
                f"torchvision:{self.name} is not among the data sets that can be read.{hint} "
                f"Choose one of {', '.join(NAMES)}."
            )

    def list_images(self) -> ImageListing:
        """Return all images of all splits; raise `DataError` if their files are not there."""
        parts = list(self._parts())
        file = made_once(
            self.work_dir / f"{self.name}-{self._key(parts)}.zip", lambda to: _write(parts, to)
        )
        return ImageListing(
            name=self.name.lower(),
            root=file,
            images=[_as_listed_image(path) for path in open_archive(file).paths],
            mirror_symmetric=False if self.name in _NOT_SYMMETRIC else None,
        )

    def _parts(self) -> Iterator[_SplitDataset]:
        if self.name in _BY_FLAG:
            for name in _TRAIN_AND_TEST:
                yield _SplitDataset(name, self._opened(train=name == "train"))
        elif self.name in _BY_SPLIT:
            for name in _BY_SPLIT[self.name]:
                yield _SplitDataset(name, self._opened(split=name))
        else:
            yield _SplitDataset("", self._opened())

    def _opened(self, **split: Any) -> Any:
        from torchvision import datasets

        root = self.root
        try:
            return getattr(datasets, self.name)(str(root), download=self.config.download, **split)
        except ModuleNotFoundError as error:
            raise DataError(
                f"torchvision:{self.name} needs the package {error.name}. Install it with `pip "
                f"install {error.name}`."
            ) from error
        except Exception as error:  # torchvision raises many types for missing or damaged files
            if self.config.download:
                reason = " ".join(str(error).split())[:200]
                raise DataError(
                    f"torchvision:{self.name} cannot be downloaded to {root} ({reason}). Connect "
                    f"to a network, or put the files that torchvision expects into {root}."
                ) from error
            raise DataError(
                f"torchvision:{self.name} has no complete files in {root}. Put the folder that "
                f"has them in front of the name, as in torchvision:/datasets/{self.name}, or add "
                "--data.download to download them."
            ) from error

    def _key(self, parts: list[_SplitDataset]) -> str:
        contents = [(part.folder, len(part.content), _sample(part.content)) for part in parts]
        facts = [self.name, str(self.root.resolve()), *contents]
        return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _sample(content: Any) -> str:
    """Return a digest of some images and labels, which other files of the same number change."""
    digest = hashlib.sha256()
    for number in range(0, len(content), max(1, len(content) // _SAMPLED)):
        image, label = content[number]
        digest.update(f"{image.size} {image.mode} {label}\0".encode() + image.tobytes())
    return digest.hexdigest()


def _write(parts: list[_SplitDataset], to: Path) -> None:
    """Write every image as a PNG file, in a folder of its split and its class."""
    with zipfile.ZipFile(to, "w", zipfile.ZIP_STORED) as archive:
        for folder, content in parts:
            names = _class_names(content)
            for number in range(len(content)):
                image, label = content[number]
                encoded = io.BytesIO()
                image.save(encoded, "PNG", compress_level=1)
                top = f"{folder}/" if folder else ""
                path = f"{top}{names.get(label, str(label))}/{number:06d}.png"
                archive.writestr(path, encoded.getvalue())


def _class_names(content: Any) -> dict[int, str]:
    """Return the names of the classes by number, as folders can be called."""
    names = getattr(content, "classes", None) or getattr(content, "categories", None) or []
    plain = [
        "-".join(str(name[0] if isinstance(name, tuple) else name).replace("\\", "/").split("/"))
        for name in names
    ]
    return dict(enumerate(plain)) if len(set(plain)) == len(plain) else {}


def _as_listed_image(path: str) -> ListedImage:
    split, _, rest = path.partition("/")
    label, slash, _ = rest.partition("/")
    if not slash:
        return ListedImage(path, split)
    return ListedImage(path, label, _MEANT[split])


def _write_example(folder: Path) -> str:
    """Write images of two classes in the format of MNIST, and return what names them."""
    import numpy as np

    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True)
    labels_N = np.arange(6, dtype=np.uint8) % 2
    images_NHW = np.arange(6 * 28 * 28, dtype=np.uint32).reshape(6, 28, 28).astype(np.uint8)
    for split, images in (("train", images_NHW), ("t10k", 255 - images_NHW)):
        for kind, content in (("images-idx3", images), ("labels-idx1", labels_N)):
            header = bytes([0, 0, 8, content.ndim]) + np.array(content.shape, ">i4").tobytes()
            (raw / f"{split}-{kind}-ubyte").write_bytes(header + content.tobytes())
    return str(folder / "MNIST")


plugin = DataSourcePlugin(
    summary="A data set of torchvision, such as CIFAR10, from its files",
    paper="",
    config_class=TorchvisionDataConfig,
    build=TorchvisionData,
    example=_write_example,
)
