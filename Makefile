# The two commands a newcomer needs. Each makes .venv on its first run and keeps it up to date.
VENV   := .venv
PYTHON := $(VENV)/bin/python
RESULTS := benchmarks/results
# What a whole comparison shows is committed, what a part of one shows is not.
SHOWN = $(if $(ARGS),$(RESULTS),docs/measurements)

# Hundreds of processes of the tests import flexcomp: with bytecode at hand each takes half a second less.
unexport PYTHONDONTWRITEBYTECODE

# A worker of the tests waits now and then, for a device, an emulator or another worker's fixture: one more keeps all cores busy.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)

# How long `make fuzz` takes, without compiling.
FUZZ_SECONDS := 120

.PHONY: help demo test faults fuzz sanitize bench measurements lint site clean

help:
	@echo "make demo   build networks, run them in four memory budgets, compare with ONNX Runtime"
	@echo "make test   run the test suite"
	@echo "make faults let every system call and allocation of a session fail once (minutes; ARGS='--sample 100' for less)"
	@echo "make fuzz   change programs, weights files, greetings and models at random, draw new examples for property tests,"
	@echo "            FUZZ_SECONDS long; needs clang, but for ARGS='--only properties' or models"
	@echo "make sanitize  run the tests of the runtime with sanitizers of addresses, undefined behaviour and threads"
	@echo "make bench  measure flexcomp next to ncnn, ONNX Runtime, MNN and OpenVINO (an hour; ARGS=... for less)"
	@echo "make measurements  measure the tables of docs/measurements again (20 quiet minutes; ARGS='cold soak' for some parts)"
	@echo "make lint   check style (ruff, clang-format), the words of documents and comments, and that no package imports from above"
	@echo "make site   write the documentation as a site to build/site, and check its links"
	@echo "make clean  remove the virtual environment and everything built"
	@echo "ARGS=...    further arguments for demo (e.g. ARGS=--all), pytest, or the comparison (e.g. ARGS='resnet50 --rounds 3')"

demo:
	@bash scripts/environment.sh $(VENV) demo
	$(VENV)/bin/flexcomp demo $(ARGS)

test:
	@bash scripts/environment.sh $(VENV) test
	$(PYTHON) -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist worksteal --durations 10 $(ARGS)

faults:
	@bash scripts/environment.sh $(VENV) test
	$(PYTHON) -m tests.faults.sweep $(ARGS)

fuzz:
	@bash scripts/environment.sh $(VENV) test
	$(PYTHON) -m tests.fuzz.run --seconds $(FUZZ_SECONDS) $(ARGS)

sanitize:
	@bash scripts/environment.sh $(VENV) test
	bash scripts/sanitize.sh $(VENV) $(ARGS)

bench:
	@bash scripts/environment.sh $(VENV) bench
	$(PYTHON) -m benchmarks.compare --json $(RESULTS)/compare.json --summary $(SHOWN)/comparison.json $(ARGS)
	$(PYTHON) -m benchmarks.compare --draw $(SHOWN)/comparison*.json --picture $(SHOWN)/comparison.png

measurements:
	@bash scripts/environment.sh $(VENV) bench
	bash scripts/measurements.sh $(VENV) $(ARGS)

lint:
	@bash scripts/environment.sh $(VENV) test
	$(VENV)/bin/ruff check .
	$(PYTHON) scripts/lint_words.py
	bash scripts/lint_imports.sh $(VENV)
	$(PYTHON) scripts/lint_includes.py
	find benchmarks examples runtime_ext tests -name '*.[ch]' -exec $(VENV)/bin/clang-format --dry-run -Werror {} + -o -name '*.cc' -exec $(VENV)/bin/clang-format --dry-run -Werror {} +

site:
	@bash scripts/environment.sh $(VENV) docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

clean:
	rm -rf $(VENV) build dist flexcomp-demo .cache .pytest_cache .ruff_cache .hypothesis
