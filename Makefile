# The developer's interface. `make demo` and `make test` work in a fresh clone; everything else is quick when up to date.
# `make test PYTHON=python3.13 TORCH=torch==2.15.0` is about another Python or torch, in an environment of its own.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv$(if $(filter-out python3 torch==2.13.0,$(PYTHON) $(TORCH)),-$(notdir $(PYTHON))-$(subst ==,-,$(TORCH)))
BIN := $(VENV)/bin
# Stamps of what is installed: what the demo needs, what JupyterLab and building the panel need besides, and every tool.
DEMO := $(VENV)/.demo
LAB := $(VENV)/.lab
INSTALLED := $(VENV)/.installed
# SkyPilot pins much: like users, we have it in an environment of its own.
SKY := $(VENV)/sky/.installed
# torchmonarch brings a top-level package called `tests`: so does it, on top of everything of ours.
MONARCH := $(VENV)/monarch/.installed
PYTEST := $(BIN)/python -m pytest
# What failed runs once more, alone. NIGHT says which tests of the night are added; by itself, those of what has changed.
AGAIN := $(BIN)/python scripts/again.py
NIGHT ?= $$($(BIN)/python scripts/groups.py $(1))
# Assigned first: a command that fails within another one is not noticed.
with_night = night="$(call NIGHT,$(1))" &&
# Compiled when first imported: most modules never are, and that is a third of an installation's work.
export PIP_NO_COMPILE := 1
# Builds and tests the panel; node is among the tools in the virtual environment.
JLPM := cd labextension && PATH="$(abspath $(BIN)):$$PATH" jlpm
NOTEBOOKS := $(wildcard tests/integration/test_*notebook*.py tests/integration/night/test_*notebook*.py) \
    tests/integration/test_resume.py tests/integration/night/slurm/test_notebook.py
