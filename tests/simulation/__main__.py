"""Command line; see `python -m tests.simulation --help`."""

from __future__ import annotations

import sys

from tests.simulation.mutants import install

if __name__ in {"__main__", "__mp_main__"}:
    # Before anything of the product is imported, in this process and in each that it starts.
    install()

if __name__ == "__main__":
    from tests.simulation.cli import main

    sys.exit(main())
