"""Links that sign a browser in: `patchline up` asks each server for a code that works once."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request

from flows.services.gate import CODES, LOGIN
from pipeline import local_login
from pipeline.local_services import Services

_SECONDS = 20.0


def prefect_link(services: Services) -> str:
    """Return where a click opens Prefect's pages."""
    return _link(services, "prefect", services.prefect_url)


def mlflow_link(services: Services) -> str:
    """Return where a click opens MLflow's pages."""
    return _link(services, "mlflow", services.mlflow_url)


def _link(services: Services, name: str, url: str) -> str:
    """Return a link with a code; the plain address of a server of the user's own or one away."""
    secret = local_login.secret(services.folder)
    if name not in services.own or secret is None:
        return url
    proof = base64.b64encode(f"{local_login.USER}:{secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - a server of our own
        f"{url}{CODES}", method="POST", headers={"authorization": f"Basic {proof}"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_SECONDS) as response:
            code = json.load(response)["code"]
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return url
    return f"{url}{LOGIN}?code={code}"
