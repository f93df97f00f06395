"""Which Mac this is, told to one coordinator in such a way that no other can make use of it."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Final

from node_agent.hardware.command import output_of

DOMAIN: Final = "mlx-network device v1"
MACHINE_ID: Final = Path("/etc/machine-id")
IDENTITY_VARIABLE: Final = "MLXNODE_DEVICE_ID"
"""For machines without an identity of their own, such as containers made from one image."""

_PLATFORM_UUID: Final = re.compile(
    r'"IOPlatformUUID" = "([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})"'
)
_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}")


def parse_platform_uuid(text: str) -> str | None:
    """The Mac's UUID out of `ioreg -rd1 -c IOPlatformExpertDevice`, or None if it is not there."""
    found = _PLATFORM_UUID.search(text)
    return found[1].lower() if found else None


def parse_machine_id(text: str) -> str | None:
    """The id of /etc/machine-id; None while it is "uninitialized", or empty as in an image."""
    value = text.strip()
    return value if _MACHINE_ID.fullmatch(value) else None


def device_digest(origin: str, identity: str) -> str:
    """SHA-256, in hex, of a fixed line, the coordinator's origin and the machine's identity.

    Another origin gives another digest, so two coordinators cannot tell that they know one Mac.
    """
    return hashlib.sha256(f"{DOMAIN}\n{origin}\n{identity}".encode()).hexdigest()


def device_of(origin: str) -> str | None:
    """This machine's digest for a coordinator; None if the machine does not say which one it is."""
    identity = os.environ.get(IDENTITY_VARIABLE) or _read_identity()
    return device_digest(origin, identity) if identity else None


def _read_identity() -> str | None:
    if sys.platform == "darwin":
        return parse_platform_uuid(output_of("ioreg", "-rd1", "-c", "IOPlatformExpertDevice"))
    try:
        return parse_machine_id(MACHINE_ID.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
