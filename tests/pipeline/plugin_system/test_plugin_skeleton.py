"""A written plugin package is tidy, installs, and works in the way of its kind."""

from __future__ import annotations

import ast
import errno
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError, DataError, StorageError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import KINDS, Kind
from patchline.pipeline.plugin_system.plugin_skeleton import WrittenPackage, write_package
from patchline.plugin_api import (
    AugmentationContext,
    DataTraits,
    ImageSpec,
    ModelContext,
    PatchEmbeddingContext,
    SourceContext,
)
from patchline.plugins.patch_embeddings import conv

ROOT = Path(__file__).resolve().parents[3]
TRAITS = DataTraits(channels=3, height=24, width=24, num_classes=5, mirror_symmetric=True)
Packages = dict[str, WrittenPackage]


def _run(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Return one written package of each kind."""
    folder = tmp_path_factory.mktemp("written")
    return {kind: write_package(kind, f"new_{kind}", folder) for kind in KINDS}


@pytest.fixture(scope="module")
def site(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip has installed the packages, without a network."""
    folder = tmp_path_factory.mktemp("site")
    sources = [written.folder for written in packages.values()]
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    _run("pip", "install", *options, "--target", folder, *sources, cwd=folder)
    return folder


@pytest.fixture
def loaded(site: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that loads the installed plugin of a kind, as Patchline does."""
    monkeypatch.syspath_prepend(site)
    return lambda kind: plugin_loader.load(kind, f"new_{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_those_that_are_named(kind: Kind, packages: Packages) -> None:
    """The answer lists every file of the package and no other; Python can read each."""
    written = packages[kind]
    found = {
        file.relative_to(written.folder).as_posix()
        for file in written.folder.rglob("*")
        if file.is_file() and "egg-info" not in str(file) and "build/" not in str(file)
    }
    module = {f"patchline_new_{kind}/module.py"} if kind == "patch_embedding" else set()
    assert found == set(written.files)
    assert found == module | {
        "pyproject.toml",
        "README.md",
        f"patchline_new_{kind}/__init__.py",
        f"patchline_new_{kind}/plugin.py",
        "tests/__init__.py",
        f"tests/test_new_{kind}.py",
    }
    for name in found:
        text = (written.folder / name).read_text("utf-8")
        assert "$" not in text, name
        if name.endswith(".py"):
            assert ast.get_docstring(ast.parse(text)), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_tidy(kind: Kind, tmp_path: Path) -> None:
    """The linter and the formatter find nothing, however long the name is."""
    options: list[str | Path] = ["--no-cache", "--config", ROOT / "pyproject.toml"]
    for letters in (1, 40):
        written = write_package(kind, "x" * letters, tmp_path)
        for command in (["check"], ["format", "--check"]):
            _run("ruff", *command, *options, ".", cwd=written.folder)


@pytest.mark.slow
def test_the_types_are_right(packages: Packages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict mypy finds nothing in the plugins and their tests."""
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    config = ROOT / "pyproject.toml"
    options: list[str | Path] = ["--config-file", config, "--cache-dir", "../.types"]
    for written in packages.values():
        _run("mypy", *options, f"patchline_{written.name}", "tests", cwd=written.folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dependency_is_what_the_files_import(kind: Kind, packages: Packages) -> None:
    """The package depends on exactly what its plugin and module import, but for its test."""
    distributions = {"PIL": "pillow"}
    written = packages[kind]
    imported: set[str] = set()
    for file in written.folder.glob("*/*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
    others = imported - sys.stdlib_module_names - {f"patchline_{written.name}", "pytest"}
    project = tomllib.loads((written.folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["dependencies"] == sorted(distributions.get(name, name) for name in others)
    assert project["requires-python"] == ">=3.11"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(kind: Kind, packages: Packages, site: Path) -> None:
    """The test file of the package passes, contract and all, where the package is installed."""
    written = packages[kind]
    program = f"import sys, pytest; sys.path.insert(0, {str(site)!r}); sys.exit(pytest.main())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=written.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_entry_point_is_the_plugin(kind: Kind, site: Path, loaded: Any) -> None:
    """Once installed, the package has one entry point, in the group of its kind."""
    name = f"patchline-new-{kind.replace('_', '-')}"
    [distribution] = metadata.distributions(name=name, path=[str(site)])
    [point] = distribution.entry_points
    assert (point.group, point.name) == (f"patchline.{kind}s", f"new_{kind}")
    assert point.value == f"patchline_new_{kind}.plugin:plugin"
    plugin = loaded(kind)
    entry = plugin_loader.find(kind, f"new_{kind}")
    assert (entry.distribution, entry.error) == (name, None)
    assert entry.summary == plugin.summary
    assert plugin.config_class() == plugin.config_class().resolved_for(TRAITS)


def test_importing_the_plugins_is_light(site: Path) -> None:
    """The modules of the plugin objects import neither torch nor albumentations."""
    modules = ", ".join(f"patchline_new_{kind}.plugin" for kind in KINDS)
    program = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import {modules}; "
        "sys.exit(bool({'torch', 'albumentations', 'PIL', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_patch_embedding_makes_tokens(loaded: Any) -> None:
    """A batch becomes one token for each place of a grid of a quarter of the side."""
    plugin = loaded("patch_embedding")
    config = plugin.config_class(channels=5)
    embedding = plugin.build(config, PatchEmbeddingContext(1, 9, 16, 12))
    patches = embedding(torch.randn(2, 1, 9, 16))
    assert patches.grid == embedding.grid == (3, 4)
    assert patches.tokens_BND.shape == (2, 12, 12)
    assert embedding.first.out_channels == 5


def _model(plugin: Any, side: int = 16, **settings: Any) -> nn.Module:
    def embedding(embed_dim: int) -> nn.Module:
        context = PatchEmbeddingContext(3, side, side, embed_dim)
        return conv.plugin.build(conv.plugin.config_class(patch_size=4), context)

    image = ImageSpec(
        channels=3, height=side, width=side, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
    )
    torch.manual_seed(0)
    built: nn.Module = plugin.build(
        plugin.config_class(**settings), ModelContext(image, 5, embedding)
    )
    return built


def test_the_model_learns(loaded: Any) -> None:
    """A few steps fit the labels of a few images; every weight gets a gradient."""
    model = _model(loaded("model"), embed_dim=24, depth=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    images, labels = torch.randn(10, 3, 16, 16), torch.arange(10) % 5
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    assert (model(images).argmax(1) == labels).all()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in model.parameters())


def test_the_model_checks_its_heads(loaded: Any) -> None:
    """Heads that do not divide the embedding are refused with both numbers."""
    config = loaded("model").config_class(embed_dim=64, num_heads=3)
    with pytest.raises(ConfigError, match=r"num_heads 3 does not divide model\.embed_dim 64"):
        config.resolved_for(TRAITS)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_augmentation_keeps_shape_and_type(channels: int, loaded: Any) -> None:
    """Images stay uint8 of the same shape, and the same seed gives the same images."""
    plugin = loaded("augmentation")
    transform = plugin.build(
        plugin.config_class(probability=1.0), AugmentationContext(channels, 8, 12)
    )
    image = np.full((8, 12, channels), 90, np.uint8)
    seen = []
    for seed in (1, 2, 1):
        transform.set_random_seed(seed)
        seen.append(transform(image=image)["image"])
    assert {(changed.shape, str(changed.dtype)) for changed in seen} == {(image.shape, "uint8")}
    assert np.array_equal(seen[0], seen[2])
    assert not np.array_equal(seen[0], seen[1])
    assert (image == 90).all()


def _list_images(plugin: Any, path: Path | None, **settings: Any) -> Any:
    context = SourceContext(None if path is None else str(path), Path("work"))
    return plugin.build(plugin.config_class(**settings), context).list_images()


def test_the_data_source_reads_its_example(tmp_path: Path, loaded: Any) -> None:
    """The example that the plugin writes lists real images of two classes."""
    plugin = loaded("data_source")
    listing = _list_images(plugin, Path(plugin.example(tmp_path)))
    assert {image.label for image in listing.images} == {"red", "blue"}
    pixels = {(listing.root / image.path).read_bytes() for image in listing.images}
    assert len(pixels) == len(listing.images) == 8
    assert listing.name == "labels"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (None, "data.path is missing"),
        (b"", "no column 'path'"),
        (b"path,class\n1.png,a\n", r"no column 'label' among \['path', 'class'\]"),
        (b"path;label\n1.png;a\n", "no column 'path'"),
        (b"path,label\n", "no rows"),
        (b"path,label\n1.png,a\n../2.png,a\n", r"Line 3 .* '\.\./2\.png'"),
        (b"path,label\n/etc/1.png,a\n", "Line 2 .* '/etc/1.png'"),
        (b"path,label\na/../../1.png,a\n", "not a file in the folder"),
        (b"path,label\n,a\n", "Line 2 "),
        (b"path,label\na\\1.png,a\n", "with forward slashes"),
        (b"path,label\na/1.png,a\n./a/1.png,b\n", "Line 3 .* a second time"),
        (b"path,label\n\xff\xfe.png,a\n", "UTF-8"),
    ],
)
def test_the_data_source_refuses(
    table: bytes | None, words: str, tmp_path: Path, loaded: Any
) -> None:
    """A table that cannot be used is answered with a sentence."""
    file = None if table is None else tmp_path / "table.csv"
    if file:
        file.write_bytes(table or b"")
    with pytest.raises(DataError, match=words):
        _list_images(loaded("data_source"), file)


def test_the_data_source_refuses_a_missing_file(tmp_path: Path, loaded: Any) -> None:
    """A file that is not there, or a folder in its place, is named."""
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataError, match=f"There is no file {path}"):
            _list_images(loaded("data_source"), path)


@pytest.mark.parametrize(
    ("name", "words", "suggestion"),
    [
        ("My-Stem", "use lower-case", "my_stem"),
        ("MyStem", "use lower-case", "my_stem"),
        ("my stem", "use lower-case", "my_stem"),
        ("2d", "use lower-case", "d"),
        ("_stem", "use lower-case", "stem"),
        ("stem_", "use lower-case", "stem"),
        ("my__stem", "use lower-case", "my_stem"),
        ("größe", "use lower-case", "grosse"),
        ("../stem", "use lower-case", "stem"),
        ("Class", "use lower-case", "my_class"),
        ("stem\n", "use lower-case", "stem"),
        ("", "use lower-case", "my_plugin"),
        ("x" * 41, "has 41 characters; at most 40", "x" * 40),
        ("class", "is reserved by Python", "my_class"),
        ("auto", "is reserved by Patchline", "my_auto"),
        ("none", "is reserved by Patchline", "my_none"),
        ("conv", "patch_embedding plugin 'conv' already exists", "my_conv"),
    ],
)
def test_a_wrong_name_is_answered_with_a_right_one(
    name: str, words: str, suggestion: str, tmp_path: Path
) -> None:
    """The error says what a name may be and offers one that works; nothing is written."""
    with pytest.raises(ConfigError) as caught:
        write_package("patch_embedding", name, tmp_path)
    assert words in str(caught.value)
    assert str(caught.value).endswith(f"such as '{suggestion}'.")
    assert not list(tmp_path.iterdir())
    assert write_package("patch_embedding", suggestion, tmp_path).folder.is_dir()


def test_a_name_of_another_kind_is_free(tmp_path: Path) -> None:
    """Only plugins of the same kind share their names."""
    assert write_package("model", "conv", tmp_path).folder.is_dir()


def test_a_package_name_that_is_installed_is_refused(tmp_path: Path, loaded: Any) -> None:
    """A second package of a name would replace the first, whatever kind it is of."""
    assert loaded("model")
    with pytest.raises(ConfigError, match=r"patchline-new-model .*model plugin 'new_model'"):
        write_package("augmentation", "new_model", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("modle", "Did you mean 'model'?"),
        ("patch-embedding", "Did you mean 'patch_embedding'?"),
        ("", "''. Kinds"),
    ],
)
def test_a_wrong_kind_is_answered_with_the_kinds(kind: str, hint: str, tmp_path: Path) -> None:
    """The error names the nearest kind and all of them."""
    with pytest.raises(ConfigError) as caught:
        write_package(kind, "my_stem", tmp_path)
    assert f"There is no plugin kind '{kind}'." in str(caught.value)
    assert hint in str(caught.value)
    assert ", ".join(KINDS) in str(caught.value)


def test_the_place_has_to_be_a_folder(tmp_path: Path) -> None:
    """A missing folder and a file in its place are refused, each with its remedy."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"no folder .*/none\. Create it"):
        write_package("model", "mine", tmp_path / "none")
    with pytest.raises(ConfigError, match="file is not a folder"):
        write_package("model", "mine", tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A package, a file or a dead link of the same name stays as it is."""
    own = write_package("model", "first", tmp_path).folder / "patchline_first/plugin.py"
    before = own.read_bytes()
    (tmp_path / "patchline-second").write_text("mine", encoding="utf-8")
    (tmp_path / "patchline-third").symlink_to("nowhere")
    for name in ("first", "second", "third"):
        with pytest.raises(ConfigError, match=f"patchline-{name} already exists"):
            write_package("augmentation", name, tmp_path)
    assert own.read_bytes() == before
    assert (tmp_path / "patchline-second").read_text("utf-8") == "mine"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_failure_half_way_leaves_nothing(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk refuses a file, the error names the place and nothing stays behind."""
    write_text, count = Path.write_text, iter(range(10))

    def refusing(self: Path, text: str, encoding: str) -> int:
        if next(count) == 3:
            raise OSError(code, "refused")
        return write_text(self, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", refusing)
    with pytest.raises(StorageError, match=r"patchline-mine cannot be written \(refused\)"):
        write_package("model", "mine", tmp_path)
    assert next(count) == 4
    assert not list(tmp_path.iterdir())
