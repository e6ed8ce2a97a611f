"""Create a package with a new plugin that can be installed, run and tested immediately.

The templates are in `plugin_skeletons`: one folder for each kind, and `shared` for files of all
kinds, laid out as in the package.
"""

from __future__ import annotations

import keyword
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from string import Template

from patchline.pipeline.errors import ConfigError, StorageError, suggest_name
from patchline.pipeline.plugin_system.plugin_loader import KINDS, Kind, list_installed

_TEMPLATES = Path(__file__).parent / "plugin_skeletons"
_OF_KIND: dict[Kind, tuple[str, str]] = {
    # what its files import, and a command that uses the plugin
    "model": ("patchline pydantic torch", "run --model.name $name"),
    "patch_embedding": ("patchline pydantic torch", "run --model.patch-embedding.name $name"),
    "data_source": ("patchline pillow pydantic", "run --data.source $name --data.path labels.csv"),
    "augmentation": ("albumentations numpy patchline pydantic", "run --augmentation.name $name"),
    "objective": ("patchline pydantic torch", "run --objective.name $name"),
    "launcher": ("patchline pydantic", "run --launcher.name $name"),
    "store": ("patchline", "run --workspace $name://team"),
    "tool": ("patchline prefect", "$words ."),
}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", re.ASCII)
_LONGEST_NAME = 40
_TAKEN_WORDS = ("auto", "none")  # reserved values of the setting that selects a plugin


@dataclass(frozen=True)
class WrittenPackage:
    """A newly written package."""

    kind: Kind
    name: str
    folder: Path
    files: tuple[str, ...]
    """Paths of the files, relative to the folder, with forward slashes."""
    run_command: str
    """The command that trains with the plugin."""


def write_package(kind: str, name: str, into: Path) -> WrittenPackage:
    """Write the package `patchline-NAME` into an existing folder, atomically.

    Raises:
        ConfigError: if the kind, the name or the folder is invalid, or the package exists.
        StorageError: if the folder is not writable.
    """
    known_kind = check_kind(kind)
    _check_name(known_kind, name)
    fields = _fields(known_kind, name)
    folder = _free_place(into.expanduser(), fields["distribution"])
    contents = {}
    for templates in (_TEMPLATES / "shared", _TEMPLATES / kind):
        for file in sorted(templates.rglob("*.txt")):
            target = file.relative_to(templates).with_suffix("").as_posix()
            text = Template(file.read_text(encoding="utf-8")).substitute(fields)
            contents[target.replace("package/", f"{fields['package']}/")] = text
    _write_whole(folder, contents)
    return WrittenPackage(known_kind, name, folder, tuple(contents), fields["run_command"])


def _fields(kind: Kind, name: str) -> dict[str, str]:
    """Return the values of the templates' placeholders."""
    dependencies, command = _OF_KIND[kind]
    words = name.replace("_", "-")
    return {
        "kind": kind,
        "kind_in_words": kind.replace("_", " "),
        "name": name,
        "words": words,
        "distribution": _distribution(name),
        "package": f"patchline_{name}",
        "dependencies": ", ".join(f'"{each}"' for each in dependencies.split()),
        "run_command": f"patchline {Template(command).substitute(name=name, words=words)}",
    }


def _distribution(name: str) -> str:
    return f"patchline-{name.replace('_', '-')}"


def check_kind(kind: str) -> Kind:
    """Return a kind of plugin; raise `ConfigError` if there is none of that name."""
    for known in KINDS:
        if kind == known:
            return known
    hint = suggest_name(kind.lower(), KINDS)
    raise ConfigError(f"There is no plugin kind '{kind}'.{hint} Kinds: {', '.join(KINDS)}.")


def _check_name(kind: Kind, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"The plugin name '{name}' is invalid. Use lower-case letters and digits, separated by "
            "single underscores, starting with a letter, such as my_plugin."
        )
    if len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"The plugin name '{name}' has {len(name)} characters; at most {_LONGEST_NAME} are "
            "allowed. Choose another name."
        )
    if keyword.iskeyword(name) or name in _TAKEN_WORDS:
        owner = "Python" if keyword.iskeyword(name) else "Patchline"
        raise ConfigError(f"The plugin name '{name}' is reserved by {owner}. Choose another name.")
    for entry in list_installed():
        if (entry.kind, entry.name) == (kind, name):
            raise ConfigError(f"The {kind} plugin '{name}' already exists. Choose another name.")
        if re.sub(r"[-_.]+", "-", entry.distribution).lower() == _distribution(name):
            raise ConfigError(
                f"The package {entry.distribution} is already installed, with the {entry.kind} "
                f"plugin '{entry.name}'; another package of that name would replace it. Choose "
                "another name."
            )


def _free_place(into: Path, distribution: str) -> Path:
    """Return the folder of the package, which does not exist yet."""
    if not into.exists():
        raise ConfigError(f"There is no folder {into}. Create it, or set another with --into.")
    if not into.is_dir():
        raise ConfigError(f"{into} is not a folder. Set a folder with --into.")
    folder = into / distribution
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} already exists and is not overwritten. Choose another name, or set another "
            "folder with --into."
        )
    return folder


def _write_whole(folder: Path, contents: dict[str, str]) -> None:
    """Write the files into a temporary folder next to it, then rename that."""
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        for relative, text in contents.items():
            file = temporary / relative
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        temporary.rename(folder)
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written ({error.strerror}). Set another folder with --into."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
