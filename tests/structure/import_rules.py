"""Which package may import which, as a function on a source tree, so that it can be tried."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.structure.source_files import source_file

ROOT_PACKAGE = "patchline"
FOLDERS = ("pipeline", "flows", "plugins")
"""Folders of the checkout that are imported below the root package."""
_PUBLIC = ("plugin_api", "plugin_checks")
"""Modules of the root package that belong to the library."""
PACKAGES: dict[str, set[str]] = {
    # a room of the library, or a room in one, and those that it may import; the innermost counts
    "workspace.files": set(),
    "workers.host": set(),
    "models.provenance": set(),
    "workspace": {"plugin_system"},
    "models.layers": set(),
    "evaluation.metrics": set(),
    "data.labels": set(),
    "plugin_system": set(),
    "plugin_system.contract": {"plugin_system", "models", "data"},
    "models": {"plugin_system", "models.pretrained", "evaluation.metrics"},
    "models.pretrained": {"models.layers"},
    "data": {
        "data.labels",
        "plugin_system",
        "workspace.tracking",
        "workspace.run_memory",
        "workers",
    },
    "workers": set(),
    "workers.supervision": set(),
    "web": set(),
    "workspace.tracking": {"plugin_system"},
    "workspace.run_memory": {"plugin_system", "workspace.tracking"},
    "workspace.relocation": {"workspace.run_memory", "workspace.tracking", "plugin_system"},
    "models.probing": {"models", "evaluation.metrics", "data.labels"},
    "training.initial_weights": {
        "data",
        "models.layers",
        "models",
        "models.pretrained",
        "models.probing",
        "registry",
        "workspace.run_memory",
        "workspace.tracking",
        "plugin_system",
    },
    "training": {
        "data.labels",
        "plugin_system",
        "models.layers",
        "evaluation.metrics",
        "models",
        "data",
        "workers",
        "workspace.tracking",
        "workspace.run_memory",
        "training.initial_weights",
        "models.probing",
    },
    "training.distillation": {
        "evaluation.metrics",
        "training.initial_weights",
        "workspace.run_memory",
        "models.probing",
        "training",
        "models",
        "data",
        "registry",
        "workspace.tracking",
        "workers",
    },
    "planning": {
        "evaluation.metrics",
        "data.labels",
        "training.distillation",
        "training.initial_weights",
        "models.probing",
        "training",
        "models",
        "data",
        "plugin_system",
        "workers",
        "workspace.tracking",
        "workspace.run_memory",
    },
    "evaluation": {
        "evaluation.metrics",
        "models",
        "models.probing",
        "data",
        "evaluation.visual_guide",
        "workers",
        "workspace.run_memory",
    },
    "evaluation.inspection": {"evaluation", "data", "data.labels"},
    "packaging": {
        "evaluation",
        "models.layers",
        "evaluation.metrics",
        "models",
        "models.probing",
        "data",
        "plugin_system",
        "workers",
        "workspace.run_memory",
    },
    "training.pretraining": {
        "training",
        "evaluation",
        "evaluation.metrics",
        "models",
        "data",
        "workers",
        "workspace.run_memory",
    },
    "packaging.prediction": {"packaging", "data", "workers"},
    "registry.serving": {"packaging", "data", "registry", "web"},
    "registry": {
        "packaging",
        "evaluation",
        "evaluation.metrics",
        "models",
        "data",
        "workspace.tracking",
    },
    "registry.browsing": {
        "evaluation.inspection",
        "registry",
        "packaging",
        "evaluation",
        "training.pretraining",
        "evaluation.metrics",
        "data",
        "workspace.tracking",
    },
    "evaluation.visual_guide": {
        "plugin_system",
        "models.layers",
        "evaluation.metrics",
        "models",
        "data",
    },
    "stages": {
        "data",
        "training.initial_weights",
        "planning",
        "training.distillation",
        "training",
        "models",
        "evaluation",
        "training.pretraining",
        "evaluation.metrics",
        "packaging",
        "registry",
        "workspace.run_memory",
        "workspace.tracking",
        "workers",
    },
}
_LOWEST = {"workspace.files", "workers.host", "models.provenance", "workspace"}
_OPEN = {"workspace.files", "workers.host", "data.labels", "models.provenance", "workspace"}
"""Packages that all others may import."""
_ROOT: dict[str, set[str]] = {
    # a module directly in `pipeline`, or public, and the packages that it may import; others: none
    "plugin_api": {"data.labels", "workers"},  # what a plugin is, and what it may use
    "config_files": {"plugin_system"},  # reads the names of plugins before their settings
    "plugin_checks": {"plugin_system", "plugin_system.contract"},  # the public face of the contract
}
_ROOMS: dict[str, dict[str, set[str]]] = {
    # the rooms of a package, and the other rooms of it that each may import. The modules at the
    # package's door may import all rooms; a room imports none of them, except those in `_FREE`.
    "data": {
        "pixel_values": set(),
        "reading": {"pixel_values"},
        "manifests": {"reading", "pixel_values"},
        "value_ranges": {"manifests", "reading", "pixel_values"},
        "near_duplicates": {"manifests", "reading"},
        "symmetry": {"near_duplicates", "manifests", "reading", "pixel_values"},
        "splits": {"manifests"},
        "store": {"manifests", "reading", "pixel_values"},
        "batches": {"store"},
    },
}
_PLUGIN_API = ("patchline.plugin_api", "patchline.pipeline.models.layers")
FLOWS = (
    *("prefect_api", "progress", "notifications", "prefect_session", "schedules", "closing"),
    *("approval", "training", "services", "work_pools", "new_data"),
    *("commands", "python_api", "command_line"),
)
"""Rooms of `flows`, and the modules directly in it; each may import those before it."""
_TOOLS = "plugins/tools/"
_PUBLIC_FLOWS = (
    *("closing.close_runs", "commands.run", "commands.switches", "notifications.events"),
    *("prefect_api.failures", "prefect_session", "progress.progress_display"),
    *("training.chosen_launcher", "training.dry_run", "training.outcome_pages"),
    *("training.run_training", "training.stage_tasks"),
)
"""What tools may import of `flows`; of `training`, all that makes a training but its own flow."""
_NEAR_THE_LIBRARY = ("plugins/launchers/", "plugins/stores/", _TOOLS)
"""Folders of built-in plugins that may import the library: they serve it."""
_BARRED = {
    "pipeline": {"prefect", "flows", "plugins", "the Python API"},
    "flows": {"plugins", "the Python API"},
    "plugins": {"flows", "the Python API"},
    ROOT_PACKAGE: {"plugins"},
}
_FREE = (
    # Values that hold settings or results and import nothing else of their package.
    "pipeline.data.config",
    "pipeline.data.image_size",
    "pipeline.training.initial_weights.recipe",
    "pipeline.training.config",
    "pipeline.training.record",
    "pipeline.training.train_result",
    "pipeline.evaluation.config",
    "pipeline.registry.config",
)


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the full module name of every import in a file."""
    for each in source_file(file.read_text("utf-8")).imports:
        yield each.line, str(each)


