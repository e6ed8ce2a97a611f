"""The exact versions of libraries, and of everything that they require, as installed here."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchline.pipeline.errors import PackagingError


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
