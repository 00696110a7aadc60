# In an environment with `pip install -e '.[dev]'`.
PYTHON ?= python

.PHONY: test golden docs site notebooks check

test:           ## quick tests
	$(PYTHON) -m pytest

golden:         ## accept the present output as right, after you have looked at it
	TRACEQL_UPDATE_GOLDEN=1 $(PYTHON) -m pytest -q tests/test_cli.py tests/test_html.py tests/test_export.py
	TRACEQL_UPDATE_GOLDEN=1 $(PYTHON) -m pytest -q -m browser tests/test_browser.py
	git diff --stat -- tests/golden docs/img

docs:           ## write the pages that come from the code, and run the commands that pages show
	$(PYTHON) docs/generate.py --run

site:           ## build the documentation as a site, in build/site
	$(PYTHON) docs/build_site.py

notebooks:      ## run the notebooks, and keep what they show
	$(PYTHON) tests/notebook_runs.py

check:          ## what continuous integration checks besides tests
	ruff check
	ruff format --check
	pyright
	lint-imports
