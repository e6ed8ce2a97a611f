"""Links that sign a browser in, each with a one-time code that the server issues."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request

from patchline.pipeline import local_login
from patchline.pipeline.local_services import Services
from patchline.pipeline.web.browser_sessions import CODES, LOGIN

_SECONDS = 20.0


def prefect_link(services: Services) -> str:
    """Return a link that opens the Prefect UI."""
    return _link(services, "prefect", services.prefect_url)


def mlflow_link(services: Services) -> str:
    """Return a link that opens the MLflow UI."""
    return _link(services, "mlflow", services.mlflow_url)


def _link(services: Services, name: str, url: str) -> str:
    """Return a link with a code; the plain address if the server is the user's or is down."""
    secret = local_login.secret(services.folder)
    if name not in services.own or secret is None:
        return url
    credentials = base64.b64encode(f"{local_login.USER}:{secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{url}{CODES}", method="POST", headers={"authorization": f"Basic {credentials}"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_SECONDS) as response:
            code = json.load(response)["code"]
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return url
    return f"{url}{LOGIN}?code={code}"
