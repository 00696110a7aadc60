"""Sources to try patches on: a small made package, and the means to import parts of real releases without the rest."""
