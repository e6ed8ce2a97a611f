"""The command `patchline serve`."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import ValidationError

from patchline.flows.commands.switches import Json
from patchline.pipeline import config_errors
from patchline.pipeline.errors import ConfigError, ModelReferenceError, RunError
from patchline.pipeline.serving.config import ServingConfig

TOKEN_VARIABLE = "PATCHLINE_SERVE_TOKEN"  # noqa: S105 - the name of the variable
_SHORTEST_TOKEN = 16


def serve(
    model: str,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allowed_host: Annotated[tuple[str, ...], Parameter(name="--allowed-host")] = (),
    token_file: Path | None = None,
    root_path: str = "",
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    threads: int = 0,
    max_batch: int = 16,
    max_queue: int = 256,
    max_request_mib: int = 64,
    time_limit: float = 30.0,
    as_json: Json = False,
) -> int:
    """Serve a registered model over HTTP until Ctrl-C or SIGTERM.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion. With
        an alias, the server switches when the alias moves.
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
    threads
        Threads that compute; 0 for one per core.
    max_batch
        Images that the network computes at a time.
    max_queue
        Images that may wait; a request beyond that is answered with 503.
    max_request_mib
        Largest request in MiB; one in JSON may have a quarter of it.
    time_limit
        Seconds from the end of a request until it is answered, or given up with 503.
    """
    config = _config(
        host=host,
        port=port,
        allowed_hosts=allowed_host,
        token=_token(token_file),
        root_path=root_path,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        threads=threads,
        max_batch=max_batch,
        max_queue=max_queue,
        max_request_mib=max_request_mib,
        time_limit_seconds=time_limit,
    )
    _check_doors(config)
    return serve_model(model, config, as_json=as_json)


def serve_model(model: str, config: ServingConfig, *, as_json: bool) -> int:
    """Serve a model until a signal arrives; return the exit code."""
    from patchline.pipeline.registry.served_package import served_package
    from patchline.pipeline.serving import server
    from patchline.pipeline.serving.alias_watch import Registry
    from patchline.pipeline.serving.checked_package import PackageRefusedError, checked_package
    from patchline.pipeline.serving.engine import cores

    _log_to_standard_error()
    server.check_certificate(config)
    registry = Registry()
    name, alias, version = _resolved(model, registry)
    listening = server.listening_socket(config)
    with listening:
        folder = served_package(registry.reader(), name, version)
        try:
            checked = checked_package(folder, config.threads or cores())
        except PackageRefusedError as error:
            raise RunError(
                f"Version {version} of '{name}' cannot be served: {error}. Name another version."
            ) from error
        url = _url(config, listening.getsockname()[1])

        def tell() -> None:
            _tell(url, name, alias, version, as_json=as_json)

        server.serve((name, alias), version, checked, config, listening, tell, registry)
    return 0


def _resolved(model: str, registry: Any) -> tuple[str, str | None, str]:
    """Return the name, the alias that is followed, and the version of a reference.

    Raises:
        ModelReferenceError: if there is none; the message lists what there is.
    """
    from patchline.pipeline.registry.model_reference import parsed

    name, alias, version = parsed(model)
    if version is None:
        assert alias is not None  # noqa: S101 - one of the two
        version = registry.reader().version_of(name, alias)
    elif registry.reader().place_of(name, version) is None:
        version = None
    if version is None:
        from patchline.pipeline.registry.registered_models import resolve

        resolve(model)  # MLflow takes seconds, and knows what there is instead
        raise ModelReferenceError(f"'{model}' is not in the registry. `patchline models` lists it.")
    return name, alias, version


def _config(**settings: Any) -> ServingConfig:
    """Return the settings.

    Raises:
        ConfigError: if one is wrong.
    """
    try:
        return ServingConfig.model_validate(settings)
    except ValidationError as error:
        raise config_errors.sentence(error, ServingConfig) from error


def _token(file: Path | None) -> str | None:
    """Return the token in a file, or in the environment, which no other process inherits then.

    Raises:
        ConfigError: if the file cannot be read, or the token is too short.
    """
    given = os.environ.pop(TOKEN_VARIABLE, None)
    place = TOKEN_VARIABLE
    if file is not None:
        place = str(file)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(f"The token file {file} cannot be read ({reason}).") from error
        given = lines[0] if lines else ""
    if given is None:
        return None
    token = given.strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or " " in token:
        raise ConfigError(
            f"The token in {place} must have at least {_SHORTEST_TOKEN} characters, without spaces "
            "or accents. `openssl rand -hex 32` makes one."
        )
    return token


def _check_doors(config: ServingConfig) -> None:
    """Check that a server which others reach has a token.

    Raises:
        ConfigError: if it has none, or its root path is no path.
    """
    if config.root_path and (not config.root_path.startswith("/") or config.root_path[-1] == "/"):
        raise ConfigError(
            f"--root-path {config.root_path} must begin with a slash and end without one, such as "
            "/flowers."
        )
    if config.token is None and not _is_loopback(config.host):
        raise ConfigError(
            f"--host {config.host} lets other machines use the model, which needs a token. Add "
            f"--token-file FILE, or set {TOKEN_VARIABLE}."
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _url(config: ServingConfig, port: int) -> str:
    scheme = "https" if config.tls_certificate else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)  # noqa: S104 - named
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"


def _tell(url: str, name: str, alias: str | None, version: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"url": url, "model": name, "version": version}), flush=True)
        return
    follows = f" and follows the alias {alias}" if alias else ""
    print(f"Serving {name}, version {version}, at {url}{follows}. Ctrl-C stops it.", flush=True)


def _log_to_standard_error() -> None:
    """Show what the server has to say while it runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("patchline.pipeline.serving")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
