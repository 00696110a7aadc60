"""Reads trace files: bytes to tables."""
