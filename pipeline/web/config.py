"""Settings of a server of a packaged model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from patchline.pipeline import config_errors
from patchline.pipeline.frozen_model import FrozenModel

MEBIBYTE = 1 << 20


class ServingConfig(FrozenModel):
    """How a server listens, whom it answers, and how much it does at a time."""

    host: str = "127.0.0.1"
    """Address to listen on; any other than this machine's own needs a token."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 for any that is free."""
    allowed_hosts: tuple[str, ...] = ()
    """Further host names, as NAME or NAME:PORT, that clients may call the server by."""
    token: str | None = Field(default=None, repr=False)
    """What clients must send as `Authorization: Bearer TOKEN`; None for no token."""
    root_path: str = ""
    """Path under which a proxy offers the server, such as /flowers."""
    tls_certificate: Path | None = None
    """PEM file with the certificate and its chain, to serve HTTPS."""
    tls_key: Path | None = None
    """PEM file with the private key of the certificate."""
    feedback: Path | None = None
    """CSV table that clients may add images with their labels to, at /feedback; by default none."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Threads that compute; 0 for one per core that this process may use."""
    max_batch: int = Field(default=16, ge=1, le=1024)
    """Images that the network computes together at most; fewer if more are hardly faster."""
    max_queue: int = Field(default=256, ge=1, le=100_000)
    """Images that may wait; a request beyond that is answered with 503."""
    max_request_mib: int = Field(default=64, ge=1, le=512)
    """Size of a request's body in MiB; of one in JSON, a quarter of it."""
    time_limit_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Seconds from the end of a request until it is answered, or given up with 503."""
    idle_limit_seconds: float = Field(default=75.0, gt=0, le=3600)
    """Seconds after which a connection is closed on which nothing is asked after an answer."""
    allow_new_classes: bool = False
    """Whether the server switches to a version with other classes when the alias moves there."""
    form: Literal["int8", "onnx"] | None = None
    """Export of a version that answers in the place of its package; None for the package."""
    poll_seconds: float = Field(default=1.0, gt=0, le=3600)
    """Seconds between two questions to the registry where the alias points."""

    record: Path | None = None
    """Folder that receives probabilities and features of the images that were answered."""
    record_images: bool = False
    """Whether the images are recorded, too."""
    record_mib: int = Field(default=256, ge=1)
    """Size of the folder in MiB, beyond which the oldest recorded traffic is removed."""

    @property
    def max_request_bytes(self) -> int:
        """The largest body in bytes."""
        return self.max_request_mib * MEBIBYTE

    @property
    def max_json_bytes(self) -> int:
        """The largest body in JSON, which takes several times its size while it is read."""
        return self.max_request_bytes // 4


def serving_config(**settings: Any) -> ServingConfig:
    """Return the settings.

    Raises:
        ConfigError: if one is wrong.
    """
    try:
        return ServingConfig.model_validate(settings)
    except ValidationError as error:
        raise config_errors.sentence(error, ServingConfig) from error
