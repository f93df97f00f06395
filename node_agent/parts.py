"""Put an agent's parts together from its home and configuration."""

from __future__ import annotations

from pathlib import Path

from node_agent.agent import NodeParts
from node_agent.attempt_book import CoreSettings
from node_agent.hardware.device import device_of
from node_agent.identity import load_identity
from node_agent.models.store import ModelStore
from node_agent.protocol.messages import Hardware
from node_agent.settings import LinkSettings, NodeConfig


def make_parts(home: Path, config: NodeConfig, hardware: Hardware) -> NodeParts:
    """Raises `SettingsError` if the key is damaged."""
    hardware = hardware.model_copy(update={"width": config.width, "models_max": config.models_max})
    models_dir = Path(config.models_dir) if config.models_dir else None
    return NodeParts(
        home=home,
        config=config,
        identity=load_identity(home),
        hardware=hardware,
        store=ModelStore(models_dir=models_dir),
        core=CoreSettings(lent_bytes=hardware.lent_bytes, width=config.width, models_max=config.models_max),
        link=LinkSettings(),
        device=device_of(config.coordinator),
    )
