"""Tests; what the folders hold is said in each."""
