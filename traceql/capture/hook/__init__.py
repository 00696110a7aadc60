"""The folder that goes first on a server's PYTHONPATH: Python runs its `sitecustomize` as each process starts."""
