"""Options that many commands of `mlx-network` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option("--url", help="The coordinator [MLXNET_URL].")]
Key = Annotated[str | None, typer.Option("--api-key", help="Your API key [MLXNET_API_KEY].")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Home = Annotated[Path | None, typer.Option("--home", help="The coordinator's folder [MLXNET_HOME].")]
