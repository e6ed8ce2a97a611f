"""A launcher of this machine that has room for two workers, so that jobs are divided."""

from __future__ import annotations

from patchline.pipeline.workers.launcher import Resources, WorkerTask
from patchline.pipeline.workers.local_launcher import LocalLauncher, LocalWorker


class Wide(LocalLauncher):
    """Two workers at a time; the folder of one part may be broken."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.broken = ""

    def slots(self, _resources: Resources) -> int:
        return 2

    def start(self, task: WorkerTask) -> LocalWorker:
        self.parts.append(task.folder.name)
        if task.folder.name == self.broken:
            (task.folder / "job.json").write_text("{}", encoding="utf-8")
        return super().start(task)
