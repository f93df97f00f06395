"""What a node says of its Mac, and what all messages have in common."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Claims beyond these are no Mac: the largest has 512 GiB and 819 GB/s (M3 Ultra); room for later.
MEMORY_BYTES_MAX: Final = 1 << 42
BANDWIDTH_MAX: Final = 4 * 10**12
MODELS_SIDE_BY_SIDE_MAX: Final = 16


class Message(BaseModel):
    """Base of every message: immutable, tolerant of fields from newer minors."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Hardware(Message):
    """What a node says of its Mac, and how much of it its owner lends: memory, `width` attempts at
    the same time, and `models_max` models side by side, one of them at work. Claims: used for
    placement, never for money."""

    chip: Annotated[str, Field(max_length=100)] = "unknown"
    memory_bytes: Annotated[int, Field(gt=0, le=MEMORY_BYTES_MAX)]
    lent_bytes: Annotated[int, Field(gt=0, le=MEMORY_BYTES_MAX)]
    bandwidth_bytes_per_second: Annotated[int, Field(gt=0, le=BANDWIDTH_MAX)]
    gpu_cores: Annotated[int, Field(ge=0, le=1024)] = 0
    width: Annotated[int, Field(ge=1, le=64)] = 8
    models_max: Annotated[int, Field(ge=1, le=MODELS_SIDE_BY_SIDE_MAX)] = 1
    os: Annotated[str, Field(max_length=100)] = "unknown"
    accelerated: bool = False

    @model_validator(mode="after")
    def _check_lent(self) -> Hardware:
        if self.lent_bytes > self.memory_bytes:
            raise ValueError("lent_bytes must not exceed memory_bytes")
        return self
