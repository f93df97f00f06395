"""The tree against the text of RFC 6962, written down as it stands there, for many sizes."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import merkle


def _h(prefix: bytes, *parts: bytes) -> bytes:
    return hashlib.sha256(prefix + b"".join(parts)).digest()


def _k(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def mth(d: list[bytes]) -> bytes:
    """MTH over leaf hashes, RFC 6962, section 2.1."""
    if not d:
        return hashlib.sha256().digest()
    if len(d) == 1:
        return d[0]
    k = _k(len(d))
    return _h(b"\x01", mth(d[:k]), mth(d[k:]))


def path(m: int, d: list[bytes]) -> list[bytes]:
    """PATH, section 2.1.1."""
    if len(d) == 1:
        return []
    k = _k(len(d))
    return [*path(m, d[:k]), mth(d[k:])] if m < k else [*path(m - k, d[k:]), mth(d[:k])]


def subproof(m: int, d: list[bytes], *, b: bool) -> list[bytes]:
    """SUBPROOF, section 2.1.2."""
    if m == len(d):
        return [] if b else [mth(d)]
    k = _k(len(d))
    if m <= k:
        return [*subproof(m, d[:k], b=b), mth(d[k:])]
    return [*subproof(m - k, d[k:], b=False), mth(d[:k])]


LEAVES = [_h(b"\x00", number.to_bytes(2)) for number in range(301)]
sizes = st.integers(1, 300)


@pytest.mark.parametrize("size", range(301))
def test_the_root_of_every_size(size: int) -> None:
    leaves = LEAVES[:size]
    frontier = merkle.Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    assert merkle.root(size, merkle.node_of(leaves)) == frontier.root() == mth(leaves)


@pytest.mark.parametrize("size", range(1, 41))
def test_every_proof_of_small_trees(size: int) -> None:
    leaves, node = LEAVES[:size], merkle.node_of(LEAVES)
    whole = mth(leaves)
    for index in range(size):
        proof = merkle.inclusion_proof(index, size, node)
        assert proof == path(index, leaves)
        assert [
            place for place in range(size) if merkle.inclusion_holds(LEAVES[index], place, size, proof, whole)
        ] == [index]
    for old in range(1, size + 1):
        proof = merkle.consistency_proof(old, size, node)
        assert proof == ([] if old == size else subproof(old, leaves, b=True))
        assert merkle.consistency_holds(old, mth(LEAVES[:old]), size, whole, proof)


@given(size=sizes, data=st.data())
def test_an_inclusion_proof_proves_one_leaf_at_one_place(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    leaves, whole = LEAVES[:size], mth(LEAVES[:size])
    proof = merkle.inclusion_proof(index, size, merkle.node_of(leaves))
    assert proof == path(index, leaves)
    assert merkle.inclusion_holds(LEAVES[index], index, size, proof, whole)
    other = data.draw(st.integers(0, 299).filter(lambda place: place != index))
    assert not merkle.inclusion_holds(LEAVES[other], index, size, proof, whole)
    assert not merkle.inclusion_holds(LEAVES[index], other, size, proof, whole)
    assert not merkle.inclusion_holds(LEAVES[index], index, size, [*proof, LEAVES[0]], whole)
    if proof:
        assert not merkle.inclusion_holds(LEAVES[index], index, size, proof[:-1], whole)
        place, bit = data.draw(st.integers(0, len(proof) - 1)), data.draw(st.integers(0, 255))
        assert not merkle.inclusion_holds(LEAVES[index], index, size, _flipped(proof, place, bit), whole)


@given(size=sizes, data=st.data())
def test_a_rewritten_history_has_no_consistency_proof(size: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, size))
    leaves = LEAVES[:size]
    proof = merkle.consistency_proof(old, size, merkle.node_of(leaves))
    old_root, new_root = mth(leaves[:old]), mth(leaves)
    assert merkle.consistency_holds(old, old_root, size, new_root, proof)
    changed = [*leaves]
    changed[data.draw(st.integers(0, old - 1))] = LEAVES[300]
    rewritten = merkle.consistency_proof(old, size, merkle.node_of(changed))
    for attempt in (proof, rewritten):
        assert not merkle.consistency_holds(old, old_root, size, mth(changed), attempt)
    if proof:
        place, bit = data.draw(st.integers(0, len(proof) - 1)), data.draw(st.integers(0, 255))
        assert not merkle.consistency_holds(old, old_root, size, new_root, _flipped(proof, place, bit))
        assert not merkle.consistency_holds(old, old_root, size, new_root, proof[1:])
    assert not merkle.consistency_holds(old, old_root, size, new_root, [*proof, LEAVES[0]])


def _flipped(hashes: list[bytes], place: int, bit: int) -> list[bytes]:
    changed = bytearray(hashes[place])
    changed[bit // 8] ^= 1 << bit % 8
    return [*hashes[:place], bytes(changed), *hashes[place + 1 :]]
