"""The package with the server of `patchline serve`, as a folder that `docker build` takes.

The files are a Dockerfile, pins, manifests and the server. No image is built here. Instead, the
server of the folder is started with nothing but the libraries of its `requirements.txt`, and has to
answer as the package does.
"""

from __future__ import annotations

import ast
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchline.pipeline.errors import PackagingError
from patchline.pipeline.installation import PACKAGE
from patchline.pipeline.local_services import answers
from patchline.pipeline.packaging.answer_json import AnswerJson, label_answer
from patchline.pipeline.packaging.answer_judge import thresholds_of
from patchline.pipeline.packaging.package_files import (
    ARTIFACTS,
    CARD_FILE,
    DESCRIPTION_FILE,
    ONNX_FILE,
    REFERENCE_IMAGES_FILE,
    SERVER_FILE,
    WEIGHTS_FILE,
)
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.waiting import wait_until
from patchline.pipeline.web.config import TOKEN_VARIABLE
from patchline.pipeline.workers.worker_start import stop_group
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.plugins.tools.export.comparison import EXACT, Answers, ExportCandidate, FormInputs

Array = np.ndarray[Any, Any]
MODEL_FOLDER = "model/artifacts"
_ASKED = 8
"""Images that the server is asked about."""
_SECONDS_TO_START, _SECONDS_TO_ANSWER = 120.0, 60.0
_LOOPBACK = "127.0.0.1"
_WITHOUT_OTHERS = """\
import runpy, sys

absent = set(sys.argv.pop(1).split(","))


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
runpy.run_module("patchline.pipeline.registry.serving", run_name="__main__", alter_sys=True)
"""
"""Starts the server with those libraries alone that the image has, whatever is installed here."""


def container_candidates(inputs: FormInputs) -> Iterator[ExportCandidate]:
    """Yield the folder."""
    folder = inputs.new_folder("container")
    served = ServedVersion(inputs.reference.name, inputs.reference.version)
    write_container(served, inputs.package_folder, folder)
    yield ExportCandidate(
        name="container",
        folder=folder,
        model_files=(f"{MODEL_FOLDER}/{ONNX_FILE}",),
        open=partial(_open, folder / MODEL_FOLDER),
        bounds=EXACT,
        details={"precision": "float32"},
        is_timed=False,
        check=partial(check_server, folder, served, can_compare=_is_plain(inputs)),
    )


def _is_plain(inputs: FormInputs) -> bool:
    """Return whether a PNG file holds an image as the model takes it."""
    channels = inputs.package.image["channels"]
    return inputs.package.mapping.is_plain and channels in (1, 3)


def _open(artifacts: Path, threads: int) -> Answers:
    model = PackagedModel(artifacts / ONNX_FILE, artifacts / DESCRIPTION_FILE, threads)
    return model.probabilities


def check_server(
    folder: Path,
    served: ServedVersion,
    images_NHWC: Array,
    expected_NK: Array,
    *,
    can_compare: bool = True,
) -> None:
    """Start the server of a folder, and compare its answers with the package's.

    Args:
        folder: the folder of the container, which holds the server and the model.
        served: the version.
        images_NHWC: images (N, H, W, C) in uint8, in the size that the model takes.
        expected_NK: the package's probabilities.
        can_compare: whether image files hold such images; otherwise the server only has to start.

    Raises:
        PackagingError: if it does not start, or an answer differs.
    """
    written = folder / MODEL_FOLDER / DESCRIPTION_FILE
    description = json.loads(written.read_text(encoding="utf-8"))
    classes, thresholds_K = description["classes"], thresholds_of(description)
    asked = images_NHWC[: _ASKED if can_compare else 0]
    with run_server(folder, served) as (address, token):
        for image_HWC, expected_K in zip(asked, expected_NK, strict=False):
            answer = _answer(address, token, image_HWC)
            if thresholds_K is not None:
                _check_labels(answer, label_answer(expected_K, thresholds_K, classes, 1))
                continue
            best = int(expected_K.argmax())
            gap = abs(float(answer["probability"]) - float(expected_K[best]))
            if answer["label"] != classes[best] or gap > EXACT.largest:
                raise PackagingError(
                    f"The server of the container answers '{answer['label']}' "
                    f"({answer['probability']:.6f}) where the package answers '{classes[best]}' "
                    f"({expected_K[best]:.6f}). Report this as a bug, with the model's plugins."
                )


def _check_labels(answer: dict[str, Any], expected: AnswerJson) -> None:
    """Compare the labels of a server's answer, and the largest probability, with the package's."""
    given = [each["label"] for each in answer["labels"]]
    own = [each["label"] for each in expected["labels"]]
    first, own_first = answer["top"][0], expected["top_k"][0]
    gap = abs(float(first["probability"]) - own_first["probability"])
    if given != own or gap > EXACT.largest:
        raise PackagingError(
            f"The server of the container gives the labels {given} (highest probability "
            f"{first['probability']:.6f}) where the package gives {own} "
            f"({own_first['probability']:.6f}). Report this as a bug, with the model's plugins."
        )


