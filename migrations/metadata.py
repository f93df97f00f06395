"""All tables that the migrations must produce: the coordinator's and the ledger's."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

from sqlalchemy import MetaData

import coordinator
from coordinator.db import Base
from ledger.models import metadata as ledger_metadata


def target_metadata() -> Sequence[MetaData]:
    """Import every `coordinator.<feature>.models` and return [coordinator's, ledger's] metadata."""
    for package in pkgutil.iter_modules(coordinator.__path__, "coordinator."):
        if package.ispkg:
            names = {
                module.name
                for module in pkgutil.iter_modules([f"{coordinator.__path__[0]}/{package.name[12:]}"])
            }
            if "models" in names:
                importlib.import_module(f"{package.name}.models")
    return [Base.metadata, ledger_metadata]
