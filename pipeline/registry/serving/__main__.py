"""Serve a package without a registry: `python -m patchline.pipeline.registry.serving`.

The entry point of a container (`patchline export --to container`), which has neither MLflow nor
torch. Its settings are flags, those of `patchline serve` by the same names.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from patchline.pipeline import config_errors
from patchline.pipeline.errors import PipelineError
from patchline.pipeline.registry.serving import server
from patchline.pipeline.registry.serving.alias_watch import Registry
from patchline.pipeline.registry.serving.checked_package import PackageRefusedError, checked_package
from patchline.pipeline.registry.serving.engine import cores
from patchline.pipeline.web.access_control import check_access, given_token
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.listening import check_certificate, listening_socket

_SETTINGS: dict[str, type] = {
    "host": str,
    "port": int,
    "root_path": str,
    "tls_certificate": Path,
    "tls_key": Path,
    "threads": int,
    "max_batch": int,
    "max_queue": int,
    "max_request_mib": int,
    "time_limit_seconds": float,
    "idle_limit_seconds": float,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; return the exit code."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    for name in ("patchline.pipeline.registry.serving", "patchline.pipeline.web"):
        logging.getLogger(name).setLevel(logging.INFO)
    given = _parser().parse_args(arguments)
    try:
        _serve(given)
    except PipelineError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m patchline.pipeline.registry.serving", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--package", type=Path, required=True, help="Folder with model.onnx and model.json."
    )
    parser.add_argument("--name", required=True, help="Name of the model in answers.")
    parser.add_argument("--model-version", required=True, help="Version in answers.")
    parser.add_argument("--token-file", type=Path, help="File whose first line is the token.")
    parser.add_argument(
        "--allowed-host", action="append", default=[], help="Further name of the server."
    )
    for name, kind in _SETTINGS.items():
        field = ServingConfig.model_fields[name]
        flag = name.removesuffix("_seconds").replace("_", "-")
        parser.add_argument(f"--{flag}", dest=name, type=kind, help=field.description)
    return parser


def _serve(given: argparse.Namespace) -> None:
    config = _config(given)
    check_access(config)
    check_certificate(config)
    with listening_socket(config) as listening:
        first = server.FirstVersion(
            given.name,
            None,
            given.model_version,
            lambda: checked_package(given.package, config.threads or cores()),
        )

        def tell() -> None:
            port = listening.getsockname()[1]
            sys.stderr.write(
                f"Serving {given.name}, version {given.model_version}, on {config.host}, port "
                f"{port}.\n"
            )
            sys.stderr.flush()

        try:
            server.serve(first, config, listening, tell, Registry())
        except PackageRefusedError as error:
            raise PackageRefusedError(f"The package cannot be served: {error}.") from error


def _config(given: argparse.Namespace) -> ServingConfig:
    settings: dict[str, Any] = {
        name: value for name in _SETTINGS if (value := getattr(given, name)) is not None
    }
    settings["allowed_hosts"] = tuple(given.allowed_host)
    settings["token"] = given_token(given.token_file)
    try:
        return ServingConfig.model_validate(settings)
    except ValidationError as error:
        raise config_errors.sentence(error, ServingConfig) from error


if __name__ == "__main__":
    sys.exit(main())
