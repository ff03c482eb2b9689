# Two entry points, each complete on a fresh machine: `make verify` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LEVEL ?= smoke
WORKERS ?= 2
# One thread a process: items run side by side, and small tensors gain nothing from threads.
export OMP_NUM_THREADS := 1

.PHONY: verify test lint compile clean

verify: $(VENV)/.ready
	$(BIN)/kernelassay run --kernel triton_attention --kernel torch_reference --kernel sdpa_math \
	  --kernel sdpa_flash_cpu --kernel triton_merge --kernel torch_split --kernel torch_paged \
	  --kernel torch_verify --kernel torch_law --kernel torch_cache --kernel torch_prefix \
	  --kernel torch_recurrence --kernel speculative_decoder \
	  --level $(LEVEL) --workers $(WORKERS) \
	  --json verify.json --text verify.txt

test: $(VENV)/.ready
	ci/lint
	ci/cpu
	ci/compile

lint compile: $(VENV)/.ready
	ci/$@

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .kernelassay .hypothesis build *.egg-info verify.json verify.txt
