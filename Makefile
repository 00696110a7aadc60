# In an environment with `pip install -e '.[dev]'`.
PYTHON ?= python

.PHONY: test golden docs check

test:           ## quick tests
	$(PYTHON) -m pytest

golden:         ## accept the present output as right, after you have looked at it
	TRACEQL_UPDATE_GOLDEN=1 $(PYTHON) -m pytest -q tests/test_cli.py tests/test_html.py tests/test_export.py
	TRACEQL_UPDATE_GOLDEN=1 $(PYTHON) -m pytest -q -m browser tests/test_browser.py
	git diff --stat -- tests/golden docs/img

docs:           ## write docs/cli.md, docs/tables.md and docs/rules.md from the code
	$(PYTHON) docs/generate.py

check:          ## what continuous integration checks besides tests
	ruff check
	ruff format --check
	pyright
	lint-imports
