"""Check an exported ledger offline: `verify_export(path, key)`, with the file and a public key alone.

Everything is computed anew: each command's digest, each leaf, the chain of heads, the Merkle root
and the signatures on it, and (in `ledger.audit`) what each entry does to balances and holds. Ids
and refunds are checked in a second pass over records that are sorted on disk. So memory depends on
accounts and open holds, not on the number of entries; nothing but `cryptography` is needed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ledger import export_format
from ledger.audit import Auditor, Finding
from ledger.chain import GENESIS_HEAD, leaf_of_text, next_head
from ledger.export_format import EntryLine
from ledger.lifelines import Lifelines
from ledger.merkle import Frontier
from ledger.notes import Checkpoint, NoteError, VerifierKey, open_checkpoint

MAX_FAULTS: Final = 100
MAX_SEQ: Final = 1 << 63


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: at entry `seq` (None: in the first or last line), in line `line`.

    `rule` is one stable word for what is broken; `detail` says more. A line that cannot be read
    has the number that its entry should have.
    """

    seq: int | None
    line: int
    rule: str
    detail: str


@dataclass(frozen=True)
class Verified:
    """What a sound file holds; `size` entries under the signed `root`."""

    origin: str
    size: int
    root: bytes
    head: bytes
    postings: int
    accounts: int
    open_holds: int
    checkpoints: int


def verify_export(path: Path, key: VerifierKey) -> list[Fault] | Verified:
    """Check the file at `path` against the ledger's public key: all that it found, or what is sound.

    At most 100 faults are gathered; after a damaged entry hashes are still checked, balances no
    more. Raises OSError if the file cannot be read or the temporary folder is full.
    """
    with path.open("rb", buffering=1 << 20) as file, Lifelines() as lifelines:
        return _Verification(file, key, lifelines).run()


