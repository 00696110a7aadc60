"""Writes traces: a window of one, or the ranks of a run as one, with the events' own bytes."""
