"""Fleets of traces: a store of what is worth keeping of each, filled by many processes and asked as one.

`storage` is where files are put, `manifest` what is written down about them, `store` the two together. `task` turns one
trace into tables, `local` and `on_ray` run tasks side by side, `ingesting` plans them and commits what they made.
"""
