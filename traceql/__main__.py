"""`python -m traceql` is `traceql`."""

from traceql.cli import main

main(prog_name="traceql")
