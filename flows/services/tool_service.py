"""A tool's service: `python -P -m patchline.flows.services.tool_service FOLDER LIFELINE NAME …`.

The value of the service's flag and the port follow its name.
"""

from __future__ import annotations

from patchline.pipeline.plugin_system.tools import tools
from patchline.pipeline.workers import supervised_process


def _main() -> None:
    _, _, [name, argument, port] = supervised_process.begin()
    [(tool, service)] = [each for each in tools().services() if each[1].name == name]
    tool.load(service.program)(argument, int(port))


if __name__ == "__main__":
    supervised_process.main(_main)
