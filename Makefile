# The project's commands. `make demo` and `make test` work from a fresh clone with Python 3.11 or newer and make.
PYTHON ?= python3
# Where pip finds the build of torch for CPUs, if not where it finds other packages; TORCH=gpu allows GPU libraries
# on a machine without GPU.
TORCH_INDEX ?=
TORCH ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test files are distributed over processes, so that tests that wait do not delay the others.
PARALLEL := --dist loadfile --no-loadscope-reorder --numprocesses
# What failed beside other tests runs once more alone, whatever the time: a busy machine must not decide.
ALONE := --last-failed --last-failed-no-failures none

.PHONY: help setup demo test test-all check bench soak rig clean
help: ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## create .venv and install everything, exact versions
$(STAMP): pyproject.toml constraints.txt install_torch.py
	@echo "Setting up $(VENV): a minute or more the first time"
	@$(PYTHON) install_torch.py --check-python
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python install_torch.py $(if $(TORCH_INDEX),--index '$(TORCH_INDEX)') $(if $(filter gpu,$(TORCH)),--gpu)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,parquet,ray]'
	@touch $@

demo: setup ## train a translator on the corpus inside the package (about 3 minutes)
	$(BIN)/dragoman demo

test: setup ## the tests, 4 to 12 minutes on 2 cores
	$(BIN)/pytest -m "not slow" $(PARALLEL) logical --maxprocesses 4 || $(BIN)/pytest -m "not slow" $(ALONE)

test-all: test ## the tests, then the longer ones; those marked serial have the machine to themselves
	# Four at a time: they wait more than they compute.
	$(BIN)/pytest -m "slow and not serial" $(PARALLEL) 4 || \
		LONGER_TESTS_END=inf $(BIN)/pytest -m "slow and not serial" $(ALONE)
	$(BIN)/pytest -m "slow and serial" || LONGER_TESTS_END=inf $(BIN)/pytest -m "slow and serial" $(ALONE)

check: setup ## format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## run all benchmarks; results go to benchmarks/results/
	$(BIN)/python benchmarks/training_speed.py
	$(BIN)/python benchmarks/time_to_bleu.py --tune 300
	$(BIN)/python benchmarks/time_to_bleu.py
	$(BIN)/python benchmarks/cost_exponents.py
	$(BIN)/python benchmarks/worker_scaling.py
	$(BIN)/python benchmarks/decoding_speed.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/model_choices.py
	$(BIN)/python benchmarks/back_translation.py
	$(BIN)/python benchmarks/prepare_speed.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/link_speed.py
	$(BIN)/python benchmarks/watching_overhead.py
	$(BIN)/python benchmarks/field_runs.py
	$(BIN)/python benchmarks/gpu_tables.py
	$(BIN)/python benchmarks/forecast.py
	$(BIN)/python benchmarks/overfitting.py
	$(BIN)/python benchmarks/prediction.py
	$(BIN)/python benchmarks/slow_network.py

soak: setup ## disturb a run on two hosts for half an hour, with every kind of fault (needs root)
	$(BIN)/python benchmarks/soak.py

rig: setup ## two hosts with sshd and a 100 Mbit/s link on this machine, until Ctrl-C (needs root)
	cd tests && ../$(BIN)/python -m rig --rate 100mbit

clean: ## remove .venv and caches (runs/ stays)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.egg-info
