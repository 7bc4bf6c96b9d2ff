# The commands of this project; `make help` lists them. Everything is installed into .venv, which is made anew when
# pyproject.toml changes. PYTHON=... chooses another interpreter than the newest suitable one on the path.

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --durations=30 --durations-min=2
# A worker for each core. `make browser PARALLEL=` runs one test after the other.
PARALLEL := --numprocesses=logical --maxprocesses=8 --dist=worksteal

# Two kinds of tests run at a time, as browsers and notebooks alone leave a sixth of two cores idle. What fails stops no other.
ifneq ($(filter test test-long,$(MAKECMDGOALS)),)
$(info Two kinds of tests run at a time; each prints what it found when it ends.)
MAKEFLAGS += --jobs=2 --output-sync=target --keep-going
notebooks: chromium  # so that the longer ones begin before them
endif

# Another environment that is active would make IPython warn, in tests and notebooks; without bytecode on the disk, as images
# want it, each of hundreds of processes would compile the package anew, and pytest every test.
unexport VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo lab test test-long test-pythons lint types layers chromium unit browser notebooks docs lite viewer gpu bench wheel release clean

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: .venv/.demo  ## install, run the notebooks, print what was learned, keep pages, data and all that was printed in demo/
	@for notebook in notebooks/*.ipynb; do \
		$(BIN)/python scripts/run_notebook.py $$notebook --folder demo --brief || exit 1; \
	done
	@echo 'Pages open in any browser. All that was printed (*.txt), the notebooks as they ran, and the data are beside them, in demo/.'
	@echo 'Open the notebooks themselves with: make lab'

lab: .venv/.demo  ## install and open the notebooks in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=notebooks $(LAB_OPTIONS)

test: browser unit notebooks lint types layers  ## install and run every check that needs no GPU

# No test is stopped for taking long here.
test-long: export GPUSTREAMLAB_LONG := 1
test-long: PYTEST += --timeout=0
test-long: COVERAGE := --cov --cov-report=term:skip-covered --cov-fail-under=85
test-long: test  ## the same with every storm, torn byte and soak in full, and branch coverage; it has no time limit

lint: .venv/.dev  ## style, format and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

types: .venv/.dev  ## mypy, strict
	$(BIN)/mypy

layers: .venv/.dev  ## imports only point down
	$(BIN)/lint-imports

chromium:  ## install the browser of the tests, and a library that Playwright's node needs, in which Perfetto's engine runs
	scripts/install-chromium

unit: .venv/.dev chromium  ## unit tests, the contract on the simulated device, doctests
	$(PYTEST) $(PARALLEL) $(COVERAGE)

browser: .venv/.dev chromium  ## the exported page in a headless browser
	$(PYTEST) $(PARALLEL) tests/browser

notebooks: .venv/.dev  ## every notebook, executed
	$(PYTEST) $(PARALLEL) --dist=loadfile tests/notebooks

test-pythons:  ## subsets of the unit and browser tests on every Python from 3.11 on that uv, pyenv or the path offers
	scripts/install-chromium
	python3 scripts/try_pythons.py $(VERSIONS)

docs: .venv/.dev  ## the site of the documentation, in docs/_build; a warning, a link that leads nowhere included, is an error
	rm -rf docs/reference/api
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto $(SPHINX_OPTIONS) -b html docs docs/_build
	@echo 'Open docs/_build/index.html'

lite: SPHINX_OPTIONS := --tag lite
lite: docs  ## the same site with JupyterLite in it: three notebooks that run in the reader's browser
	$(BIN)/python -m pip install --quiet --group lite
	$(BIN)/python scripts/make_lite.py docs/_build/lite

viewer:  ## bundle the modules of the timeline's viewer after a change to them; needs npm
	python3 scripts/bundle_viewer.py

gpu:  ## the GPU tests with the current python, on a machine with a GPU; keeps the report in bench/results
	python3 scripts/run_gpu_tests.py --report bench/results/gpu-tests.xml

bench: .venv/.dev  ## every benchmark; keeps the figures in bench/results
	$(BIN)/python scripts/run_benchmarks.py --results bench/results

wheel: .venv/.dev  ## the wheels, in dist: Linux x86_64 and aarch64 with CUPTI's callbacks compiled, and one that compiles them itself
	for processor in x86_64 aarch64 ''; do \
		GPUSTREAMLAB_WHEEL=$$processor $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . || exit 1; \
	done

release: .venv/.dev  ## source and wheels in dist, each installed into an empty environment and tried, and the release notes; uploads nothing
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/python scripts/make_release.py

clean:  ## remove .venv and everything that was built
	rm -rf .venv build dist out demo docs/_build docs/reference/api .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made: pyproject.toml scripts/make-venv
	@scripts/make-venv .venv
	@touch $@

.venv/.demo: .venv/.made
	@scripts/install-demo $(BIN)/python
	@touch $@

.venv/.dev: .venv/.made
	$(BIN)/python -m pip install --quiet --editable '.[notebook]' --group dev
	touch $@
