"""The files of a container image that serves one model: Dockerfile, pins, manifests, server."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.installation import PACKAGE
from patchline.pipeline.markdown import render_markdown
from patchline.pipeline.packaging.package_files import (
    ARTIFACTS,
    CARD_FILE,
    REFERENCE_IMAGES_FILE,
    SERVER_FILE,
    WEIGHTS_FILE,
)
from patchline.pipeline.web.config import TOKEN_VARIABLE
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.workspace_folder import make_folder

_OWN = "patchline"


@dataclass(frozen=True)
class Closure:
    """Modules of Patchline that import each other, and the libraries that they import."""

    modules: dict[str, Path] = field(default_factory=dict)
    """File by module name; a package is its `__init__`."""
    libraries: frozenset[str] = frozenset()
    """Top-level names, such as `cv2`."""


def closure_of(module: str, root: Path) -> Closure:
    """Return what a module needs.

    What a function imports when it is called counts if that needs no further library: a server
    without MLflow does not follow an alias, but it does read every kind of image file.

    Args:
        module: full name, such as `patchline.pipeline.registry.serving.__main__`.
        root: the folder that holds the package `patchline`.
    """
    modules, libraries = _always({module}, root)
    pending = {name for file in modules.values() for name in _imported(file, root, late=True)}
    refused: set[str] = set()
    while further := pending - modules.keys() - refused:
        name = min(further)
        more, needed = _always({name}, root)
        if needed <= libraries:
            modules |= more
            pending |= {
                other for file in more.values() for other in _imported(file, root, late=True)
            }
        else:
            refused.add(name)
    return Closure(dict(sorted(modules.items())), frozenset(libraries))


def _always(names: set[str], root: Path) -> tuple[dict[str, Path], set[str]]:
    """Return the modules that are imported with some others, and all their libraries."""
    modules: dict[str, Path] = {}
    libraries: set[str] = set()
    pending = set(names)
    while pending:
        name = pending.pop()
        file = _file_of(name, root)
        if name in modules or file is None:
            continue
        modules[name] = file
        parent = name.rpartition(".")[0]
        pending |= {parent} if parent else set()
        pending |= set(_imported(file, root, late=False))
        libraries |= set(_libraries(file))
    return modules, libraries


def _file_of(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _imported(file: Path, root: Path, *, late: bool) -> Iterator[str]:
    """Yield our modules that a file imports.

    Args:
        file: a module.
        root: the folder that holds the package `patchline`.
        late: those that are imported by its functions, instead of with it.
    """
    for node in _imports(file, late=late):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == _OWN)
        elif node.module and node.module.split(".")[0] == _OWN:
            yield node.module
            for name in node.names:
                if _file_of(f"{node.module}.{name.name}", root):
                    yield f"{node.module}.{name.name}"


def _libraries(file: Path) -> Iterator[str]:
    """Yield the top-level names of other libraries that are imported with a file."""
    for node in _imports(file, late=False):
        names = (
            [name.name for name in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
        for name in names:
            top = name.split(".")[0]
            if top and top != _OWN and top not in sys.stdlib_module_names:
                yield top


def _imports(file: Path, *, late: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield a file's imports, without those for type checkers alone."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(file.read_text(encoding="utf-8")), False)]
    while pending:
        node, inside = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            if inside == late:
                yield node
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        deeper = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        pending += [(child, deeper) for child in ast.iter_child_nodes(node)]


def pinned_requirements(libraries: Iterable[str]) -> list[str]:
    """Return `name==version` for each library and what it requires, sorted.

    Args:
        libraries: top-level names of modules, such as `cv2`.

    Raises:
        PackagingError: if one belongs to no installed distribution.
    """
    providers = metadata.packages_distributions()
    pending = []
    for library in sorted(libraries):
        if library not in providers:
            raise PackagingError(
                f"The library {library}, which the server needs, belongs to no installed package. "
                "Install the versions in constraints.txt."
            )
        pending.append((providers[library][0], frozenset[str]()))
    pins: dict[str, str] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    while pending:
        name, extras = pending.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        distribution = metadata.distribution(name)
        own_name = canonicalize_name(distribution.metadata["Name"])
        pins[own_name] = f"{own_name}=={distribution.version}"
        for line in distribution.requires or ():
            required = Requirement(line)
            if _applies(required, extras):
                pending.append((canonicalize_name(required.name), frozenset(required.extras)))
    return [pins[name] for name in sorted(pins)]


def _applies(required: Requirement, extras: frozenset[str]) -> bool:
    if required.marker is None:
        return True
    return any(required.marker.evaluate({"extra": extra}) for extra in (extras or {""}))


ENTRY = "patchline.pipeline.registry.serving.__main__"
PORT = 8080
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - of a container; the server requires a token
_NAME_LENGTH = 50
_NOT_SERVED = (WEIGHTS_FILE, SERVER_FILE, CARD_FILE, REFERENCE_IMAGES_FILE)
_LIBRARY_MEMORY_MIB = 400
"""Of the server before it has a model."""
_MODEL_COPIES = 4
"""Memory of a model as a multiple of its file: weights, and activations of a batch."""
_REQUESTS_MEMORY_MIB = 1600
"""Of requests at the most: all bodies, the one that is parsed, and an image of 179 megapixels."""


class ServedVersion(NamedTuple):
    """The version that a container serves."""

    name: str
    version: str

    @property
    def resource(self) -> str:
        """Its name as Kubernetes allows it: lower-case letters, digits and dashes."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:_NAME_LENGTH].strip("-")
        return plain if plain[:1].isalpha() else f"model-{plain}".strip("-")

    @property
    def image(self) -> str:
        """Name and tag of the image."""
        return f"{self.resource}:{self.version}"


