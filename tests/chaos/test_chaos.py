"""A short run of the whole thing; `make chaos` is the long one."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import main


@pytest.mark.timeout(400)
def test_nothing_is_lost_while_everything_breaks(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["--seconds", "30", "--rounds", "0", "--nodes", "2", "--submitters", "4", "--seed", "7"])
    assert code == 0, capfd.readouterr().out
