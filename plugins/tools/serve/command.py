"""The command `patchline serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from patchline.flows.commands.switches import Json, Switch
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.web.access_control import check_access, given_token
from patchline.pipeline.web.config import serving_config
from patchline.plugins.tools.serve.model_server import serve_model


def serve(
    model: str,
    /,
    *,
    form: Literal["int8", "onnx"] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    allowed_host: Annotated[tuple[str, ...], Parameter(name="--allowed-host")] = (),
    token_file: Path | None = None,
    root_path: str = "",
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    feedback: Path | None = None,
    threads: int = 0,
    max_batch: int = 16,
    max_queue: int = 256,
    max_request_mib: int = 64,
    time_limit: float = 30.0,
    idle_limit: float = 75.0,
    allow_new_classes: Switch = False,
    record: Path | None = None,
    record_images: Switch = False,
    record_mib: int = 256,
    as_json: Json = False,
) -> int:
    """Serve a registered model over HTTP until Ctrl-C or SIGTERM.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion. With
        an alias, the server switches when the alias moves.
    form
        Export that answers in the place of the package; `patchline export` writes it first.
    host
        Address to listen on; any other than this machine's own (127.0.0.1, ::1) needs a token.
    port
        Port to listen on; 0 for any that is free.
    allowed_host
        Further host name, as NAME or NAME:PORT, that clients may call the server by.
    token_file
        File whose first line clients must send as `Authorization: Bearer`; or the environment
        variable PATCHLINE_SERVE_TOKEN.
    root_path
        Path under which a proxy offers the server, such as /flowers.
    tls_certificate
        PEM file with the certificate and its chain, to serve HTTPS.
    tls_key
        PEM file with the private key of the certificate.
    feedback
        CSV table that clients may add images with their labels to, at /feedback; by default none.
    threads
        Threads that compute; 0 for one per core.
    max_batch
        Images that the network computes together at most.
    max_queue
        Images that may wait; a request beyond that is answered with 503.
    max_request_mib
        Largest request in MiB; one in JSON may have a quarter of it.
    time_limit
        Seconds from the end of a request until it is answered, or given up with 503.
    idle_limit
        Seconds after which a connection is closed on which nothing is asked after an answer.
    allow_new_classes
        Switch also to a version with other classes when the alias moves to one.
    record
        Record probabilities and features of the images that are answered in this folder, for
        `patchline monitor`.
    record_images
        Record the images, too.
    record_mib
        Size of the folder in MiB, beyond which the oldest recorded traffic is removed.
    """
    if record is None and record_images:
        raise ConfigError("--record-images needs a folder. Add --record FOLDER.")
    config = serving_config(
        form=form,
        host=host,
        port=port,
        allowed_hosts=allowed_host,
        token=given_token(token_file),
        root_path=root_path,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        feedback=feedback,
        threads=threads,
        max_batch=max_batch,
        max_queue=max_queue,
        max_request_mib=max_request_mib,
        time_limit_seconds=time_limit,
        idle_limit_seconds=idle_limit,
        allow_new_classes=allow_new_classes,
        record=record,
        record_images=record_images,
        record_mib=record_mib,
    )
    check_access(config)
    return serve_model(model, config, as_json=as_json)
