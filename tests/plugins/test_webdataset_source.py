"""WebDataset shards: samples in tar files, read in place, one or many."""

from __future__ import annotations

import io
import json
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.workspace.files.data_kinds import data_kind
from patchline.plugin_api import ImageListing
from tests.conftest import write_photos
from tests.plugins import listings
from tests.plugins.listings import ingested, two_classes

Members = dict[str, bytes]
listed = partial(listings.listed, source="webdataset")
refused = partial(listings.refused, source="webdataset")


def shard_of(name: Path | str, members: Members, mode: str = "w") -> Path:
    """Write a shard."""
    file = Path.cwd() / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]  # a mode
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file


def samples(photos: Path, *, label: str = "cls") -> Members:
    """Return the members of the images of a folder of class folders."""
    members: Members = {}
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        name = file.parent.name
        text = json.dumps({"label": name, "site": number % 4}) if label == "json" else name
        members[f"{name}-{number}.png"] = file.read_bytes()
        members[f"{name}-{number}.{label}"] = text.encode()
    return members


def contents(listing: ImageListing) -> set[tuple[str, bytes]]:
    """Return label and content of each image."""
    found = set()
    for image in listing.images:
        with root_image_bytes(listing.root, image.path) as data:
            found.add((image.label, bytes(data)))
    return found


@pytest.mark.parametrize(
    "names",
    [
        ("flowers-train-00.tar", "flowers_test.0.tar"),
        ("train/0.tgz", "test/0.tgz"),
    ],
)
def test_shards_are_read_as_the_same_images_in_folders(names: tuple[str, str]) -> None:
    """Splits by the shards' names or folders, also if compressed; every byte is the same."""
    folders = [write_photos(Path(f"photos{n}"), classes=2, images=4 + n) for n in range(2)]
    mode = "w:gz" if names[0].endswith("gz") else "w"
    for folder, name in zip(folders, names, strict=True):
        shard_of(Path("shards") / name, samples(folder), mode)
    assert data_kind("shards") == "shards"
    found = listed("shards")
    assert contents(found) == {
        (file.parent.name, file.read_bytes()) for each in folders for file in each.rglob("*.png")
    }
    assert sorted({image.split for image in found.images if image.split}) == ["test", "train"]
    assert found.name == "shards"
    assert found.notes == ["shards: splits by the names of the shards"]


def test_a_field_of_the_json_members_tells_the_splits_if_the_shards_do_not(tmp_path: Path) -> None:
    """It is said where the splits come from; names of shards go first; other values are asked."""
    photos = two_classes(4)
    for name, values in (("a", ("train", "val")), ("test", ("train", "val")), ("b", ("x", "y"))):
        members = samples(photos, label="json")
        for number, key in enumerate(key for key in members if key.endswith("json")):
            fields = {**json.loads(members[key]), "split": values[number % 2]}
            members[key] = json.dumps(fields).encode()
        shard_of(tmp_path / name / f"{name}-train-0.tar", members)
    refused(r"holds 'x' and 'y' in 8 of 8 rows\. .*column none", "b")
    chosen: dict[str, dict[str, Any]] = {"a": {}, "test": {}, "b": {"split_column": "none"}}
    found = [listed(tmp_path / name, **own) for name, own in chosen.items()]
    splits = [{image.split for image in each.images} for each in found]
    assert splits == [{"train", "validation"}, {"test"}, {None}]
    assert [each.notes[-1].partition(": ")[2] for each in found] == [
        "splits from 'split' (--data.split-column chooses another)",
        "splits by the names of the shards",
        "labels from 'label' (--data.label-column chooses another)",
    ]
    assert set(found[2].columns["split"]) == {"x", "y"}


def test_a_single_shard_and_a_further_one() -> None:
    """Labels in JSON with a group; images that were there keep their path and split."""
    photos = [write_photos(Path(f"photos{n}"), classes=2, images=6 + n) for n in range(2)]
    first = shard_of("shards/00.tar", samples(photos[0], label="json"))
    assert RunConfig.model_validate({"data": {"path": str(first)}}).data.source == "webdataset"
    group = {"group_column": "site"}
    before = ingested("shards", "work", accept=["leakage"], **group)
    shard_of("shards/01.tar", samples(photos[1], label="json"))
    after = ingested("shards", "work", accept=["leakage"], **group)
    old, new = (manifests.load(each.manifest_file) for each in (before, after))
    assert (old["path"].str.startswith("00.tar/")).all()
    splits = dict(zip(new["path"], new["split"], strict=True))
    assert all(splits[path] == split for path, split in zip(old["path"], old["split"], strict=True))
    assert (len(new), set(new["group"])) == (len(old) + 14, {"0", "1", "2", "3"})


def test_class_numbers_get_the_names_beside_the_shards() -> None:
    """From `classnames.txt`; too few lines are an error, and without the file numbers stay."""
    members = {f"{n}.{kind}": str(n).encode() for n in range(3) for kind in ("png", "cls")}
    shard = shard_of("one.tar", members)
    names = Path("classnames.txt")
    for classes in (["0", "1", "2"], ["oak", "ash", "elm"]):
        assert [image.label for image in listed(shard).images] == classes
        names.write_text("oak\nash\nelm\n", encoding="utf-8")
    names.write_text("oak\nash\noak\n", encoding="utf-8")
    refused("has the name 'oak' in the lines 1 and 3", shard)
    names.write_text("oak\n", encoding="utf-8")
    refused(r"classnames\.txt has 1 lines, but .* class 2\. Write", shard)


