"""How fast the ledger is checked."""
