"""Command line; see `python -m tests.simulation --help`."""

from __future__ import annotations

import sys

from tests.simulation.mutants import install

if __name__ == "__main__":
    # Before anything of the product is imported.
    install()

    from tests.simulation.cli import main

    sys.exit(main())
