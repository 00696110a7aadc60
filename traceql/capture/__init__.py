"""Makes traces: drives an SGLang server through warm-up, control runs and a profile, and writes down how.

It stands beside the analyses and knows none of them: what a trace must hold is checked by a function that the command
passes in. Needs the extra `capture`, except for reading a manifest.
"""
