# Every target sets up .venv by itself and does nothing twice.
PYTHON ?= python3
BIN := .venv/bin
WHEEL := $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

.PHONY: test quick lint demo docs wheel lock clean

# One process per core, with one thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: .venv/ready
	$(PYTEST)

# Without the tests that are marked `slow`.
quick: .venv/ready
	$(PYTEST) -m "not slow"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror csrc/*/*.h csrc/*/*.cpp csrc/onnx/stand_in/torch/csrc/stable/*.h tests/ops/baseline/*

demo: .venv/ready
	$(BIN)/python examples/digits.py --output runs/demo

# To site/: the documentation, warnings are errors. It opens without a server and without the network.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# To dist/: one wheel with the C++ kernels for this platform and every Python, one of Python alone, and the sources.
wheel: .venv/ready
	rm -rf build dist
	LAPLACIANFORMER_KERNELS=1 $(WHEEL)
	LAPLACIANFORMER_KERNELS=0 $(WHEEL)
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' > /dev/null

# To constraints.txt: exact versions of everything, for every platform, with the hashes of their files. Needs uv. Versions
# that are there and still fit pyproject.toml stay; after `rm constraints.txt` all are the newest.
lock:
	uv pip compile --quiet --universal --python-version 3.11.5 --generate-hashes --no-annotate \
		--custom-compile-command 'make lock' --extra dev --output-file constraints.txt pyproject.toml

# First what has hashes, then the package itself, which has none: pip takes both in one command only without hashes.
.venv/ready: pyproject.toml constraints.txt setup.py $(wildcard csrc/*/*)
	$(PYTHON) -m venv .venv
	$(BIN)/python -c 'import sys; sys.exit(None if sys.version_info >= (3, 11, 5) else "constraints.txt needs Python 3.11.5 or newer: rm -rf .venv and make PYTHON=python3.12")'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch .venv/ready

clean:
	rm -rf .venv build dist runs site src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f src/laplacianformer/_cpu.* src/laplacianformer/_onnx.* src/laplacianformer/build_failure.txt
