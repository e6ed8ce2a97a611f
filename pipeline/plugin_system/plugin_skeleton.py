"""Create a package with a new plugin that can be installed, run and tested immediately.

The templates are in `plugin_skeletons`: one folder for each kind, and `shared` for files of all
kinds.
"""

from __future__ import annotations

import difflib
import keyword
import re
import shutil
import unicodedata
import uuid
from dataclasses import dataclass
from pathlib import Path
from string import Template

from patchline.pipeline.errors import ConfigError, StorageError
from patchline.pipeline.plugin_system.plugin_loader import KINDS, Kind, PluginEntry, installed

_TEMPLATES = Path(__file__).parent / "plugin_skeletons"
_FILES = {
    # file in the package: its template in `shared` or in the folder of the kind
    "pyproject.toml": "shared/pyproject.toml.txt",
    "README.md": "shared/README.md.txt",
    "$package/__init__.py": "shared/package_init.py.txt",
    "$package/plugin.py": "$kind/plugin.py.txt",
    "$package/module.py": "$kind/module.py.txt",
    "tests/__init__.py": "shared/tests_init.py.txt",
    "tests/test_$name.py": "$kind/test_plugin.py.txt",
}
_WITH_MODULE = ("patch_embedding",)
_DEPENDENCIES: dict[Kind, tuple[str, ...]] = {
    "model": ("patchline", "pydantic", "torch"),
    "patch_embedding": ("patchline", "pydantic", "torch"),
    "data_source": ("patchline", "pillow", "pydantic"),
    "augmentation": ("albumentations", "numpy", "patchline", "pydantic"),
    "objective": ("patchline", "pydantic", "torch"),
    "launcher": ("patchline", "pydantic"),
}
_RUN_COMMANDS: dict[Kind, str] = {
    "model": "patchline run --model.name $name",
    "patch_embedding": "patchline run --model.patch-embedding.name $name",
    "data_source": "patchline run --data.source $name --data.path labels.csv",
    "augmentation": "patchline run --augmentation.name $name",
    "objective": "patchline run --objective.name $name",
    "launcher": "patchline run --launcher.name $name",
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
    """Relative to the folder, with forward slashes."""
    run_command: str
    """The command that trains with the plugin."""


def write_package(kind: str, name: str, into: Path) -> WrittenPackage:
    """Write the package `patchline-NAME` into an existing folder, atomically.

    Raises:
        ConfigError: if the kind, the name or the folder is invalid, or the package exists.
        StorageError: if the folder is not writable.
    """
    known_kind = _checked_kind(kind)
    fields = _fields(known_kind, _checked_name(known_kind, name))
    folder = _free_place(into.expanduser(), fields["distribution"])
    contents = {
        Template(target).substitute(fields): _rendered(template, fields)
        for target, template in _FILES.items()
        if known_kind in _WITH_MODULE or not target.endswith("/module.py")
    }
    _write_whole(folder, contents)
    return WrittenPackage(known_kind, name, folder, tuple(contents), fields["run_command"])


def _fields(kind: Kind, name: str) -> dict[str, str]:
    """Return the values of the templates' placeholders."""
    return {
        "kind": kind,
        "kind_in_words": kind.replace("_", " "),
        "name": name,
        "distribution": _distribution(name),
        "package": f"patchline_{name}",
        "dependencies": ", ".join(f'"{dependency}"' for dependency in _DEPENDENCIES[kind]),
        "run_command": Template(_RUN_COMMANDS[kind]).substitute(name=name),
    }


def _distribution(name: str) -> str:
    return f"patchline-{name.replace('_', '-')}"


def _rendered(template: str, fields: dict[str, str]) -> str:
    file = _TEMPLATES / Template(template).substitute(fields)
    return Template(file.read_text(encoding="utf-8")).substitute(fields)


def _checked_kind(kind: str) -> Kind:
    for known in KINDS:
        if kind == known:
            return known
    close = difflib.get_close_matches(kind.lower(), KINDS, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise ConfigError(f"There is no plugin kind '{kind}'.{hint} Kinds: {', '.join(KINDS)}.")


def _checked_name(kind: Kind, name: str) -> str:
    """Return the name, or raise a `ConfigError` that suggests a valid one."""
    entries = installed()
    taken = {entry.name for entry in entries if entry.kind == kind}
    remedy = f"Choose another name, such as '{_valid_name(name, taken)}'."
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"The plugin name '{name}' is invalid: use lower-case letters and digits, separated by "
            f"single underscores, starting with a letter. {remedy}"
        )
    if len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"The plugin name '{name}' has {len(name)} characters; at most {_LONGEST_NAME} are "
            f"allowed. {remedy}"
        )
    if keyword.iskeyword(name) or name in _TAKEN_WORDS:
        owner = "Python" if keyword.iskeyword(name) else "Patchline"
        raise ConfigError(f"The plugin name '{name}' is reserved by {owner}. {remedy}")
    if name in taken:
        raise ConfigError(f"The {kind} plugin '{name}' already exists. {remedy}")
    _check_distribution(name, entries, remedy)
    return name


def _check_distribution(name: str, entries: list[PluginEntry], remedy: str) -> None:
    """Refuse the name if its package is installed with a plugin of another kind."""
    for entry in entries:
        if re.sub(r"[-_.]+", "-", entry.distribution).lower() == _distribution(name):
            raise ConfigError(
                f"The package {entry.distribution} is already installed, with the {entry.kind} "
                f"plugin '{entry.name}'; another package of that name would replace it. {remedy}"
            )


def _valid_name(name: str, taken: set[str]) -> str:
    """Return the closest valid name: 'My-Stem' becomes 'my_stem'."""
    split_at_humps = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    letters = unicodedata.normalize("NFKD", split_at_humps.casefold())
    plain = letters.encode("ascii", "ignore").decode()
    joined = re.sub(r"[^a-z0-9]+", "_", plain).lstrip("_0123456789")
    valid = joined[:_LONGEST_NAME].rstrip("_") or "my_plugin"
    refused = taken | set(_TAKEN_WORDS)
    if valid == name or valid in refused or keyword.iskeyword(valid):
        valid = f"my_{valid}"[:_LONGEST_NAME].rstrip("_")
    return valid


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
