"""The command `patchline plugins new`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from patchline.flows.commands.application import commands
from patchline.flows.commands.switches import Json
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.plugin_skeleton import WrittenPackage, write_package


def new_plugin(kind: str, name: str, /, *, into: Path = Path(), as_json: Json = False) -> None:
    """Create a package with a new, working plugin: code, settings and tests.

    Parameters
    ----------
    kind
        model, patch_embedding, data_source, augmentation, objective, launcher, store or tool.
    name
        Name of the plugin: lower-case letters, digits and underscores.
    into
        Parent folder of the new package `patchline-NAME`; the current folder by default.
    """
    words = name.replace("_", "-")
    if kind == "tool" and words in {each.words.partition(" ")[0] for each in commands()}:
        raise ConfigError(f"`patchline {words}` exists already. Choose another name for the tool.")
    written = write_package(kind, name, into)
    steps = _next_steps(written)
    if as_json:
        answer = {
            "kind": written.kind,
            "name": written.name,
            "folder": str(written.folder),
            "files": list(written.files),
            "next": steps,
        }
        print(json.dumps(answer, indent=2))
        return
    print(f"Created the {written.kind} plugin '{written.name}' in {written.folder}:\n")
    print("\n".join(f"  {file}" for file in written.files))
    print("\nIt already works. What's next:\n")
    print("\n".join(f"  {step}" for step in steps))


def _next_steps(written: WrittenPackage) -> list[str]:
    """Return the commands that install, check, use and test the package, in order."""
    folder = shlex.quote(str(written.folder))
    return [
        f"pip install -e {folder}",
        f"patchline plugins check {written.kind} {written.name}",
        written.run_command,
        f"python -m pytest {folder}",
    ]
