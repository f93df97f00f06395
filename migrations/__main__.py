"""Write a new migration from the models: `python -m migrations "Add the x column"`.

Compares the models with a fresh database at the newest revision and writes the difference to
`migrations/versions/`. Read the file before committing it: renames and triggers are not seen, and
on SQLite a table that is copied loses its triggers, which the migration must then make again.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from alembic import command

from coordinator.db import make_engine
from migrations import config_for, head_revision, migrate, migration_connection


def main() -> None:
    """Write `NNNN_slug.py`, numbered after the newest revision."""
    if len(sys.argv) != 2 or not re.fullmatch(r"[A-Z][A-Za-z0-9 ,'-]{2,80}", sys.argv[1]):
        raise SystemExit('usage: python -m migrations "Add the x column"')
    message = sys.argv[1]
    slug = re.sub(r"[^a-z0-9]+", "_", message.lower().replace("'", "")).strip("_")
    revision = f"{int(head_revision()[:4]) + 1:04d}_{slug}"[:32].rstrip("_")
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(f"sqlite:///{Path(folder) / 'empty.db'}")
        migrate(engine)
        with migration_connection(engine) as connection:
            config = config_for(connection)
            config.attributes["compares"] = True
            config.set_main_option("file_template", "%%(rev)s")
            command.revision(config, message, autogenerate=True, rev_id=revision)
        engine.dispose()
    path = Path(__file__).parent / "versions" / f"{revision}.py"
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(path)], check=False)


if __name__ == "__main__":
    main()
