"""Several ranks: `python -P -m tests.pipeline.training.processes.training_ranks`.

Arguments: a folder with jobs, and the number of ranks. All ranks do all jobs, in the
order of their names, and write what they have in the end to `rank-N.safetensors`: of the jobs
`gradients-*` the gradients of two steps, of those without initial weights the state. `stopped` is
done in two attempts, and what the first has left is copied to `half-stopped`. Of `diverged` the
last rank once gets infinite images. In the end, it does not answer the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import FileStore, distributed_c10d  # type: ignore[attr-defined]  # not in its __all__
from torch.multiprocessing.spawn import start_processes

from patchline.pipeline.errors import WorkerError
from patchline.pipeline.models.probing import linear_fit
from patchline.pipeline.training import checkpoint
from patchline.pipeline.training.job import StoredTokens, TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts import last_blocks, probe
from patchline.pipeline.training.parts.after_folds import Refit
from patchline.pipeline.training.processes.machines import LOOPBACK, interface_of
from patchline.pipeline.training.processes.rank import fit
from patchline.pipeline.training.processes.ranks import Place, Ranks, name_stopped_ranks
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import leave
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import write_tensors
from tests.patience import patient
from tests.pipeline.training.trained_jobs import FEW_PENALTIES, SETTINGS, Stop

FEATURES_TOGETHER = 5
"""Images whose features a rank computes at once."""


def let_ranks_do(jobs: Mapping[str, TrainingJob], folder: Path, size: int) -> None:
    """Let so many ranks do jobs; they import everything once, in a process of its own."""
    folder.mkdir(exist_ok=True)
    for name, job in jobs.items():
        (folder / f"{name}.json").write_text(job.model_dump_json(), encoding="utf-8")
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": interface_of(LOOPBACK),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONPATH": str(Path(__file__).parents[4]),
    }
    command = [sys.executable, "-P", "-m", f"{__package__}.training_ranks", str(folder), str(size)]
    subprocess.run(command, env=environment, check=True, timeout=patient(120))


def main(rank: int, folder: Path, size: int) -> None:
    """Do all jobs of the folder, in the order of their names."""
    checkpoint._PAUSE_SECONDS, checkpoint._SHARE = 0.0, float("inf")  # one after each step
    checkpoint._FIRST_PAUSE_SECONDS = 0.0
    linear_fit.REGULARIZATIONS = FEW_PENALTIES
    for module in (probe, last_blocks):
        module.suitable_batch_size = lambda *_: FEATURES_TOGETHER  # type: ignore[attr-defined]  # imported there
    store = FileStore(str(folder / "store"), size)
    ranks = Ranks(Place.on_one_machine(rank, size), "cpu", store)
    for file in sorted(folder.glob("*.json")):
        job = TrainingJob.model_validate_json(file.read_text(encoding="utf-8"))
        if file.stem.startswith("gradients"):
            tensors = _gradients(job, ranks)
        elif job.initial_weights is None:
            tensors = _train(file.stem, job, ranks)
        else:
            _fit(job, ranks)
            continue
        save_file(tensors, job.folder / f"rank-{rank}.safetensors")
    _wait_in_vain(folder, ranks)
    leave()


def _events(job: TrainingJob, ranks: Ranks) -> EventWriter:
    return EventWriter(job.folder / "events.jsonl" if ranks.is_first else Path(os.devnull))


def _gradients(job: TrainingJob, ranks: Ranks) -> dict[str, torch.Tensor]:
    training = Training(job, _events(job, ranks), ranks)
    state = training.state
    tensors: dict[str, torch.Tensor] = {}
    for step in (0, training.length.steps_per_epoch - 1):
        state.step = step
        batch = next(training.batches())
        found = training.step.compute_gradients(batch, training.own_order.at(step))
        values: dict[str, torch.Tensor] = {
            name: each.grad.clone()
            for name, each in state.model.named_parameters()
            if each.grad is not None
        }
        values |= {
            "loss": ranks.sum(found.loss),
            "norm": found.norm,
            "correct": ranks.sum(found.correct),
        }
        tensors |= {f"{step}.{name}": value for name, value in values.items()}
    return tensors


def _fit(job: TrainingJob, ranks: Ranks) -> None:
    """Fit a head, or compute tokens together and train from them, with a head that is random."""
    events = _events(job, ranks)
    result = fit(job, events, ranks)
    if isinstance(result, StoredTokens):
        if ranks.is_first:
            write_tensors(result.head, random_head(job))
        ranks.wait_for_first()
        fit(job.model_copy(update={"tokens": result}), events, ranks)
    elif ranks.is_first:
        write_text(job.folder / "result.json", result.model_dump_json())


def random_head(job: TrainingJob) -> dict[str, torch.Tensor]:
    """Return weight and bias of a head."""
    random, classes = torch.Generator().manual_seed(3), len(job.classes)
    weight_KD = 0.1 * torch.randn(classes, SETTINGS["model"]["embed_dim"], generator=random)
    return {"weight": weight_KD, "bias": torch.zeros(classes)}


def _train(name: str, job: TrainingJob, ranks: Ranks) -> dict[str, torch.Tensor]:
    for stops in (True, False) if name == "stopped" else (False,):
        events = _events(job, ranks)
        training = (Refit if job.part.refit else Training)(job, events, ranks)
        if name == "diverged" and ranks.rank + 1 == ranks.size:
            training.state.model.register_forward_pre_hook(partial(_infinite_in_second, count()))
        if stops:
            training.state.optimizer.register_step_post_hook(partial(_stop_in_fourth, training))
        with suppress(Stop):
            training.refit() if isinstance(training, Refit) else training.run()
        if stops and ranks.is_first:
            shutil.copytree(job.folder, job.folder.with_name(f"half-{name}"))
    tensors = training.state.tensors()
    return {key: tensor.clone().contiguous() for key, tensor in tensors.items()}


def _infinite_in_second(calls: Iterator[int], _: nn.Module, given: Any) -> Any:
    return (given[0] * float("inf"),) if next(calls) == 1 else given


def _stop_in_fourth(training: Training, *_: Any) -> None:
    if training.state.step == 3:  # the fourth step, before it counts
        raise Stop


def _wait_in_vain(folder: Path, ranks: Ranks) -> None:
    """Write what the ranks say of the last one, which does not answer."""
    files = [folder / f"hanging-{rank}.txt" for rank in range(ranks.size - 1)]
    wait = timedelta(seconds=1)
    ranks.sum(torch.ones(1))
    distributed_c10d._set_pg_timeout(wait)
    if ranks.rank == len(files):
        while not all(file.exists() for file in files):
            time.sleep(0.05)
        return
    try:
        with name_stopped_ranks(wait):
            ranks.sum(torch.ones(1))
    except (WorkerError, RuntimeError) as error:  # torch's, if another rank gave up before
        write_text(files[ranks.rank], str(error))


if __name__ == "__main__":  # all ranks share what is imported
    size = int(sys.argv[2])
    start_processes(main, (Path(sys.argv[1]), size), size, start_method="fork")  # type: ignore[no-untyped-call]  # torch has no types for it
