"""The API of a Kubernetes cluster: plain dictionaries over the official client, which brings how one logs in; and what
its refusals mean."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.config import gap, patience
from monarch_nb.errors import CapacityError, MonarchNbError, PoolError, UsageError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

CONNECT_S, ANSWER_S = gap(5.0), patience(30.0)
"""So long connecting and an answer may take."""
EXTRA = "monarch-nb[k8s]"
KUBECONFIG = "~/.kube/config"
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""In a pod: where it is."""


class NotAllowed(PoolError):
    """The cluster does not let this user: asking again does not help."""


class NotThere(Exception):
    """The API has no such object."""


@dataclass
class Api:
    """A cluster, as one context of a kubeconfig, or the pod in which this runs, knows it.

    Attributes:
        namespace: that is meant when none is said.
        ahead_s: of this computer's clock the cluster's is.
    """

    client: ApiClient
    namespace: str
    ahead_s: float = field(default=0.0)

    @property
    def now(self) -> float:
        """The time by the cluster's clock, seconds since the epoch."""
        return time.time() + self.ahead_s

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        """Return an object, or a list.

        Raises:
            NotThere: there is none. Else as `request`.
        """
        return self._json("GET", path, query=query)

    def text(self, path: str, **query: str | int) -> str:
        """Return what is no JSON: the log of a pod."""
        return self.request("GET", path, query=query).decode(errors="replace")

    def create(self, path: str, manifest: dict[str, Any], **query: str) -> dict[str, Any]:
        """Create an object in a collection; return it as the cluster has it."""
        return self._json("POST", path, manifest, query=query)

    def patch(self, path: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change parts of an object."""
        return self._json("PATCH", path, changes, content="application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete an object, and what it owns before it; one that is not there is fine."""
        try:
            self.request("DELETE", path, {"propagationPolicy": "Foreground"})
        except NotThere:
            pass

    def _json(self, method: str, path: str, body: object = None, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.request(method, path, body, **more))
        return answer

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str | int] | None = None,
        content: str = "application/json",
    ) -> bytes:
        """Return the answer to a request.

        Raises:
            NotThere: there is no such object.
            PoolError: the cluster does not answer, or does not know or let this user.
            CapacityError: a quota is full. UsageError: it makes no sense to the cluster.
        """
        status, date, answer = self._answer(method, path, body, query or {}, content)
        self._compare_clocks(date)
        if 200 <= status < 300:
            return answer
        if status == 401:
            connect.cache_clear()  # who logs in again is known again
        raise refusal(status, answer, self.client.configuration.host)

    def _answer(
        self, method: str, path: str, body: object, query: Mapping[str, str | int], content: str
    ) -> tuple[int, str | None, bytes]:
        """Return status, date and content of an answer. What can be done twice is tried twice: connections are kept,
        and their other end may have closed one."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        client = self.client
        accepts = "*/*" if path.endswith("/log") else "application/json"
        for is_last in (True,) if method == "POST" else (False, True):
            try:
                made = client.param_serialize(
                    method,
                    path,
                    query_params=list(query.items()),
                    header_params={"Accept": accepts, "Content-Type": content},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                response = client.call_api(*made, _request_timeout=(CONNECT_S, ANSWER_S))
                return response.status, response.getheader("Date"), response.read() or b""
            except (HTTPError, ApiException, OSError) as error:
                if is_last:
                    where = client.configuration.host
                    raise PoolError(f"the Kubernetes API at {where} does not answer: {_cause(error)}") from None
        raise AssertionError("the last try returns or raises")

    def _compare_clocks(self, date: str | None) -> None:
        if date:
            try:
                self.ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
            except ValueError:
                pass  # a proxy's; the clocks are taken for equal


def _cause(error: BaseException) -> str:
    """Return the innermost thing that a chain of errors says, in one line."""
    reason = getattr(error, "reason", None)
    while isinstance(reason, BaseException):
        error, reason = reason, getattr(reason, "reason", None)
    return " ".join(str(reason or error).split())


def refusal(status: int, body: bytes, host: str) -> MonarchNbError | NotThere:
    """Return the error for an answer that is none.

    Args:
        host: that gave it.
    """
    try:
        told = json.loads(body)
        said, reason = str(told.get("message") or told), str(told.get("reason", ""))
        kind = str((told.get("details") or {}).get("kind", ""))
    except (ValueError, AttributeError):
        said, reason, kind = body.decode(errors="replace").strip()[:500], "", ""
    if status == 401:
        return PoolError(
            f"the Kubernetes API at {host} does not know you ({said or 'Unauthorized'}): log in again, and kubectl "
            "auth whoami tells who you are"
        )
    if status == 403 and "exceeded quota" in said:
        return CapacityError(f"Kubernetes refuses: {said}", waiting_helps=True)
    if status == 403 and "is forbidden: User" in said:
        return NotAllowed(f"Kubernetes does not let you: {said}. docs/kubernetes.md has the role that is needed")
    if status == 404 and kind == "namespaces":
        return UsageError(
            f"Kubernetes: {said}; name another with -- --namespace=NAME (kubectl get namespaces lists them)"
        )
    if status == 404:
        return NotThere(said)
    if status in (429, 500, 502, 503, 504):
        return PoolError(f"the Kubernetes API at {host} does not answer now: {status} {said}")
    return UsageError(f"Kubernetes refuses ({status}{reason and f' {reason}'}): {said}")


def api_of(context: str) -> Api:
    """Return the cluster of a context; of the current one when it is empty.

    Raises:
        PoolError: the client is not installed, or no cluster is known here. UsageError: there is no such context.
    """
    return connect(context, os.environ.get("KUBECONFIG", ""))


@cache
def connect(context: str, kubeconfig: str) -> Api:
    """Read who and where one is; nothing is sent yet, unless a program of the kubeconfig does to log in.

    Args:
        kubeconfig: what $KUBECONFIG is.
    """
    try:
        from kubernetes import config
        from kubernetes.client import ApiClient, Configuration
    except ImportError:
        raise PoolError(f"the client of Kubernetes is not installed: pip install '{EXTRA}'") from None
    settings, file = Configuration(), kubeconfig or KUBECONFIG
    settings.retries = False  # urllib3's would be told on stderr
    try:
        named = config.list_kube_config_contexts(file)
    except config.ConfigException as missing:
        if context:
            raise UsageError(f"--on k8s:{context}: {missing}") from None
        try:
            config.load_incluster_config(settings)
        except config.ConfigException:
            raise PoolError(
                f"no Kubernetes cluster is known here: {file} can not be used ({missing}), and this is no pod. Name "
                "the cluster's kubeconfig with KUBECONFIG=FILE (kubectl cluster-info tells whether it is right), or "
                "run the notebook in the cluster"
            ) from None
        return Api(ApiClient(settings), OWN_NAMESPACE.read_text().strip())
    contexts, current = named
    known = {each["name"]: each["context"] for each in contexts}
    if context and context not in known:
        raise UsageError(f"--on k8s:{context}: the kubeconfig has the contexts {', '.join(known)}")
    try:
        config.load_kube_config(file, context or None, client_configuration=settings)
    except config.ConfigException as error:
        raise PoolError(f"the kubeconfig can not be used: {error}") from None
    chosen = known[context] if context else current["context"]
    return Api(ApiClient(settings), chosen.get("namespace") or "default")