class _Verification:
    def __init__(self, file: IO[bytes], key: VerifierKey, lifelines: Lifelines) -> None:
        self._file = file
        self._key = key
        self._lifelines = lifelines
        self._auditor: Auditor | None = Auditor()
        self._accounts = self._auditor
        self._faults: list[Fault] = []
        self._tree: Frontier | None = Frontier()
        self._line = 0
        self._seq = 0
        # After a damaged line it is not known which head is right: the next entry shows it.
        self._heads: tuple[bytes, ...] = (GENESIS_HEAD,)
        self._unreadable = 0
        self._postings = 0
        self._signed = 0
        self._checkpoints = 0

    def run(self) -> list[Fault] | Verified:
        last = self._header()
        while len(self._faults) < MAX_FAULTS:
            line = self._next_line()
            if line.startswith(export_format.ENTRY_START):
                self._entry(line)
            elif line.startswith(export_format.CHECKPOINT_START):
                self._checkpoint(line)
            elif line.startswith(export_format.FOOTER_START) or not line:
                self._footer(line)
                self._end(last)
                break
            else:
                self._lose(self._seq + 1, "line_is_readable", "the line is not one of an export")
                self._unreadable += 1
        if self._faults or last is None:
            return self._faults
        return Verified(
            last.origin,
            last.size,
            last.root,
            self._heads[0],
            self._postings,
            len(self._accounts.posted),
            len(self._accounts.open_holds),
            self._checkpoints,
        )

    def _next_line(self) -> bytes:
        self._line += 1
        return self._file.readline(export_format.MAX_LINE_BYTES)

    def _fault(self, seq: int | None, rule: str, detail: str) -> None:
        self._faults.append(Fault(seq, self._line, rule, detail))

    def _lose(self, seq: int, rule: str, detail: str) -> None:
        """Note a fault after which tree and balances are no longer known."""
        self._fault(seq, rule, detail)
        self._tree = self._auditor = None

    def _header(self) -> Checkpoint | None:
        try:
            return _read_header(self._next_line(), self._key)
        except NoteError as error:
            self._fault(None, "checkpoint_is_signed", str(error))
        except ValueError as error:
            self._fault(None, "header_is_readable", str(error))
        return None

    # -- entries ---------------------------------------------------------------------------------

    def _entry(self, line: bytes) -> None:
        parts = export_format.split_entry_line(line)
        if parts is None:
            self._lose(self._seq + 1, "line_is_readable", "the line is cut off or damaged")
            self._unreadable += 1
            return
        leaf = leaf_of_text(parts.entry)
        heads = [next_head(head, leaf) for head in self._heads]
        claimed_head = _unhex(parts.head_hex)
        if leaf.hex().encode() != parts.leaf_hex or claimed_head not in heads:
            leaf = self._damaged(parts, leaf, heads)
        else:
            self._heads = (claimed_head,)
            self._content(parts)
        if self._tree is not None:
            self._tree.append(leaf)

    def _damaged(self, parts: EntryLine, leaf: bytes, heads: list[bytes]) -> bytes:
        """Name the entry, and go on with the leaf and head that two of three witnesses agree on."""
        claimed_head, claimed_leaf = _unhex(parts.head_hex), _unhex(parts.leaf_hex)
        self._auditor = None
        if leaf == claimed_leaf:
            if not self._unreadable:
                self._fault(
                    self._seq + 1, "head_continues_the_chain", "the head does not follow from the last"
                )
            self._content(parts)
        else:
            self._seq += 1
            self._fault(self._seq, "leaf_is_of_the_entry", "the entry is not what its leaf was made of")
            if claimed_head not in heads:
                leaf = claimed_leaf
        self._heads = (claimed_head, *heads)
        return leaf

    def _content(self, parts: EntryLine) -> None:
        """Check what an entry with a right leaf says."""
        try:
            entry: list[Any] = json.loads(parts.entry)
            seq, identity, digest = entry[0], entry[1], entry[5]
            self._number(seq)
            if hashlib.sha256(parts.body).hexdigest() != digest:
                self._fault(self._seq, "digest_is_of_the_body", "the command is not what was signed")
                self._auditor = None
            if self._auditor is not None:
                self._lifelines.entry(self._seq, identity)
                settled = self._auditor.see(entry, json.loads(parts.body))
                self._postings += len(entry[9])
                if settled is not None:
                    self._lifelines.settled(self._seq, settled)
        except Finding as finding:
            self._fault(self._seq, finding.rule, finding.detail)
            self._auditor = None
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError):
            self._fault(self._seq, "entry_is_shaped_like_one", "a field is missing or of the wrong type")
            self._auditor = None

    def _number(self, seq: Any) -> None:
        wanted = self._seq + 1
        if type(seq) is not int or not 0 < seq < MAX_SEQ:
            self._seq = wanted
            raise TypeError("the number is no number of an entry")
        self._seq = seq
        if seq != wanted and not wanted < seq <= wanted + self._unreadable:
            self._fault(wanted, "seq_is_gapless", f"entry {wanted} is followed by {seq}")
        self._unreadable = 0

    # -- what is signed --------------------------------------------------------------------------

    def _checkpoint(self, line: bytes) -> None:
        try:
            checkpoint = _read_checkpoint(line, self._key)
        except ValueError as error:
            self._fault(self._seq, "checkpoint_is_signed", str(error))
            return
        self._checkpoints += 1
        self._check_root(checkpoint)

    def _check_root(self, checkpoint: Checkpoint) -> None:
        if self._tree is None:
            return
        if checkpoint.size != self._tree.size:
            detail = f"signed over {checkpoint.size} entries, and the file has {self._tree.size} up to here"
            self._fault(self._seq, "checkpoint_covers_the_file", detail)
        elif checkpoint.root != self._tree.root():
            detail = f"one of the entries {self._signed + 1} to {self._seq} is not the one that was signed"
            self._fault(self._signed + 1, "root_is_the_signed_one", detail)
        else:
            self._signed = checkpoint.size

    def _footer(self, line: bytes) -> None:
        if not line:
            self._fault(self._seq + 1, "file_is_whole", f"the file ends after entry {self._seq}")
            return
        if self._auditor is not None:
            wanted = export_format.footer_line(self._seq, self._heads[0], self._postings, self._checkpoints)
            if line != wanted:
                self._fault(None, "footer_counts_the_file", "the last line does not fit the entries")
        if self._file.read(1):
            self._fault(None, "file_is_whole", "there is something after the last line")

    def _end(self, last: Checkpoint | None) -> None:
        if last is not None:
            self._checkpoints += 1
            self._check_root(last)
        if self._auditor is None:
            return
        total = sum(self._auditor.posted.values())
        if total != 0:
            self._fault(None, "accounts_sum_to_zero", f"all balances sum to {total}")
        for seq, finding in self._lifelines.findings():
            self._fault(seq, finding.rule, finding.detail)
            if len(self._faults) >= MAX_FAULTS:
                return


def _read_header(line: bytes, key: VerifierKey) -> Checkpoint:
    note = export_format.read_object(line).get("checkpoint")
    if not isinstance(note, str) or line != export_format.header_line(note):
        raise ValueError("the first line is not that of an MLX Network ledger's export, version 1")
    return open_checkpoint(note, key)


def _read_checkpoint(line: bytes, key: VerifierKey) -> Checkpoint:
    note = export_format.read_object(line).get("checkpoint")
    if not isinstance(note, str) or line != export_format.checkpoint_line(note):
        raise ValueError("the line holds more than a checkpoint")
    return open_checkpoint(note, key)


def _unhex(text: bytes) -> bytes:
    """The 32 bytes, or nothing unless they are written in lower case."""
    try:
        content = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""
    return content if content.hex().encode() == text else b""
