"""Where the seconds of a job's completion went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Parts:
    """Seconds of one job, or means of many; their sum is the completion time.

    `waiting` in the queue; `loading` until the Mac's model is there; `reading_others` while the Mac
    reads other jobs' prompts; `prompt` its own; `alone` its answer as if nothing ran beside it, and
    `beside` what that took longer; `returned` is what an owner's return cost: the queue again, and
    prompts read anew.
    """

    waiting: float = 0.0
    loading: float = 0.0
    reading_others: float = 0.0
    prompt: float = 0.0
    alone: float = 0.0
    beside: float = 0.0
    returned: float = 0.0

    def wait(self, seconds: float, *, is_again: bool) -> None:
        """Time in the queue has ended."""
        if is_again:
            self.returned += seconds
        else:
            self.waiting += seconds

    def read(self, seconds: float, *, is_own: bool, is_again: bool) -> None:
        """A prompt was read on its Mac."""
        if not is_own:
            self.reading_others += seconds
        elif is_again:
            self.returned += seconds
        else:
            self.prompt += seconds

    def decode(self, seconds: float, *, alone: float) -> None:
        """Its answer went on, for as many steps as take `alone` seconds of a Mac for itself."""
        self.alone += alone
        self.beside += seconds - alone


def mean_parts(found: Sequence[Parts]) -> Parts:
    """The mean of each. Of none it is nothing."""
    count = max(len(found), 1)
    return Parts(*(sum(float(getattr(one, each.name)) for one in found) / count for each in fields(Parts)))
