# make run, make test: everything else they need, they make.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# Set it to choose an interpreter: make test PYTHON=/opt/python3.10/bin/python3
PYTHON ?=
PYTEST_ARGS ?=

# TensorFlow's start-up notices about missing GPUs read like errors. At 3 only what ends the process is printed; errors reach Python as exceptions all the same.
export TF_CPP_MIN_LOG_LEVEL ?= 3
# pygame, which renders CartPole, finds no screen and no loudspeaker on a server, and says so in nine lines.
export SDL_VIDEODRIVER ?= dummy
export SDL_AUDIODRIVER ?= dummy

.PHONY: help
help: ## Show these targets
	@echo "Targets:"
	@while IFS= read -r line; do case "$$line" in \
	  [a-z]*:*"## "*) printf '  make %-11s %s\n' "$${line%%:*}" "$${line#*## }";; esac; done < Makefile

# -- installation ------------------------------------------------------------------------------

# A candidate counts only if it runs: pyenv leaves shims that fail when called. The error is one sentence.
# Only shell builtins here, so that it is heard where nothing is installed.
$(BIN)/python:
	@for candidate in $(PYTHON) $(if $(PYTHON),,python3.11 python3.10 python3 python); do \
	  if "$$candidate" -c 'import sys; sys.exit(not (sys.implementation.name == "cpython" and (3, 10) <= sys.version_info[:2] < (3, 12)))' >/dev/null 2>&1; then \
	    if ! "$$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then without_venv="$$candidate"; continue; fi; \
	    echo "Creating $(VENV) with $$candidate"; \
	    exec "$$candidate" -m venv --clear $(VENV); \
	  fi; \
	done; \
	if [ -n "$$without_venv" ]; then \
	  echo "replayfeed: $$without_venv lacks the modules venv and ensurepip that make the environment; install them (on Debian and Ubuntu the package python3-venv)." >&2; \
	else \
	  echo "replayfeed needs CPython 3.10 or 3.11 and found none$(if $(PYTHON), at $(PYTHON), on the PATH); install one, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
	fi; exit 1

# Stamps: pip runs again only when what it would install has changed.
$(VENV)/installed-demo: $(BIN)/python setup.cfg pyproject.toml constraints.txt
	@echo "Installing replayfeed[demo] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]' --constraint constraints.txt
	@touch $@

$(VENV)/installed-dev: $(BIN)/python setup.cfg pyproject.toml constraints.txt
	@echo "Installing replayfeed[dev] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	@touch $@ $(VENV)/installed-demo

.PHONY: install
install: $(VENV)/installed-dev ## Create .venv and install everything into it

# -- what people call --------------------------------------------------------------------------

.PHONY: run
run: $(VENV)/installed-demo ## Train DQN on CartPole through each backend, then offline from RLDS; ends with a table and a picture
	@$(BIN)/python -m replayfeed.pipelines.cartpole

.PHONY: test
test: $(VENV)/installed-dev ## Run the tests (PYTEST_ARGS="-k window" to choose)
	@$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

.PHONY: check
check: $(VENV)/installed-dev .typecheck/replayfeed ## Lint, format check, strict types
	@failed=; \
	$(BIN)/ruff check . || failed="$$failed lint"; \
	$(BIN)/ruff format --check . || failed="$$failed format"; \
	$(BIN)/mypy || failed="$$failed types"; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

.PHONY: format
format: $(VENV)/installed-dev ## Rewrite the files as make check wants them
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: coverage
coverage: $(VENV)/installed-dev ## Run the tests with branch coverage; fails below the bar in setup.cfg
	@$(BIN)/python -m pytest -n 2 --cov --cov-report=term $(PYTEST_ARGS)

.PHONY: bench
bench: $(VENV)/installed-dev ## Measure against TF-Agents, raw Reverb, NumPy and the floor of tf.data
	@$(BIN)/python benchmarks/run.py

.PHONY: bench-peers
bench-peers: $(VENV)/installed-dev ## Make the environments of the other libraries that make bench compares with; once, minutes
	@$(BIN)/python benchmarks/peers/environments.py

.PHONY: wheel
wheel: $(VENV)/installed-dev ## Build the wheel, install it in a fresh environment, use it from another folder
	@rm -rf build dist
	@$(BIN)/python -m build --wheel --outdir dist . >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log
	@$(BIN)/python .ci/check_wheel.py dist

.PHONY: clean
clean: ## Remove what the other targets made, .venv included
	@rm -rf $(VENV) .bench-venvs .typecheck build dist results replayfeed.egg-info .hypothesis .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.*

# mypy reads no package_dir, so it gets the layout that an installation has.
.typecheck/replayfeed:
	@mkdir -p $@
	@ln -sfn ../../buffers $@/buffers
	@ln -sfn ../../cli $@/cli
	@ln -sfn ../../pipelines $@/pipelines
