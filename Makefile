# One command each. `python launch.py` does the first two for a person who only wants the studio.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
C_FILES := $(wildcard csrc/*.[ch] csrc/x86/*.[ch] csrc/arm/*.[ch])

build:            ## compile the extensions in place
	$(PYTHON) setup.py -q build_ext --inplace

test:             ## all tests; `make test ARGS=--run-reference` compares live with diffusers
	$(PYTHON) -m pytest $(ARGS)

lint:             ## ruff, mypy, clang-format
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy h3core webui launch.py
	clang-format --dry-run --Werror $(C_FILES)

sanitize:         ## every kernel slot against portable C under the address and undefined-behaviour sanitizers
	sh tests/sanitize.sh

neon:             ## the Arm kernels, compiled and checked under qemu-user
	sh tests/neon.sh

bench:            ## tables; they assert nothing
	for bench in tests/bench/*.py; do $(PYTHON) -m tests.bench.$$(basename $$bench .py) || exit 1; done

.PHONY: build test lint sanitize neon bench
