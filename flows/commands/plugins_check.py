"""The command `patchline plugins check`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from pydantic import BaseModel

from patchline.flows.commands.named_plugin import NamedPlugin, check_words, named_plugin, typed
from patchline.flows.commands.switches import Json
from patchline.pipeline.plugin_system import plugin_loader


def build_check(arguments: list[str]) -> Callable[..., int]:
    """Return the command with the settings of the named plugin as flags."""

    def check(
        *words: str,
        as_json: Json = False,
        settings: Any = None,
    ) -> int:
        """Run the plugin's conformance checks; exits with code 1 if one fails.

        Parameters
        ----------
        words
            [KIND] NAME of the plugin; KIND is needed only if the name is ambiguous. Settings are
            flags as in `run`: --model.size b.
        settings
            Settings to run the checks with.
        """
        check_words(words, arguments)
        return _print_checks(named_plugin(arguments), settings, as_json=as_json)

    return typed(check, arguments)


def _print_checks(named: NamedPlugin, settings: BaseModel | None, *, as_json: bool) -> int:
    """Run the checks, and print each result as soon as it is available."""
    from patchline.plugin_checks import checks_of

    entry = named.entry
    with redirect_stdout(sys.stderr):  # output of the plugin's own
        plugin = plugin_loader.load(entry.kind, entry.name)
        checks = checks_of(plugin, named.only_own_settings(settings))
    stream = sys.stderr if as_json else sys.stdout
    print(f"{entry.kind} {entry.name} ({entry.distribution} {entry.version})\n", file=stream)
    width = max(len(check.name) for check in checks)
    results = []
    for check in checks:
        print(f"  {check.name:<{width}}  ", end="", file=stream, flush=True)
        with redirect_stdout(sys.stderr):
            result = check.result()
        results.append(result)
        note = {"passed": check.summary, "failed": result.message}.get(
            result.status, f"expected: {result.message}"
        )
        print(f"{result.status:<8} {result.seconds:5.1f} s  {note}", file=stream)
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("passed", "excepted", "failed")
    }
    print("\n" + ", ".join(f"{count} {status}" for status, count in counts.items()), file=stream)
    if as_json:
        answer = {
            "kind": entry.kind,
            "name": entry.name,
            "passed": counts["failed"] == 0,
            "checks": [result.model_dump() for result in results],
        }
        print(json.dumps(answer, indent=2))
    return 1 if counts["failed"] else 0
