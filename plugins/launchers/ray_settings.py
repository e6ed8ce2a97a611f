"""The settings of the launcher ray."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from patchline.plugin_api import PluginConfig


class RayConfig(PluginConfig):
    """Settings."""

    address: Annotated[str, Field(min_length=1)] = "auto"
    """Address of the cluster's head, HOST:PORT; auto for the one that this machine belongs to. The
    token is read from RAY_AUTH_TOKEN, or from the file in RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token.
    """

    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of nodes over which the processes of a training run are spread."""

    cpus: Annotated[float, Field(gt=0)] | None = None
    """CPU cores that a worker reserves on a node; null for all cores of a node."""

    gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs that a training run reserves in total; null for one per process where there are as many.
    """

    memory_gib: Annotated[float, Field(ge=0)] = 0.0
    """Memory in GiB that a worker reserves on a node; 0 reserves none."""

    wait_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Maximum seconds to wait until nodes have the requested resources."""

    shared_folder: bool = False
    """Whether all nodes mount the working directory at the same path, such as from NFS or Lustre;
    each node proves that it reads the workspace. It is not needed if the workspace is on an object
    store, through which files then travel. Otherwise, several nodes are refused."""