@contextmanager
def run_server(
    folder: Path, served: ServedVersion, python: str = sys.executable
) -> Iterator[tuple[str, str]]:
    """Run the server of a container's folder; yield its address and token.

    Args:
        folder: the folder of the container, which holds the server and the model.
        served: the version.
        python: the interpreter; one of another environment needs no fence around its libraries.

    Raises:
        PackagingError: if it does not start.
    """
    token, port = secrets.token_hex(16), _free_port()
    arguments = command(served, str(folder.resolve() / "model"), _LOOPBACK, port)
    own = python == sys.executable
    start = (
        ["-P", "-c", _WITHOUT_OTHERS, _list_absent(folder), *arguments[3:]] if own else arguments
    )
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    with (folder.parent / f"{folder.name}-server.log").open("w+b") as log:
        process = subprocess.Popen(
            [python, *start],
            cwd=folder,
            env={
                **kept,
                "PYTHONPATH": str(folder.resolve() / "app"),
                "PYTHONDONTWRITEBYTECODE": "1",
                TOKEN_VARIABLE: token,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            address = f"http://{_LOOPBACK}:{port}"
            if not _is_ready(process, address):
                log.seek(0)
                lines = log.read().decode("utf-8", "replace").strip().splitlines() or ["no message"]
                raise PackagingError(
                    f"The server of the container does not start: {lines[-1][:300]}. Report this "
                    "as a bug, with the model's plugins."
                )
            yield address, token
        finally:
            stop_group(process)


def _list_absent(folder: Path) -> str:
    """Return the top-level modules that are installed here but not pinned, for a command line."""
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").split()
    pinned = {line.partition("==")[0] for line in lines}
    absent = {
        module
        for module, distributions in metadata.packages_distributions().items()
        if not pinned & {str(canonicalize_name(each)) for each in distributions}
    }
    return ",".join(sorted(absent - sys.stdlib_module_names - {"patchline"}))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((_LOOPBACK, 0))
        return int(listening.getsockname()[1])


def _is_ready(process: subprocess.Popen[bytes], address: str) -> bool:
    url = f"{address}/readyz"
    wait_until(
        lambda: process.poll() is not None or answers(url, _SECONDS_TO_ANSWER),
        0.1,
        _SECONDS_TO_START,
    )
    return answers(url, _SECONDS_TO_ANSWER)


def _answer(address: str, token: str, image_HWC: Array) -> dict[str, Any]:
    """Return the server's answer to one image, sent as a lossless file that it decodes."""
    import cv2

    given = image_HWC[:, :, ::-1] if image_HWC.shape[2] == 3 else image_HWC  # noqa: PLR2004 - RGB
    _, encoded = cv2.imencode(".png", np.ascontiguousarray(given))
    request = urllib.request.Request(  # noqa: S310 - of the server that was started
        f"{address}/predict",
        data=encoded.tobytes(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "image/png"},
    )
    try:
        with _direct().open(request, timeout=_SECONDS_TO_ANSWER) as response:
            answer: dict[str, Any] = json.loads(response.read())
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise PackagingError(
            f"The server of the container does not answer: {error}. Report this as a bug, with "
            "the model's plugins."
        ) from error
    return answer


def _direct() -> urllib.request.OpenerDirector:
    """Return an opener that asks no proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


_OWN = "patchline"


@dataclass(frozen=True)
class Closure:
    """Modules of Patchline that import each other, and the libraries that they import."""

    modules: dict[str, Path] = field(default_factory=dict)
    """The file of each module, by the module's name; a package's file is its `__init__`."""
    libraries: frozenset[str] = frozenset()
    """Top-level names of the libraries, such as `cv2`."""


def closure_of(module: str, root: Path) -> Closure:
    """Return what a module needs.

    What a function imports when it is called counts if that needs no further library: a server
    without MLflow does not follow an alias, but it does read every kind of image file.

    Args:
        module: the module's full name, such as `patchline.pipeline.registry.serving.__main__`.
        root: the folder that holds the package `patchline`.
    """
    modules, libraries = _always({module}, root)
    pending = {name for file in modules.values() for name in _find_imported(file, root, late=True)}
    refused: set[str] = set()
    while further := pending - modules.keys() - refused:
        name = min(further)
        more, needed = _always({name}, root)
        if needed <= libraries:
            modules |= more
            pending |= {
                other for file in more.values() for other in _find_imported(file, root, late=True)
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
        pending |= set(_find_imported(file, root, late=False))
        libraries |= set(_libraries(file))
    return modules, libraries


def _file_of(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _find_imported(file: Path, root: Path, *, late: bool) -> Iterator[str]:
    """Yield our modules that a file imports.

    Args:
        file: a module.
        root: the folder that holds the package `patchline`.
        late: whether to yield the modules that its functions import, instead of those imported with
            it.
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


def pin_requirements(libraries: Iterable[str]) -> list[str]:
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
    pins = pin_requirements(closure.libraries)
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
