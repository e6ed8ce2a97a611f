"""The command `patchline serve`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import ValidationError

from patchline.flows.commands.switches import Json, Switch
from patchline.pipeline import config_errors
from patchline.pipeline.errors import ConfigError, ModelReferenceError, RunError, ServerAwayError
from patchline.pipeline.serving.access_token import check_access, given_token
from patchline.pipeline.serving.config import ServingConfig

if TYPE_CHECKING:
    from patchline.pipeline.serving.server import FirstVersion


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


def serve_model(model: str, config: ServingConfig, *, as_json: bool) -> int:
    """Serve a model until a signal arrives; return the exit code."""
    from patchline.pipeline.registry.served_package import served_package
    from patchline.pipeline.serving import server
    from patchline.pipeline.serving.alias_watch import Registry
    from patchline.pipeline.serving.certificate import check_certificate
    from patchline.pipeline.serving.checked_package import PackageRefusedError, checked_package
    from patchline.pipeline.serving.engine import cores

    log_to_standard_error("patchline.pipeline.serving")
    check_certificate(config)
    registry = Registry()
    name, alias, version = _resolved(model, registry)
    listening = server.listening_socket(config)
    with listening:
        folder = served_package(registry.reader(), name, version, config.form)
        url = url_of(config, listening.getsockname()[1])
        first = server.FirstVersion(
            name, alias, version, lambda: checked_package(folder, config.threads or cores())
        )

        def tell() -> None:
            _tell(url, first, config.form, as_json=as_json)

        try:
            server.serve(first, config, listening, tell, registry)
        except PackageRefusedError as error:
            raise RunError(
                f"Version {version} of '{name}' cannot be served: {error}. Name another version."
            ) from error
    return 0


def _resolved(model: str, registry: Any) -> tuple[str, str | None, str]:
    """Return the name, the alias that is followed, and the version of a reference.

    Raises:
        ModelReferenceError: if there is none; the message lists what there is.
    """
    from patchline.pipeline.registry.model_reference import parsed
    from patchline.pipeline.tracking.tracking_store import store_exists

    name, alias, version = parsed(model)
    try:
        if version is None:
            assert alias is not None  # noqa: S101 - one of the two
            version = registry.reader().version_of(name, alias)
        elif registry.reader().place_of(name, version) is None:
            version = None
    except ServerAwayError:
        if store_exists():
            raise
        version = None
    if version is None:
        from patchline.pipeline.registry.registered_models import resolve

        resolve(model)  # MLflow takes seconds, and knows what there is instead
        raise ModelReferenceError(f"'{model}' is not in the registry. `patchline models` lists it.")
    return name, alias, version


def serving_config(**settings: Any) -> ServingConfig:
    """Return the settings.

    Raises:
        ConfigError: if one is wrong.
    """
    try:
        return ServingConfig.model_validate(settings)
    except ValidationError as error:
        raise config_errors.sentence(error, ServingConfig) from error


def url_of(config: ServingConfig, port: int) -> str:
    """Return the address of a server, as a browser on this machine opens it."""
    scheme = "https" if config.tls_certificate else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104 - named
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"


def _tell(url: str, first: FirstVersion, form: str | None, *, as_json: bool) -> None:
    if as_json:
        ready = {"url": url, "model": first.name, "version": first.version, "form": form}
        print(json.dumps(ready), flush=True)
        return
    as_form = f" as {form}" if form else ""
    follows = f" and follows the alias {first.alias}" if first.alias else ""
    print(
        f"Serving {first.name}, version {first.version}{as_form}, at {url}{follows}. Ctrl-C stops "
        "it.",
        flush=True,
    )


def log_to_standard_error(name: str) -> None:
    """Show what a server logs under a name while it runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger(name)
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
