"""Unit tests of the runner's pure parts."""
