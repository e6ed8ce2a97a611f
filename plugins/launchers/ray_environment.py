"""The environment variables that go to the nodes of a Ray cluster.

They are named one by one, because others that begin with `PATCHLINE_` are secrets, such as the
token of a server.
"""

from __future__ import annotations

from collections.abc import Mapping

WORKSPACE_VARIABLE = "PATCHLINE_WORKSPACE"
_OF_WORKERS = (
    "PATCHLINE_CACHE_LIMIT",
    "PATCHLINE_CORES",
    "PATCHLINE_NODE_FOLDER",
    "PATCHLINE_PLUGIN_FILES",
    WORKSPACE_VARIABLE,
)
"""What a worker reads; the machine of the run decides."""
_OF_STORES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")
"""Where an object store is; a node that says so itself keeps its own. Credentials are its own, too.
"""


def environment_of_nodes(environment: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the variables that go to each node.

    Args:
        environment: of the machine of the run.
        uri: address of the shared workspace; empty if it is a folder of one machine.
    """
    names = (*_OF_WORKERS, *_OF_STORES)
    sent = {name: environment[name] for name in names if name in environment}
    return {**sent, WORKSPACE_VARIABLE: uri} if uri else sent
