# bench.mk: benchmarks against PyTorch. PyTorch is installed into a virtual environment in the build folder,
# unless TORCH_PYTHON names a Python that can import torch and torchvision.

TORCH_VENV   := $(BUILD)/torch
TORCH_PYTHON ?= $(abspath $(TORCH_VENV))/bin/python

.PHONY: bench-engine
bench-engine: $(BUILD)/bench/bench_engine $(if $(filter $(abspath $(TORCH_VENV))/%,$(TORCH_PYTHON)),$(TORCH_VENV)/ready) ## the engine's speed beside PyTorch's (BENCH_ARGS="--rounds 3")
	BUILD=$(BUILD) $(TORCH_PYTHON) test/bench/bench_engine.py $(BENCH_ARGS)

$(TORCH_VENV)/ready:
	@mkdir -p $(@D)
	python3 -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/pip install --quiet --disable-pip-version-check torch torchvision numpy
	@touch $@
