"""The faults that are seeded into the ledger, each with the tests that must find it.

A fault replaces one text, which must stand exactly once in its file. The first part are those that
ledgers are known to have had; the second are ours: chain, tree, notes, verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RULES: Final = "tests/unit/ledger/test_rules.py"
COMMANDS: Final = "tests/unit/ledger/test_commands.py"
CHAIN: Final = "tests/unit/ledger/test_chain.py"
PRICING: Final = "tests/unit/ledger/test_pricing.py"
MERKLE: Final = "tests/unit/ledger/test_merkle.py tests/properties/ledger/test_merkle.py"
NOTES: Final = "tests/unit/ledger/test_notes.py"
VERIFY: Final = "tests/unit/ledger/test_verify.py -k 'not disk'"
VERIFY_RULES: Final = "tests/unit/ledger/test_verify.py -k 'not disk and not every_changed'"
BOOK: Final = "tests/integration/test_ledger.py -k sqlite"
NEW_BOOK: Final = "tests/integration/ledger/test_book.py -k sqlite"
TREE: Final = "tests/integration/ledger/test_tree.py -k 'sqlite and not second_height'"
STORE: Final = "tests/integration/ledger/test_store.py -k postgresql"
POSTGRESQL: Final = "tests/integration/test_ledger.py -k 'postgresql and threads'"


@dataclass(frozen=True)
class Fault:
    """One seeded fault: in `file`, `old` becomes `new`; pytest with `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


KNOWN: Final = (
    Fault(
        "capture above the hold",
        "ledger/rules.py",
        "if command.total_umlx > hold.amount_umlx:",
        "if command.total_umlx > hold.amount_umlx + 1:",
        BOOK,
    ),
    Fault(
        "expire early",
        "ledger/rules.py",
        'hold.state == "open" and now_us < hold.expires_us',
        'hold.state == "open" and now_us < hold.expires_us - 1',
        RULES,
    ),
    Fault(
        "open a hold that is over",
        "ledger/rules.py",
        "if command.expires_us <= now_us:",
        "if command.expires_us < now_us:",
        RULES,
    ),
    Fault("seq left out of the leaf", "ledger/chain.py", "        entry.seq,\n", "        0,\n", CHAIN),
    Fault("id left out of the leaf", "ledger/chain.py", "        str(entry.id),\n", '        "",\n', CHAIN),
    Fault(
        "postings left out of the leaf",
        "ledger/chain.py",
        "[list(leg) for leg in entry.legs]",
        "[]",
        CHAIN,
    ),
    Fault(
        "head not linked",
        "ledger/chain.py",
        'hashlib.sha256(b"\\x01" + head + leaf)',
        'hashlib.sha256(b"\\x01" + leaf)',
        CHAIN,
    ),
    Fault(
        "fee rounded down",
        "ledger/pricing.py",
        "fee = divide_up(charge * fee_ppm, PER_MILLION)",
        "fee = charge * fee_ppm // PER_MILLION",
        PRICING,
    ),
    Fault(
        "charge rounded down",
        "ledger/pricing.py",
        "divide_up(total * factor_ppm, PER_MILLION**2)",
        "total * factor_ppm // PER_MILLION**2",
        PRICING,
    ),
    Fault(
        "double capture",
        "ledger/rules.py",
        '    if hold.state != "open":\n        return Refusal("hold_not_open")\n    if command.total_umlx',
        "    if command.total_umlx",
        BOOK,
    ),
    Fault(
        "void of an ended hold",
        "ledger/rules.py",
        '    if hold.state != "open":\n        return Refusal("hold_not_open")\n    return Effect(',
        "    return Effect(",
        BOOK,
    ),
    Fault(
        "hold not released",
        "ledger/rules.py",
        "        held_umlx=-hold.amount_umlx,\n        hold_id=command.hold_id,",
        "        held_umlx=-command.total_umlx,\n        hold_id=command.hold_id,",
        RULES,
    ),
    Fault(
        "floor ignored",
        "ledger/rules.py",
        "if account.floor_umlx is not None and needed_umlx >",
        "if account.floor_umlx is None and needed_umlx >",
        RULES,
    ),
    Fault(
        "one below the floor",
        "ledger/rules.py",
        "needed_umlx > account.available_umlx - account.floor_umlx:",
        "needed_umlx > account.available_umlx - account.floor_umlx + 1:",
        RULES,
    ),
    Fault(
        "held money can be spent",
        "ledger/rules.py",
        "return self.posted_umlx - self.held_umlx",
        "return self.posted_umlx",
        RULES,
    ),
    Fault(
        "balance limit ignored", "ledger/rules.py", "> MAX_BALANCE_UMLX:", "> 2 * MAX_BALANCE_UMLX:", RULES
    ),
    Fault(
        "postings not netted",
        "ledger/rules.py",
        "totals[account_id] = totals.get(account_id, 0) + amount_umlx",
        "totals[account_id] = amount_umlx",
        RULES,
    ),
    Fault(
        "refunds not counted",
        "ledger/rules.py",
        "refunded_umlx = hold.refunded_umlx + command.amount_umlx",
        "refunded_umlx = hold.refunded_umlx",
        BOOK,
    ),
    Fault(
        "refused changes a balance",
        "ledger/rules.py",
        "    return _refusal_of_balances(sheet, effect) or effect",
        "    refusal = _refusal_of_balances(sheet, effect)\n"
        "    if refusal and effect.legs and effect.legs[-1][0] in sheet.accounts:\n"
        "        sheet.accounts[effect.legs[-1][0]].posted_umlx += 1\n"
        "    return refusal or effect",
        RULES,
    ),
    Fault(
        "refused is written by the next",
        "ledger/rules.py",
        "    return _refusal_of_balances(sheet, effect) or effect",
        "    refusal = _refusal_of_balances(sheet, effect)\n"
        "    if refusal and effect.legs and effect.legs[-1][0] in sheet.accounts:\n"
        "        sheet.accounts[effect.legs[-1][0]].posted_umlx += 1\n"
        "    return refusal or effect",
        NEW_BOOK,
    ),
    Fault(
        "postings not summed",
        "ledger/book.py",
        "if sum(amount_umlx for _, amount_umlx in legs) != 0:",
        "if False:",
        NEW_BOOK,
    ),
    Fault(
        "replay writes again",
        "ledger/book.py",
        "        if earlier is not None:\n",
        "        if earlier is not None and not self._journal:\n",
        BOOK,
    ),
    Fault(
        "conflict ignored",
        "ledger/book.py",
        "return outcome if digest == command.digest else Conflict(command.id, outcome.seq)",
        "return outcome",
        BOOK,
    ),
    Fault(
        "refused not journalled",
        "ledger/book.py",
        "        self._record(command, outcome, legs)\n        return outcome",
        "        if isinstance(outcome, Applied):\n            self._record(command, outcome, legs)\n"
        "        else:\n            self._seq -= 1\n        return outcome",
        BOOK,
    ),
    Fault(
        "time goes back",
        "ledger/book.py",
        "recorded_us=max(now_us, tip.recorded_us)",
        "recorded_us=now_us",
        BOOK,
    ),
    Fault(
        "chain row not locked",
        "ledger/store_postgresql.py",
        "FROM ledger_chain WHERE id = 1 FOR UPDATE",
        "FROM ledger_chain WHERE id = 1",
        POSTGRESQL,
    ),
    Fault(
        "a moved chain is committed",
        "ledger/store_postgresql.py",
        "WHEN 1 THEN '1' ELSE",
        "WHEN 1 THEN '1' WHEN 0 THEN '0' ELSE",
        STORE,
    ),
    Fault(
        "BEGIN instead of BEGIN IMMEDIATE",
        "coordinator/db.py",
        'connection.exec_driver_sql("BEGIN IMMEDIATE")',
        'connection.exec_driver_sql("BEGIN")',
        "tests/integration/test_db.py -k 'sqlite and several_processes'",
    ),
    Fault(
        "journal can be changed",
        "migrations/versions/0003_ledger_tree_and_checkpoints.py",
        '    _keep_append_only("ledger_journal")\n',
        "",
        "tests/integration/test_migrations.py -k 'triggers and sqlite'",
    ),
    Fault(
        "fence left out of settlement ids",
        "ledger/commands.py",
        "json.dumps([job_id, fence, purpose])",
        "json.dumps([job_id, purpose])",
        COMMANDS,
    ),
    Fault(
        "amount left out of the digest",
        "ledger/commands.py",
        'return {"source": self.source, "target": self.target, "amount_umlx": self.amount_umlx}',
        'return {"source": self.source, "target": self.target}',
        BOOK,
    ),
    Fault(
        "adjustment by one person",
        "ledger/commands.py",
        "        if first == second:",
        "        if first is None:",
        COMMANDS,
    ),
    Fault(
        "adjustment that makes money",
        "ledger/commands.py",
        "if sum(amount_umlx for _, amount_umlx in self.legs) != 0:",
        "if sum(amount_umlx for _, amount_umlx in self.legs) > 0:",
        COMMANDS,
    ),
    Fault(
        "anyone touches issuance",
        "ledger/commands.py",
        "if account_kind(account_id) == ISSUANCE:",
        'if account_kind(account_id) == "":',
        COMMANDS,
    ),
)

OURS: Final = (
    Fault(
        "leaf and node alike",
        "ledger/merkle.py",
        'hashlib.sha256(b"\\x01" + left + right)',
        'hashlib.sha256(b"\\x00" + left + right)',
        MERKLE,
    ),
    Fault(
        "tree split in the middle",
        "ledger/merkle.py",
        "return 1 << ((size - 1).bit_length() - 1)",
        "return size // 2",
        MERKLE,
    ),
    Fault(
        "proof of another leaf holds",
        "ledger/merkle.py",
        "    return last == 0 and digest == root_hash",
        "    return last == 0",
        MERKLE,
    ),
    Fault(
        "rewritten history is consistent",
        "ledger/merkle.py",
        "    return last == 0 and first == old_root and second == new_root",
        "    return last == 0 and second == new_root",
        MERKLE,
    ),
    Fault(
        "longer proof holds",
        "ledger/merkle.py",
        "    return last == 0 and digest == root_hash",
        "    return digest == root_hash",
        MERKLE,
    ),
    Fault(
        "signature not checked", "ledger/notes.py", "            _check(key, content[4:], text)\n", "", NOTES
    ),
    Fault(
        "unsigned note opens",
        "ledger/notes.py",
        "    if not is_signed:\n",
        "    if False:\n",
        NOTES,
    ),
    Fault(
        "key file replaced",
        "ledger/notes.py",
        "        if not path.exists():\n            _write_once",
        "        if True:\n            path.unlink(missing_ok=True)\n            _write_once",
        NOTES,
    ),
    Fault(
        "signs a rewritten history",
        "ledger/checkpoints.py",
        "if tree.root(connection, last.size) != last.root:",
        "if False:",
        TREE,
    ),
    Fault(
        "signs after another key",
        "ledger/checkpoints.py",
        "            _ = open_checkpoint(last.note, signer.key)\n",
        "            _ = last.note\n",
        TREE,
    ),
    Fault(
        "tree skips the journal's growth",
        "ledger/tree.py",
        "return 0 if last is None else last + 1",
        "return 0 if last is None else last + 2",
        TREE,
    ),
    Fault(
        "reconciliation skips the tree",
        "ledger/drift.py",
        "        if stored != digest:\n",
        "        if False:\n",
        TREE,
    ),
    Fault(
        "verify skips the command's digest",
        "ledger/verify.py",
        "if hashlib.sha256(parts.body).hexdigest() != digest:",
        "if False:",
        VERIFY,
    ),
    Fault(
        "verify skips the root",
        "ledger/verify.py",
        "elif checkpoint.root != self._tree.root():",
        "elif False:",
        VERIFY_RULES,
    ),
    Fault(
        "verify skips heads",
        "ledger/verify.py",
        " or claimed_head not in heads:\n            leaf = self._damaged",
        ":\n            leaf = self._damaged",
        VERIFY,
    ),
    Fault(
        "verify skips floors",
        "ledger/audit.py",
        "if name != ISSUANCE and posted - held < 0:",
        "if False:",
        VERIFY_RULES,
    ),
    Fault(
        "verify lets a hold end twice",
        "ledger/audit.py",
        "hold = self.open_holds.pop(hold_id, None)",
        "hold = self.open_holds.get(hold_id)",
        VERIFY_RULES,
    ),
    Fault(
        "verify believes the postings",
        "ledger/audit.py",
        "    if legs != sorted((name, total) for name, total in totals.items() if total):",
        "    if False:",
        VERIFY_RULES,
    ),
    Fault(
        "verify lets ids repeat",
        "ledger/lifelines.py",
        "            if entries > 1:\n",
        "            if False:\n",
        VERIFY_RULES,
    ),
    Fault(
        "verify lets refunds exceed",
        "ledger/lifelines.py",
        "            left -= amount\n",
        "            left -= 0\n",
        VERIFY_RULES,
    ),
)

FAULTS: Final = KNOWN + OURS
