# make setup · test · attack · faults · audit · demo · lint · bench · docs · findings
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup test attack faults audit lint demo bench docs findings clean

# Made anew whenever the dependencies change; the marker is written last, so a broken install is not taken for done.
.venv/.done: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tamis needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: .venv/.done

# Where the environment forbids compiled files, both workers and each of the tests' programs would compile all anew.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup
	$(BIN)/python -m pytest

# What the usual suite has no time for: thousands of corruptions, the built-in models on whole samples. Minutes.
attack: setup
	$(BIN)/python -m pytest -m attack

# Kills of workers, commands, actors and of Ray itself at random moments; then the run goes on and must be whole.
faults: setup
	$(BIN)/python -m pytest -n 0 -m attack tests/attack/test_faults.py

# Licences of what is installed, then known vulnerabilities, for which PyPI has to be reached.
audit: setup
	$(BIN)/python tests/audit.py licences
	$(BIN)/python -c 'import pip_audit' 2>/dev/null || $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check --retries 0 --timeout 10 -c constraints.txt -e '.[audit]'
	$(BIN)/python tests/audit.py vulnerabilities

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: setup
	$(BIN)/python demo.py

bench: setup
	set -e; for name in select steps export score tmars sieve icc papers clipcov copies explorer look; do \
	  echo "== $$name"; $(BIN)/python -m benchmarks.$$name --quick; done

# docs/cli.md, from what the commands declare; a test fails where the two differ.
docs: setup
	PYTHONPATH=tests/helpers $(BIN)/python tests/cli_reference.py

# What other libraries do that surprised us. Each script installs its packages from PyPI into a folder of its own.
findings:
	set -e; for script in findings/*.sh; do echo "== $$script"; bash "$$script"; done

clean:
	rm -rf .venv demo build dist
