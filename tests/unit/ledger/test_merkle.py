"""Roots and proofs of the tree against published vectors."""

from __future__ import annotations

import hashlib

import pytest

from ledger.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_holds,
    consistency_proof,
    fold,
    inclusion_holds,
    inclusion_proof,
    node_of,
    root,
)

# The eight entries and tree heads that Certificate Transparency's own tests use.
CONTENTS = (
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
)
LEAVES = [hashlib.sha256(b"\x00" + bytes.fromhex(content)).digest() for content in CONTENTS]
ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
NODE = node_of(LEAVES)


@pytest.mark.parametrize("size", range(9))
def test_roots_are_the_published_ones(size: int) -> None:
    assert root(size, NODE).hex() == ROOTS[size]
    frontier = Frontier()
    for leaf in LEAVES[:size]:
        frontier.append(leaf)
    assert (frontier.size, frontier.root().hex()) == (size, ROOTS[size])


@pytest.mark.parametrize(
    ("index", "size", "path"),
    [
        (0, 1, ()),
        (
            0,
            8,
            (
                "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
            ),
        ),
        (
            5,
            8,
            (
                "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
                "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
                "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            ),
        ),
        (2, 3, ("fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",)),
    ],
)
def test_inclusion_proofs_are_the_published_ones(index: int, size: int, path: tuple[str, ...]) -> None:
    found = inclusion_proof(index, size, NODE)
    assert tuple(digest.hex() for digest in found) == path
    assert inclusion_holds(LEAVES[index], index, size, found, bytes.fromhex(ROOTS[size]))


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (1, 1, ()),
        (0, 8, ()),
        (
            6,
            8,
            (
                "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
                "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
                "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            ),
        ),
        (
            2,
            5,
            (
                "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            ),
        ),
    ],
)
def test_consistency_proofs_are_the_published_ones(old: int, new: int, path: tuple[str, ...]) -> None:
    found = consistency_proof(old, new, NODE)
    assert tuple(digest.hex() for digest in found) == path
    assert consistency_holds(old, bytes.fromhex(ROOTS[old]), new, bytes.fromhex(ROOTS[new]), found)


def test_what_cannot_be_proved_is_refused() -> None:
    for index, size in ((-1, 3), (3, 3), (0, 0)):
        with pytest.raises(ValueError, match="index"):
            inclusion_proof(index, size, NODE)
        assert not inclusion_holds(LEAVES[0], index, size, [], EMPTY_ROOT)
    for old, new in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match="old"):
            consistency_proof(old, new, NODE)
        assert not consistency_holds(old, EMPTY_ROOT, new, EMPTY_ROOT, [])
    with pytest.raises(ValueError, match="size"):
        root(-1, NODE)
    with pytest.raises(ValueError, match="complete"):
        fold(LEAVES[:3])
