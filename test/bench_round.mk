# The model store's rounds against gloo and raw SET and GET; before them, its bulks against hiredis alone.
.PHONY: bench-round
bench-round: $(BUILD)/bench/bench_round $(BUILD)/bench/bench_bulk $(BUILD)/lib/kubeml-redis.so $(if $(filter $(abspath $(TORCH_VENV))/%,$(TORCH_PYTHON)),$(TORCH_VENV)/ready) ## time rounds of the model store
	$(BUILD)/bench/bench_bulk run
	TORCH_PYTHON=$(TORCH_PYTHON) python3 test/bench/bench_round.py $(abspath $(BUILD))/bench/bench_round $(BENCH_ARGS)