def violations(root: Path) -> list[str]:
    """Return each forbidden import as `file:line imports module: rule`."""
    found = []
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    for file in [*files, *sorted((root / ROOT_PACKAGE).glob("*.py"))]:
        relative = file.relative_to(root).as_posix()
        for line, module in imports(file):
            rule = _broken_rule(relative, module)
            if rule:
                found.append(f"{relative}:{line} imports {module}: {rule}")
    return found


def _broken_rule(file: str, module: str) -> str | None:
    folder, name = file.removesuffix(".py").split("/")[:2]
    top, _, below = module.partition(".")
    if top in FOLDERS:
        return f"{top} is imported as {ROOT_PACKAGE}.{top}"
    target = top if top != ROOT_PACKAGE else below.partition(".")[0]
    if top == ROOT_PACKAGE and target not in (*FOLDERS, *_PUBLIC):
        target = "the Python API"
    place = "pipeline" if name in _PUBLIC else folder
    if _tool_of(file) or _tool_of(below.replace(".", "/")):
        return _broken_tool(file, below)
    if target in _BARRED[place]:
        return f"{place} never imports {target}"
    library = target in ("pipeline", *_PUBLIC)
    if (
        place == "plugins"
        and library
        and not file.startswith(_NEAR_THE_LIBRARY)
        and not module.startswith(_PLUGIN_API)
    ):
        return f"plugins import only {' and '.join(_PLUGIN_API)}"
    if place == "flows" and below.startswith("flows."):
        return _broken_flow(name, below.split(".")[1])
    return _broken_layer(file, below) if place == "pipeline" else None


