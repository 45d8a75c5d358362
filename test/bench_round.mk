# The model store's rounds against gloo and raw SET and GET.
.PHONY: bench-round
bench-round: $(BUILD)/bench/bench_round $(BUILD)/lib/kubeml-redis.so $(if $(filter $(abspath $(TORCH_VENV))/%,$(TORCH_PYTHON)),$(TORCH_VENV)/ready) ## time rounds of the model store
	TORCH_PYTHON=$(TORCH_PYTHON) python3 test/bench/bench_round.py $(abspath $(BUILD))/bench/bench_round $(BENCH_ARGS)
