# zoo.mk: compares every model of the zoo with PyTorch's and torchvision's own: results, memory, and how well
# it learns. TORCH_PYTHON as in bench.mk; it must also import torchvision and safetensors, which the build
# folder's environment has.

OWN_TORCH := $(if $(filter $(abspath $(TORCH_VENV))/%,$(TORCH_PYTHON)),$(TORCH_VENV)/ready-zoo)

# Checked before anything is installed for these targets.
.PHONY: cifar10-is-named
cifar10-is-named:
	@test -n "$(CIFAR10)$(findstring --data,$(BENCH_ARGS))" || \
		{ echo "CIFAR10=FOLDER must name one with data_batch_1..5.bin and test_batch.bin" >&2; exit 1; }

.PHONY: check-parity bench-engine-memory bench-spread bench-drift bench-accuracy bench-accuracy-platform
check-parity: $(BUILD)/parity/parity $(OWN_TORCH) ## every model beside PyTorch's: logits, gradients, 20 steps (PARITY_ARGS="resnet18 vgg11")
	BUILD=$(BUILD) $(TORCH_PYTHON) test/parity/parity.py $(PARITY_ARGS)

bench-engine-memory: $(BUILD)/bench/bench_engine $(OWN_TORCH) ## peak memory of a training step beside PyTorch's (BENCH_ARGS="--model resnet18")
	BUILD=$(BUILD) $(TORCH_PYTHON) test/bench/bench_memory.py $(BENCH_ARGS)

# Hours on two cores; CIFAR10=FOLDER holds data_batch_1..5.bin and test_batch.bin.
bench-accuracy: bench-accuracy-platform bench-accuracy-curve bench-accuracy-resnet34 ## ResNets on CIFAR-10, through the platform and beside PyTorch (CIFAR10=FOLDER)

bench-accuracy-platform: cifar10-is-named all
	BUILD=$(BUILD) $(PYTHON) test/bench/bench_accuracy.py platform $(BENCH_ARGS)

bench-spread: cifar10-is-named $(BUILD)/parity/parity $(OWN_TORCH) ## how far runs part that differ by rounding, here and in PyTorch (CIFAR10=FOLDER)
	BUILD=$(BUILD) $(TORCH_PYTHON) test/parity/spread.py $(BENCH_ARGS)

bench-drift: cifar10-is-named $(BUILD)/parity/parity $(OWN_TORCH) ## whether the engine's steps lean one way beside PyTorch's from the same weights (CIFAR10=FOLDER)
	BUILD=$(BUILD) $(TORCH_PYTHON) test/parity/drift.py $(BENCH_ARGS)

bench-accuracy-%: cifar10-is-named all $(BUILD)/bench/bench_batches $(OWN_TORCH)
	BUILD=$(BUILD) $(TORCH_PYTHON) test/bench/bench_accuracy.py $* $(BENCH_ARGS)

# torchvision's version follows from torch's: pip finds the version built for it.
$(TORCH_VENV)/ready-zoo: $(TORCH_VENV)/ready
	$(TORCH_VENV)/bin/pip install --quiet --disable-pip-version-check safetensors torchvision \
		"torch==$$($(TORCH_VENV)/bin/python -c 'import torch; print(torch.__version__.split("+")[0])')"
	@touch $@

$(BUILD)/parity/parity: $(BUILD)/obj/test/parity/parity.o $(LIB_function) $(LIB_kernels) $(LIB_common)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -rdynamic -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