def test_several_images_of_a_sample_have_to_be_chosen() -> None:
    """The error names them; the one that is chosen is listed."""
    members = {"1.jpg": b"a", "1.mask.png": b"b", "1.cls": b"x", "2.jpg": b"c", "2.cls": b"y"}
    shard = shard_of("one.tar", members)
    refused(r"not obvious.*mask\.png.*--data\.image-column", shard)
    assert contents(listed(shard, image_column="jpg")) == {("x", b"a"), ("y", b"c")}
    masks = listed(shard, image_column="mask.png")
    assert contents(masks) == {("x", b"b")}
    assert [each.path for each in masks.left_out] == ["one.tar/2"]


def test_what_is_not_a_labelled_sample_is_left_out_and_named() -> None:
    """A sample without an image or a label, a link and a path that leads outside."""
    members = {"1.jpg": b"a", "1.cls": b"x", "2.jpg": b"b", "3.cls": b"y", "../4.jpg": b"d",
               "3.json": b'{"image": "3.jpg"}'}  # fmt: skip
    shard = shard_of("one.tar", members)
    link = tarfile.TarInfo("5.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(shard, "a") as archive:
        archive.addfile(link)
    found = listed(shard)
    assert [image.path for image in found.images] == ["one.tar/1.jpg"]
    assert {each.path: each.reason for each in found.left_out} == {
        "one.tar/2.jpg": "has no label",
        "one.tar/3": "the sample has no image",
        "one.tar/../4.jpg": "its path leads outside the archive",
        "one.tar/5.jpg": "is a link; links in archives are not followed",
    }
    unlabelled = listed(shard, labelled=False)
    assert {image.path for image in unlabelled.images} == {"one.tar/1.jpg", "one.tar/2.jpg"}


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        ("json", b"[" * 100_000, "its json is not valid"),
        ("json", b'{"cls": ' + b"9" * 5000 + b"}", "its json is not valid"),
        ("cls", b"\xff\xfe\xfa", "its cls is not UTF-8 text"),
        ("cls", b"x" * (1 << 21), "its cls has 2,097,152 bytes, and at most 1,048,576 are read"),
    ],
)
def test_a_sample_whose_label_cannot_be_read_is_left_out_and_named(
    kind: str, content: bytes, reason: str
) -> None:
    """The other samples are used; without others, the error says why."""
    broken = {"1.jpg": b"a", f"1.{kind}": content}
    found = listed(shard_of("one.tar", broken | {"2.jpg": b"b", "2.cls": b"x"}))
    assert [image.path for image in found.images] == ["one.tar/2.jpg"]
    [left_out] = found.left_out
    assert left_out.path == "one.tar/1.jpg"
    assert left_out.reason.startswith(reason)
    refused(
        rf"has a label in 'cls', such as .*two\.tar/1\.jpg \({reason}", shard_of("two.tar", broken)
    )


def test_shards_that_are_damaged_or_do_not_go_together_are_refused() -> None:
    """A truncated shard, one without a split among others with one, and shards that were joined."""
    photos = two_classes(3)
    first = shard_of("shards/train-0.tar", samples(photos))
    second = shard_of("shards/more-0.tar", samples(photos))
    refused(r"train-0\.tar in .* split, but more-0\.tar is not", "shards")
    second.unlink()
    first.write_bytes(first.read_bytes()[:-5000])
    refused(r"train-0\.tar is damaged", "shards")
    joined = shard_of("joined/0.tar", {"0001.png": b"a", "0001.cls": b"a"})
    shard_of(joined, {"0001.png": b"b", "0001.cls": b"b"}, "a")
    refused(r"shard 0\.tar of .* 2 members twice, such as 0001\.png", joined.parent)


def test_archives_of_class_folders_stay_archives() -> None:
    """Tar files that hold no samples are not shards, alone or in a folder."""
    photos = two_classes(2)
    place = Path("place")
    members = {f"{f.parent.name}/{f.name}": f.read_bytes() for f in photos.rglob("*.png")}
    assert data_kind(str(shard_of(place / "photos.tar", members))) == "archive"
    assert data_kind(str(place)) == "folder"
    refused(r"holds no WebDataset shards\. Give tar files", place)


def test_rules_for_files_and_folders_apply_to_the_members_of_shards() -> None:
    """Ignored folders and shards are skipped and said, and folders in a shard may be the classes.

    The name of a shard is no folder, so it never becomes a class.
    """
    photos = two_classes(4)
    members: Members = {}
    for name, data in samples(photos).items():
        number = int(name.partition("-")[2].partition(".")[0])
        members[f"site{number % 2}/sub/{name}"] = data
        members[f"site{number % 2}/drafts/{name}"] = data
        members[f"@eaDir/{name}"] = data
    place = Path("shards")
    for number in range(2):
        shard_of(place / f"{number:06d}.tar", members)

    found = listed(place, ignore=("default", "drafts/", "000001.tar"))
    assert len(found.images) == 8
    assert set(found.ignored) == {
        "000001.tar",
        *(f"000000.tar/{each}/" for each in ("@eaDir", "site0/drafts", "site1/drafts")),
    }
    assert any("3 folders and 1 file are skipped by data.ignore" in each for each in found.notes)
    for label, classes in (
        ("top", {"site0", "site1"}),
        ("leaf", {"sub", "drafts"}),
        ("{shard}/{site}/sub/{label}-*.png", {"across", "down"}),
    ):
        assert {image.label for image in listed(place, label=label).images} == classes
    refused(r"data\.ignore skips all shards", place, ignore=("*.tar",))
