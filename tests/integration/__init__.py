"""Tests against real databases, each on SQLite and on PostgreSQL."""
