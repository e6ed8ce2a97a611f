"""Which package may import which, as a function on a source tree, so that it can be tried."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

OWN = ("pipeline", "flows", "plugins")
_LIBRARY_LAYERS = {
    # a package inside pipeline, and the packages inside pipeline that it may import
    "layers": set(),
    "metrics": set(),
    "data": set(),
    "training": {"metrics", "data"},
    "evaluation": {"metrics", "data"},
    "registry": {"evaluation", "metrics", "data"},
    "browsing": {"registry", "evaluation", "metrics", "data"},
    "visual_guide": set(),
    "contract": {"data"},
}
_PLUGIN_API = ("pipeline.plugin_api", "pipeline.layers")
_FACADES = ("pipeline/plugin_checks.py",)  # the public face of a package below it
_CONFIGS = (
    "pipeline.data.config",
    "pipeline.training.config",
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
        return "flows never import plugins" if target == "plugins" else None
    if top == "plugins":
        if target == "flows":
            return "plugins never import flows"
        if target == "pipeline" and not module.startswith(_PLUGIN_API):
            return "plugins import only pipeline.plugin_api and pipeline.layers"
        return None
    if target in ("prefect", "flows", "plugins"):
        return "pipeline never imports prefect, flows or plugins"
    return _broken_layer(file, module)


def _broken_layer(file: str, module: str) -> str | None:
    """Check the direction inside `pipeline`; section configs are free to import."""
    parts, target = file.split("/"), module.split(".")
    if target[0] != "pipeline" or len(target) < 2 or module.startswith(_CONFIGS):
        return None
    if len(parts) == 2:
        upward = target[1] in _LIBRARY_LAYERS and file not in _FACADES
        return "a module beside the packages never imports one of them" if upward else None
    own, other = parts[1], target[1]
    allowed = _LIBRARY_LAYERS[own] | {own}
    if other in _LIBRARY_LAYERS and other not in allowed:
        return (
            f"inside pipeline, {own} may import {', '.join(sorted(allowed - {own})) or 'no other'}"
        )
    return None
