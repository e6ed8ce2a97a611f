"""How the templates of pages are read: every value is escaped, a missing one is an error."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def page_environment(package: str) -> Environment:
    """Return the environment for the templates beside the modules of a package."""
    return Environment(
        loader=PackageLoader(package, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
