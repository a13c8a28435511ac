# One word for each thing a user does; every target makes the environment it needs.
#
#   make search               the main job on the shipped profile; needs no GPU
#   make search ARGS="..."    the same with further options
#   make test                 the tests
#   make lint | types         ruff | mypy
#   make clean                removes caches and the environment in .venv
#
# VENV=dir      where the environment is made (default .venv)
# PYTHON=exe    the interpreter it is made from (default: the first one found that is new enough)
# pip reads its own variables: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gives the CPU build
# of torch instead of several GB of CUDA wheels (see requirements.txt).

VENV ?= .venv
ARGS ?=
# A few workers: each one imports torch, and more than that wait for each other.
TEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile

BIN := $(VENV)/bin
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14 python

.PHONY: help search test lint types env env-dev env-nightly clean
.DEFAULT_GOAL := help
# Two goals at once would install into one environment at the same time.
.NOTPARALLEL:

help:
	@sed -n -e '/^#/!q' -e 's/^# \{0,1\}//p' Makefile

search: env
	$(BIN)/python simulation_train_formulaic.py \
	    --pre_profiling_data_path ./prof_data/data.pt --config configs/7B_internlm2.py --run_all_solu \
	    --model_size 7 --world_size 128 --global_batch_size 4194304 $(ARGS)

test: env-dev
	$(BIN)/python -m pytest $(TEST_ARGS) $(ARGS)

lint: env-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env-dev
	$(BIN)/mypy

env: $(VENV)/installed
env-dev: $(VENV)/installed-dev
env-nightly: $(VENV)/installed-nightly

# A stamp is newer than the requirements it was made from, so nothing is installed twice.
$(VENV)/installed: requirements.txt | $(BIN)/pip
	$(BIN)/python -m pip install -r requirements.txt
	@touch $@

$(VENV)/installed-dev: requirements-dev.txt requirements.txt | $(BIN)/pip
	$(BIN)/python -m pip install -r requirements-dev.txt
	@touch $@ $(VENV)/installed

$(VENV)/installed-nightly: requirements-nightly.txt $(VENV)/installed-dev | $(BIN)/pip
	$(BIN)/python -m pip install -r requirements-nightly.txt
	@touch $@

$(BIN)/pip:
	@set -e; \
	chosen="$(PYTHON)"; \
	if [ -n "$$chosen" ]; then \
	    "$$chosen" -c '$(NEW_ENOUGH)' 2>/dev/null || { \
	        echo "PYTHON=$$chosen is not a Python of version 3.11 or newer" >&2; exit 2; }; \
	else \
	    for candidate in $(CANDIDATES); do \
	        if "$$candidate" -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then chosen="$$candidate"; break; fi; \
	    done; \
	    [ -n "$$chosen" ] || { \
	        found=`python3 --version 2>&1 || true`; \
	        echo "Python 3.11 or newer is needed; found: $$found. Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	        exit 2; }; \
	fi; \
	echo "$$chosen -m venv $(VENV)"; \
	"$$chosen" -m venv "$(VENV)" || "$$chosen" -m virtualenv "$(VENV)" || { \
	    echo "cannot make an environment in $(VENV): install the venv module (Debian: apt install python3-venv), or: $$chosen -m pip install --user virtualenv" >&2; \
	    exit 2; }

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
