"""How much of a name is read, and how long a short one may be."""

MAX_READ = 5000
"""Characters of a name that are looked at; no kernel says anything new after them."""
MAX_SHORT = 60
"""Longest short name."""
