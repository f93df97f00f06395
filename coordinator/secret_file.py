"""Secret keys that a coordinator keeps in files of its own: read, or made at the first start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 32


def read_or_make_key(path: Path) -> bytes:
    """The 32-byte key at `path`; made there (mode 0600) if there is none yet.

    Raises `ValueError`, with the reason, if the file is there and holds something else.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
    else:
        key = secrets.token_bytes(KEY_BYTES)
        with os.fdopen(descriptor, "wb") as file:
            _ = file.write(key)
            file.flush()
            os.fsync(file.fileno())
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} must hold {KEY_BYTES} random bytes and holds {len(key)}")
    return key
