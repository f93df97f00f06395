"""Nonces: good once, in their minute, in their process, and in bounded memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator import clock
from coordinator.mac_key import MacKey
from coordinator.nodes import nonces as module
from coordinator.nodes.nonces import NONCE_SECONDS, Nonces


@pytest.fixture
def key(tmp_path: Path) -> MacKey:
    return MacKey.from_file(tmp_path / "mac.key")


def test_a_nonce_is_good_once(key: MacKey) -> None:
    nonces = Nonces(key)
    one, other = nonces.make(), nonces.make()
    assert nonces.is_good(one) and nonces.use(one)
    assert not nonces.is_good(one) and not nonces.use(one)
    assert nonces.use(other)
    assert not nonces.use(other[:-2])


def test_of_many_at_once_one_uses_it(key: MacKey) -> None:
    nonces = Nonces(key)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            assert sum(pool.map(nonces.use, [nonces.make()] * 8)) == 1


def test_a_process_that_began_later_does_not_take_it(key: MacKey, monkeypatch: pytest.MonkeyPatch) -> None:
    nonce = Nonces(key).make()
    later_us = clock.wall_us() + 1
    monkeypatch.setattr(clock, "wall_us", lambda: later_us)
    assert not Nonces(key).is_good(nonce)


def test_used_ones_are_kept_until_their_end_and_no_longer(
    key: MacKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "USED_MAX", 2)
    now_us = clock.wall_us()
    monkeypatch.setattr(clock, "wall_us", lambda: now_us)
    nonces = Nonces(key)
    used = [nonces.make() for _ in range(3)]
    # Beyond the bound none is taken: a used one must not become good again.
    assert [nonces.use(nonce) for nonce in used] == [True, True, False]
    now_us += int(NONCE_SECONDS * 1e6)
    assert not any(nonces.use(nonce) for nonce in used)
    assert all(nonces.use(nonces.make()) for _ in range(2))