NODE_MODULES := labextension/node_modules/.installed
PANEL := monarch_nb/labextension/package.json
PANEL_SOURCES := $(wildcard labextension/*.json labextension/*.mjs) $(shell find labextension/src labextension/style labextension/schema -type f)

say = printf '\n\033[1m==> %s\033[0m\n'

.NOTPARALLEL:
.PHONY: help install panel demo lab format check test test-all begin quick unit ui itest gpu e2e notebooks executed bench proto docs release-check site clean

help:  ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */\1\t/' | expand -t 15

install: $(INSTALLED) $(SKY) $(MONARCH)  ## Make the virtual environment with the package (editable) and all its tools
	@:

$(DEMO): EXTRAS := demo
$(LAB): EXTRAS := demo,lab,panel
$(LAB): LESS := $(DEMO)
$(INSTALLED): EXTRAS := dev
$(INSTALLED): LESS := $(DEMO) $(LAB)

$(DEMO) $(LAB) $(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("monarch_nb needs Python 3.11 or newer, not " + sys.version.split()[0] + ": make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || { $(say) 'Making the virtual environment $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@$(say) 'Installing $(TORCH) (first, so that nothing pulls another build)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	@$(say) 'Installing monarch_nb[$(EXTRAS)]'
	@rm -rf $(VENV)/share/jupyter/labextensions/monarch-nb # a link to what was built, over which pip stumbles
	@SKIP_JUPYTER_BUILDER=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $(LESS) $@

$(SKY): $(INSTALLED)
	@$(say) 'Installing SkyPilot, whose client the tests ask'
	@$(BIN)/python -m venv $(VENV)/sky
	@$(VENV)/sky/bin/python -m pip install --quiet --disable-pip-version-check 'skypilot==0.14.1'
	@touch $@

$(MONARCH): $(INSTALLED) scripts/monarch_venv.py
	@$(say) 'Installing torchmonarch, where it has a wheel (90 MB)'
	@$(BIN)/python scripts/monarch_venv.py $(VENV)/monarch
	@touch $@

panel: $(PANEL)  ## Build the panel of JupyterLab and the widget and show them to this environment
	@:

$(NODE_MODULES): $(LAB) labextension/package.json labextension/yarn.lock
	@$(say) 'Installing what builds the panel'
	@$(JLPM) install --immutable
	@touch $@

$(PANEL): $(NODE_MODULES) $(PANEL_SOURCES)
	@$(say) 'Building the panel'
	@$(JLPM) build:prod
	@$(BIN)/jupyter-builder develop --overwrite . >/dev/null
	@touch $@

demo: $(DEMO)  ## Run the quickstart on a local pool of 2 nodes × 4 ranks, in the terminal
	@$(BIN)/python scripts/demo.py

lab: panel  ## Open the quickstart in JupyterLab, on a local pool
	@$(BIN)/monarch-nb up --nodes 2 --procs 4
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/quickstart.ipynb

format: install $(NODE_MODULES)  ## Format Python, protos and the panel's TypeScript
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .
	@$(BIN)/buf format --write
	@$(JLPM) format

check: install $(NODE_MODULES)  ## Lint, types, layers, protos, stubs
	@$(say) 'ruff'
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(say) 'mypy (strict)'
	@$(BIN)/mypy
	@$(say) 'layers'
	@$(BIN)/lint-imports --no-logo
	@$(say) 'protos and their stubs'
	@$(BIN)/buf format --diff --exit-code
	@$(BIN)/buf lint
	@$(BIN)/python scripts/stubs.py --check
	@$(say) 'TypeScript'
	@$(JLPM) check

test: check unit ui itest e2e  ## What every change must pass (about 20 minutes on 2 cores)
	@if test -s build/flaky.txt; then $(say) 'Passed only alone, since build/flaky.txt was begun'; cat build/flaky.txt; fi
	@$(say) 'All passed'

test-all: override NIGHT := --night tests
test-all: export MONARCH_NB_NO_SKIPS := 1
test-all: begin test  ## The tests of the night, too: every engine, kills, other notebooks (about 30 minutes); is recorded
	@$(BIN)/python scripts/groups.py --record

begin: install
	@$(BIN)/python scripts/groups.py --begin

quick: check unit ui panel  ## Lint, types, unit tests and one test of each other kind (under 3 minutes)
	@$(say) 'One test of each kind'
	@$(PYTEST) -n 2 -m quick tests/integration
	@$(PYTEST) -m quick tests/e2e
	@$(say) 'All passed'

unit: install  ## Tests without processes: seconds
	@$(say) 'Unit tests'
	@$(call with_night,unit) $(PYTEST) -n 2 tests/unit $$night

ui: install $(NODE_MODULES)  ## Tests of the panel's TypeScript
	@$(say) 'Tests of the panel'
	@$(JLPM) test

itest: install panel  ## Tests against real allocators and ranks, the notebooks among them
	@$(say) 'Integration tests'
	@$(call with_night,integration) $(AGAIN) -n 3 tests/integration $$night  # on 2 cores: a test waits for half of its time

gpu: install  ## Tests on a real GPU of this machine; skipped where there is none
	@$(say) 'Tests on a GPU'
	@$(PYTEST) tests/gpu

e2e: install panel  ## Tests in a real browser
	@$(say) 'End-to-end tests in JupyterLab'
	@$(call with_night,e2e) $(AGAIN) -n 2 tests/e2e $$night

notebooks: install  ## Execute the notebooks headlessly, without the other integration tests
	@$(say) 'Notebooks'
	@$(PYTEST) $(NOTEBOOKS)

site: install $(NODE_MODULES)  ## Build the site in build/site; warnings and dead links inside are errors
	@$(say) 'The site'
	@$(BIN)/python -m sphinx -q -W --keep-going -j 2 -d build/doctrees docs build/site
	@$(say) 'Look at it: $(BIN)/python -m http.server --directory build/site 8000'

release-check: install panel  ## Build what a release would publish and use it with every Python that is here; ARGS="--python 3.12"
	@$(say) 'What a release would publish'
	@PYTHONPATH=tests $(BIN)/python scripts/release.py $(ARGS)

executed: install  ## Execute the notebooks and keep them with their outputs in docs/notebooks, for the site
	@$(say) 'Notebooks, kept as they were executed'
	@KEEP_NOTEBOOKS=$(abspath docs/notebooks) $(PYTEST) $(NOTEBOOKS)

bench: install  ## Measure against torchrun, ipyparallel and Monarch; ARGS="--quick --only fresh"
	@$(BIN)/python -m bench $(ARGS)

proto: install  ## Generate the stubs in monarch_nb/proto
	@$(BIN)/python scripts/stubs.py

docs: install  ## Write the --help texts into the docs and check links and snippets
	@$(BIN)/python scripts/docs.py
	@$(PYTEST) tests/unit/test_docs.py

clean:  ## Remove what was built; the virtual environment and build/flaky.txt stay
	@find build -mindepth 1 -maxdepth 1 ! -name flaky.txt -exec rm -rf {} + 2>/dev/null || true
	@rm -rf dist monarch_nb/labextension monarch_nb/notebook/static labextension/lib .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
