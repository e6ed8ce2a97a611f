"""Which package may import which, as a function on a source tree, so that it can be tried."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

OWN = ("pipeline", "flows", "plugins")
_PACKAGES: dict[str, set[str]] = {
    # a package of the library and those that it may import; the nearest name above a file counts
    "files": set(),
    "host": set(),
    "provenance": set(),
    "layers": set(),
    "metrics": set(),
    "labels": set(),
    "plugin_kinds": {"labels"},
    "plugin_system": set(),
    "plugin_system.contract": {"plugin_system", "models", "data"},
    "models": {"plugin_system", "models.pretrained", "metrics"},
    "models.pretrained": {"layers"},
    "data": {"labels", "plugin_system", "tracking", "run_memory"},
    "workers": set(),
    "supervision": set(),
    "server_access": set(),
    "tracking": {"plugin_system"},
    "run_memory": {"plugin_system", "tracking"},
    "relocation": {"run_memory", "tracking"},
    "probing": {"models"},
    "initial_weights": {
        "data",
        "layers",
        "models",
        "models.pretrained",
        "probing",
        "registry",
        "run_memory",
        "tracking",
        "plugin_system",
    },
    "training": {
        "plugin_system",
        "layers",
        "metrics",
        "models",
        "data",
        "workers",
        "tracking",
        "run_memory",
        "initial_weights",
        "probing",
    },
    "planning": {
        "initial_weights",
        "probing",
        "training",
        "models",
        "data",
        "plugin_system",
        "workers",
        "tracking",
        "run_memory",
    },
    "evaluation": {"metrics", "models", "data", "visual_guide", "workers", "run_memory"},
    "inspection": {"evaluation", "data", "labels"},
    "packaging": {
        "evaluation",
        "metrics",
        "models",
        "probing",
        "data",
        "plugin_system",
        "workers",
        "run_memory",
    },
    "pretraining": {
        "training",
        "evaluation",
        "metrics",
        "models",
        "data",
        "workers",
        "run_memory",
    },
    "prediction": {"packaging", "data"},
    "registry": {"packaging", "evaluation", "metrics", "models", "data", "tracking"},
    "automation": {"prediction", "registry", "packaging", "data"},
    "browsing": {
        "inspection",
        "registry",
        "packaging",
        "evaluation",
        "pretraining",
        "metrics",
        "data",
        "tracking",
    },
    "visual_guide": {"plugin_system", "layers", "metrics", "models", "data"},
    "stages": {
        "data",
        "initial_weights",
        "planning",
        "training",
        "evaluation",
        "pretraining",
        "metrics",
        "packaging",
        "registry",
        "run_memory",
        "tracking",
        "workers",
    },
}
_ROOT: dict[str, set[str]] = {
    # a module directly in `pipeline`, and the packages that it may import; all others import none
    "plugin_api": {"plugin_kinds", "labels"},  # the public face of the kinds
    "config_files": {"plugin_system"},  # reads the names of plugins before their settings
    "plugin_checks": {"plugin_system", "plugin_system.contract"},  # the public face of the contract
}
_PLUGIN_API = ("pipeline.plugin_api", "pipeline.layers")
_FREE = (
    # Values that hold settings or results and import nothing else of their package.
    "pipeline.data.config",
    "pipeline.initial_weights.recipe",
    "pipeline.training.config",
    "pipeline.training.train_result",
    "pipeline.evaluation.config",
    "pipeline.registry.config",
)


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the full module name of every import in a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def violations(root: Path) -> list[str]:
    """Return each forbidden import as `file:line imports module: rule`."""
    found = []
    for package in OWN:
        for file in sorted((root / package).rglob("*.py")):
            relative = file.relative_to(root).as_posix()
            for line, module in imports(file):
                rule = _broken_rule(relative, module)
                if rule:
                    found.append(f"{relative}:{line} imports {module}: {rule}")
    return found


def _broken_rule(file: str, module: str) -> str | None:
    top = file.split("/", maxsplit=1)[0]
    target = module.split(".", maxsplit=1)[0]
    if top == "flows":
        barred = target in ("plugins", "patchline")
        return f"flows never import {target}" if barred else None
    if top == "plugins":
        if target in ("flows", "patchline"):
            return f"plugins never import {target}"
        if target == "pipeline" and not module.startswith(_PLUGIN_API):
            return "plugins import only pipeline.plugin_api and pipeline.layers"
        return None
    if target in ("prefect", "flows", "plugins", "patchline"):
        return "pipeline never imports prefect, flows, plugins or patchline"
    return _broken_layer(file, module)


def _broken_layer(file: str, module: str) -> str | None:
    """Check the direction inside `pipeline`; the values in `_FREE` are open to all."""
    target = module.split(".")
    if target[0] != "pipeline" or len(target) < 2 or module.startswith(_FREE):
        return None
    other = _package(target[1:])
    if other is None:
        return None
    parts = file.removesuffix(".py").split("/")[1:]
    own = _package(parts)
    allowed = _ROOT.get(parts[0], set()) if own is None else _PACKAGES[own] | {own}
    allowed = allowed | {"files", "host", "provenance"}
    if other in allowed:
        return None
    name = f"pipeline.{own or parts[0]}"
    return f"{name} may import {', '.join(sorted(allowed - {own})) or 'no package'}"


def _package(parts: Sequence[str]) -> str | None:
    """Return the package of a module, by its path below `pipeline`; None for one directly in it."""
    inner = ".".join(parts[:2])
    if inner in _PACKAGES:
        return inner
    return parts[0] if parts[0] in _PACKAGES else None


def import_cycles() -> list[str]:
    """Return packages that can reach themselves by the imports that the rules allow."""

    def reached(package: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(_PACKAGES[package])
        while waiting:
            here = waiting.pop()
            if here not in seen:
                seen.add(here)
                waiting += _PACKAGES[here]
        return seen

    return [package for package in _PACKAGES if package in reached(package)]
