# The two commands a newcomer needs. Each makes .venv on its first run and keeps it up to date.
VENV   := .venv
PYTHON := $(VENV)/bin/python

.PHONY: help demo test lint clean

help:
	@echo "make demo   build networks, run them in four memory budgets, compare with ONNX Runtime"
	@echo "make test   run the test suite"
	@echo "make lint   check style with ruff"
	@echo "make clean  remove the virtual environment and everything built"
	@echo "ARGS=...    further arguments for demo (e.g. ARGS=--all) or pytest"

demo:
	@bash scripts/environment.sh $(VENV) demo
	$(VENV)/bin/flexcomp demo $(ARGS)

test:
	@bash scripts/environment.sh $(VENV) test
	$(PYTHON) -m pytest $(ARGS)

lint:
	@bash scripts/environment.sh $(VENV) test
	$(VENV)/bin/ruff check .

clean:
	rm -rf $(VENV) build dist flexcomp-demo .cache .pytest_cache .ruff_cache .hypothesis
