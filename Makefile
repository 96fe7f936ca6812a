# Both commands do all their set-up in $(VENV); a fresh machine needs Python 3.11 or later and nothing else.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types unit golden generated clean

demo: $(VENV)/.demo
	$(BIN)/blockc build specs/llama3-8b.yaml --out build/llama3-8b --require-proof
	$(BIN)/blockc show specs/llama3-8b.yaml
	$(BIN)/blockc verify specs/llama3-8b.yaml

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile --table

# Renews the outside answers in tests/golden, and the committed files of every spec.
golden: $(VENV)/.test
	$(BIN)/python -m tests.golden.renew

generated: $(VENV)/.demo
	for spec in specs/*.yaml; do $(BIN)/blockc build $$spec || exit 1; done

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[torch,cpu]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist
