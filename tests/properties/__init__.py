"""Property and stateful tests (hypothesis)."""
