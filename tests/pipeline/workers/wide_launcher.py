"""A launcher of this machine that has room for two workers, so that jobs are divided."""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.workers.launcher import Resources, WorkerTask
from patchline.pipeline.workers.worker_start import LocalLauncher, LocalWorker


class Wide(LocalLauncher):
    """Two workers at a time, perhaps on nodes far away; the folder of one part may be broken."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.same_place = set[Path]()
        self.broken = ""
        self.is_far = False

    def slots(self, _resources: Resources) -> int:
        return 2

    def shares_workspace(self) -> bool:
        return not self.is_far

    def start(self, task: WorkerTask) -> LocalWorker:
        self.parts.append(task.folder.name)
        self.same_place |= set(task.same_place)
        if task.folder.name == self.broken:
            (task.folder / "job.json").write_text("{}", "utf-8")
        return super().start(task)