def _broken_tool(file: str, below: str) -> str | None:
    """Check an import in a tool, or of one: what it may use is the library and a part of flows."""
    own = _tool_of(file)
    if below.startswith("plugins."):
        is_own = own and own == _tool_of(below.replace(".", "/"))
        return None if is_own else "no other plugin imports a tool, and a tool no other plugin"
    if not own:
        return None
    if below.startswith("flows.") and not below.removeprefix("flows.").startswith(_PUBLIC_FLOWS):
        return f"tools import only {', '.join(_PUBLIC_FLOWS)} of flows"
    return "tools never import the Python API" if below == "python_api" else None


def _tool_of(path: str) -> str:
    """Return the name of the tool that a path below the root is in; empty if it is in none."""
    name, _, file = path.removeprefix(_TOOLS).partition("/")
    return name if path.startswith(_TOOLS) and file else ""


def tools_named(root: Path) -> list[str]:
    """Return each line outside a tool's folder that names a module of the tool as a text."""
    tools = [folder.parent.name for folder in sorted((root / _TOOLS).glob("*/tool.py"))]
    names = re.compile(rf"plugins[./]tools[./]({'|'.join(tools)})\b")
    found = []
    for folder in (*FOLDERS, ROOT_PACKAGE):
        for file in sorted((root / folder).rglob("*.py")):
            relative = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
                if (named := names.search(line)) and named[1] != _tool_of(relative):
                    found.append(f"{relative}:{number} names the tool {named[1]}")
    return found


def _broken_flow(room: str, other: str) -> str | None:
    """Check the direction between two rooms of `flows`."""
    if room == other or other in FLOWS[: FLOWS.index(room)]:
        return None
    return f"flows.{room} may import {', '.join(FLOWS[: FLOWS.index(room)]) or 'no other room'}"


def _broken_layer(file: str, module: str) -> str | None:
    """Check the direction inside `pipeline`; the values in `_FREE` are open to all.

    Args:
        file: the path of what imports.
        module: what it imports, as `pipeline.room.module`.
    """
    target = module.split(".")
    if target[0] != "pipeline" or len(target) < 2 or module.startswith(_FREE):
        return None
    other = _package(target[1:])
    if other is None:
        return None
    parts = file.removesuffix(".py").split("/")[1:]
    own = _package(parts)
    if own == other:
        return _broken_room(own, parts, target[1:])
    allowed = _ROOT.get(parts[0], set()) if own is None else PACKAGES[own]
    allowed = allowed | (_LOWEST - {"workspace"} if own in _LOWEST else _OPEN)
    if other in allowed:
        return None
    name = f"pipeline.{own or parts[0]}"
    return f"{name} may import {', '.join(sorted(allowed)) or 'no package'}"


def _broken_room(package: str, own: Sequence[str], other: Sequence[str]) -> str | None:
    """Check the direction between the rooms of a package, of a module's path and an import's."""
    rooms = _ROOMS.get(package, {})
    depth = package.count(".") + 1
    room, target = (part[depth] if len(part) > depth else "" for part in (own, other))
    if room not in rooms or target == room or target in rooms[room]:
        return None
    allowed = ", ".join(sorted(rooms[room])) or "no other room"
    return f"pipeline.{package}.{room} may import {allowed} of pipeline.{package}"


def _package(parts: Sequence[str]) -> str | None:
    """Return the package of a module, by its path below `pipeline`; None for one directly in it."""
    inner = ".".join(parts[:2])
    if inner in PACKAGES:
        return inner
    return parts[0] if parts[0] in PACKAGES else None


def import_cycles() -> list[str]:
    """Return packages and rooms that can reach themselves by the imports that the rules allow."""
    cycles = _on_cycles(PACKAGES)
    for package, rooms in _ROOMS.items():
        cycles += [f"{package}.{room}" for room in _on_cycles(rooms)]
    return cycles


def folders_without_rules(root: Path) -> list[str]:
    """Return the folders of packages with rooms that `_ROOMS` does not name, and vice versa."""
    wrong = []
    for package, rooms in _ROOMS.items():
        folder = root / "pipeline" / package.replace(".", "/")
        there = {init.parent.name for init in folder.glob("*/__init__.py")}
        there -= {name.removeprefix(f"{package}.") for name in PACKAGES}
        wrong += [f"{package}.{room}" for room in sorted(there ^ rooms.keys())]
    return wrong


def _on_cycles(allowed: dict[str, set[str]]) -> list[str]:
    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(allowed[start])
        while waiting:
            here = waiting.pop()
            if here not in seen:
                seen.add(here)
                waiting += allowed[here]
        return seen

    return [name for name in allowed if name in reached(name)]