def write_container(served: ServedVersion, artifacts: Path, folder: Path) -> Closure:
    """Write everything that `docker build` needs, and the manifests.

    Args:
        served: the version.
        artifacts: the files of its package.
        folder: an existing folder.

    Returns:
        The modules and libraries of the server.
    """
    closure = closure_of(ENTRY, PACKAGE.parent)
    _copy_server(closure, folder / "app")
    model = folder / "model" / "artifacts"
    make_folder(model)
    for name in ARTIFACTS:
        if name not in _NOT_SERVED and (artifacts / name).is_file():
            shutil.copyfile(artifacts / name, model / name)
    pins = pinned_requirements(closure.libraries)
    write_text(folder / "requirements.txt", "\n".join(pins) + "\n")
    write_text(folder / ".dockerignore", "*\n!requirements.txt\n!app\n!model\n")
    size = sum(file.stat().st_size for file in model.iterdir())
    values = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "entry": json.dumps(["python", *command(served)]),
        "port": PORT,
        "token_variable": TOKEN_VARIABLE,
        "memory": _LIBRARY_MEMORY_MIB + _MODEL_COPIES * size // 2**20,
        "requests_memory": _REQUESTS_MEMORY_MIB,
        "scalar": lambda text: yaml.safe_dump(text).partition("\n")[0],
    }
    for name in ("Dockerfile", "kubernetes.yaml", "kserve.yaml"):
        text = render_markdown(f"{name}.j2", __package__, served=served, **values)
        write_text(folder / name, text)
    _let_all_read(folder)
    return closure


def command(
    served: ServedVersion, package: str = "/srv/model", host: str = _ALL_ADDRESSES, port: int = PORT
) -> list[str]:
    """Return the arguments of Python that start the server."""
    return [
        "-P", "-m", ENTRY.removesuffix(".__main__"),
        "--package", package, "--name", served.name, "--model-version", served.version,
        "--host", host, "--port", str(port),
    ]  # fmt: skip


def _copy_server(closure: Closure, app: Path) -> None:
    """Copy the modules of the server with the pages beside them, and say which version they are."""
    for name, file in closure.modules.items():
        path = Path(*name.split("."))
        target = app / (
            path / "__init__.py" if file.name == "__init__.py" else path.with_suffix(".py")
        )
        make_folder(target.parent)
        shutil.copyfile(file, target)
        if file.name == "__init__.py":
            _copy_pages(file.parent, target.parent)
    version = metadata.version("patchline")
    described = app / f"patchline-{version}.dist-info"
    described.mkdir()
    write_text(
        described / "METADATA", f"Metadata-Version: 2.1\nName: patchline\nVersion: {version}\n"
    )


def _copy_pages(source: Path, target: Path) -> None:
    """Copy folders of a package that hold no modules, such as those with web pages."""
    for folder in source.iterdir():
        if folder.is_dir() and folder.name != "__pycache__" and not list(folder.rglob("*.py")):
            shutil.copytree(folder, target / folder.name, dirs_exist_ok=True)


def _let_all_read(folder: Path) -> None:
    """Let the user of the image read its files, whatever the umask and the modes are here."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
