"""Settings of a server of a packaged model."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import DocumentedModel
from patchline.pipeline.workspace.files.access import check_secret

MEBIBYTE = 1 << 20
Port = Annotated[int, Field(ge=0, le=65535)]
TOKEN_VARIABLE = "PATCHLINE_SERVE_TOKEN"  # noqa: S105 - the name of the variable
_SHORTEST_TOKEN = 16


class ListeningConfig(DocumentedModel):
    """Where a server listens, and whom it answers."""

    host: str = "127.0.0.1"
    """Address to listen on; any other than this machine's own (127.0.0.1, ::1) needs a token."""
    port: Port = 8000
    """Port to listen on; 0 for any that is free."""
    allowed_host: tuple[str, ...] = ()
    """Further host name, as NAME or NAME:PORT, that clients may call the server by."""
    token_file: Path | None = None
    """File whose first line clients must send as `Authorization: Bearer`; or the environment
    variable PATCHLINE_SERVE_TOKEN."""
    tls_certificate: Path | None = None
    """PEM file with the certificate and its chain, to serve HTTPS."""
    tls_key: Path | None = None
    """PEM file with the private key of the certificate."""


class ServingConfig(ListeningConfig):
    """How a server listens, whom it answers, and how much it does at a time."""

    form: Literal["int8", "onnx"] | None = None
    """Export that answers in the place of the package; `patchline export` writes it first."""
    root_path: str = ""
    """Path under which a proxy offers the server, such as /flowers."""
    feedback: Path | None = None
    """CSV table that clients may add images with their labels to, at /feedback; by default none."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Threads that compute; 0 for one per core."""
    max_queue: int = Field(default=256, ge=1, le=100_000)
    """Images that may wait; a request beyond that is answered with 503."""
    max_request_mib: int = Field(default=64, ge=1, le=512)
    """Largest request in MiB; one in JSON may have a quarter of it."""
    time_limit: float = Field(default=30.0, gt=0, le=3600)
    """Seconds from the end of a request until it is answered, or given up with 503."""
    idle_limit: float = Field(default=75.0, gt=0, le=3600)
    """Seconds after which a connection is closed on which nothing is asked after an answer."""
    allow_new_classes: bool = False
    """Switch also to a version with other classes when the alias moves to one."""
    record: Path | None = None
    """Record probabilities and features of the images that are answered in this folder, for
    `patchline monitor`; it keeps the latest 256 MiB."""
    record_images: bool = False
    """Record the images, too."""

    @property
    def max_request_bytes(self) -> int:
        """The largest body in bytes."""
        return self.max_request_mib * MEBIBYTE

    @property
    def max_json_bytes(self) -> int:
        """The largest body in JSON, which takes several times its size while it is read."""
        return self.max_request_bytes // 4

    @cached_property
    def token(self) -> str | None:
        """What clients must send, of the file or the environment; no other process inherits it.

        Raises:
            ConfigError: if the file cannot be read, others may read it, or the token is too short.
        """
        given = os.environ.pop(TOKEN_VARIABLE, None)
        file = self.token_file
        place = TOKEN_VARIABLE
        if file is not None:
            place = str(file)
            try:
                check_secret(file, "token file")
                lines = file.read_text(encoding="utf-8").splitlines()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is no text"
                raise ConfigError(
                    f"The token file {file} cannot be read ({reason}). Give a text file whose "
                    "first line is the token."
                ) from error
            given = lines[0] if lines else ""
        if given is None:
            return None
        token = given.strip()
        if len(token) < _SHORTEST_TOKEN or not token.isascii() or " " in token:
            raise ConfigError(
                f"The token in {place} must have at least {_SHORTEST_TOKEN} characters, without "
                "spaces or accents. `openssl rand -hex 32` makes one."
            )
        return token
