"""Sort more records than fit in memory: sorted runs in one temporary file, merged when read."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator
from typing import IO, Final, Self

RUN_RECORDS: Final = 1 << 16
READ_RECORDS: Final = 1 << 10


class RecordSorter:
    """Takes byte records of one size in any order and gives them back sorted; use with `with`."""

    def __init__(self, record_bytes: int, run_records: int = RUN_RECORDS) -> None:
        self._size: Final = record_bytes
        self._run_records: Final = run_records
        self._run: list[bytes] = []
        self._runs: Final[list[int]] = []
        self._file: Final[IO[bytes]] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, record: bytes) -> None:
        """Take one record. Raises OSError if the temporary folder is full."""
        self._run.append(record)
        if len(self._run) >= self._run_records:
            self._spill()

    def sorted(self) -> Iterator[bytes]:
        """All records, smallest first. Nothing may be added afterwards."""
        self._spill()
        starts = [sum(self._runs[:number]) for number in range(len(self._runs))]
        yield from heapq.merge(*map(self._read, starts, self._runs))

    def _spill(self) -> None:
        if self._run:
            self._run.sort()
            self._file.write(b"".join(self._run))
            self._runs.append(len(self._run))
            self._run = []

    def _read(self, start: int, count: int) -> Iterator[bytes]:
        for begin in range(start, start + count, READ_RECORDS):
            some = min(READ_RECORDS, start + count - begin)
            self._file.seek(begin * self._size)
            content = self._file.read(some * self._size)
            for offset in range(0, len(content), self._size):
                yield content[offset : offset + self._size]
