"""What the command line needs of a coordinator over HTTP: one small typed client."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

# Answers may take long to begin and long to flow; only the connection itself must come quickly.
TIMEOUT: Final = httpx2.Timeout(None, connect=10.0)
CONFIG_FILE: Final = "client.json"


class ClientError(Exception):
    """What went wrong, with what to do, ready to be shown."""


def default_home() -> Path:
    """`MLXNET_HOME`, or `.mlx-network` in the user's home folder."""
    return Path(os.environ.get("MLXNET_HOME") or Path.home() / ".mlx-network").expanduser()


@dataclass(frozen=True)
class Access:
    """Where the coordinator is and the key to use there."""

    url: str
    api_key: str


def find_access(url: str | None, api_key: str | None, home: Path | None = None) -> Access:
    """Options first, then `MLXNET_URL` and `MLXNET_API_KEY`, then what `up` left in its home.

    `OPENAI_BASE_URL` and `OPENAI_API_KEY` are not taken: they may be another service's, which must
    not get this network's questions, nor this network its key. Raises `ClientError` saying what is
    missing.
    """
    stored: dict[str, str] = {}
    path = (home or default_home()) / CONFIG_FILE
    if path.exists():
        stored = json.loads(path.read_text("utf-8"))
    found_url = url or os.environ.get("MLXNET_URL") or stored.get("url")
    found_key = api_key or os.environ.get("MLXNET_API_KEY") or stored.get("api_key")
    if not found_url:
        raise ClientError(
            "no coordinator: give --url or set MLXNET_URL, or start one with 'mlx-network up'"
            + _not_taken("OPENAI_BASE_URL", "MLXNET_URL")
        )
    if not found_key:
        raise ClientError(
            "no API key: give --api-key or set MLXNET_API_KEY"
            + _not_taken("OPENAI_API_KEY", "MLXNET_API_KEY")
        )
    # People copy the address that OpenAI's clients want.
    return Access(found_url.rstrip("/").removesuffix("/v1"), found_key)


def _not_taken(other: str, ours: str) -> str:
    if not os.environ.get(other):
        return ""
    return f". {other} is set, but not read here: if it is this network's, run: export {ours}=${other}"


class Client:
    """Calls to one coordinator. Every failure is a `ClientError`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._http = httpx2.Client(
            base_url=access.url,
            headers={"Authorization": f"Bearer {access.api_key}"},
            timeout=TIMEOUT,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """GET a JSON object."""
        return self._json("GET", path, params={k: v for k, v in params.items() if v is not None})

    def post(
        self, path: str, body: dict[str, Any] | None = None, *, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """POST a JSON object."""
        return self._json("POST", path, json=body or {}, headers=headers)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """PUT a JSON object."""
        return self._json("PUT", path, json=body)

    def delete(self, path: str) -> dict[str, Any]:
        """DELETE."""
        return self._json("DELETE", path)

    def stream(self, method: str, path: str, body: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The JSON objects of a server-sent event stream, up to `[DONE]`.

        Raises `ClientError` for an error before or inside the stream.
        """
        try:
            with self._http.stream(method, path, json=body) as response:
                if response.status_code >= httpx2.codes.BAD_REQUEST:
                    response.read()
                    raise ClientError(_explain(response))
                for line in response.iter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise ClientError(event["error"]["message"])
                    yield event
        except httpx2.TransportError as error:
            raise ClientError(self._unreachable(error)) from error

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, **options)
        except httpx2.TransportError as error:
            raise ClientError(self._unreachable(error)) from error
        if response.status_code >= httpx2.codes.BAD_REQUEST:
            raise ClientError(_explain(response))
        found: dict[str, Any] = response.json()
        return found

    def _unreachable(self, error: Exception) -> str:
        return f"{self._access.url} does not answer ({type(error).__name__}); is the coordinator running?"


def _explain(response: httpx2.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code} from {response.url}"
