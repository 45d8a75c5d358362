# bench_onednn.mk: compares the engine's convolutions with oneDNN's: with the distribution's oneDNN (libdnnl-dev, 2.x in
# Debian 12, which has Winograd), where installed, and with 3.x from PyPI's wheel, in a virtual environment in the build folder.

ONEDNN3 := $(BUILD)/onednn3
ONEDNN  := $(if $(wildcard /usr/include/oneapi/dnnl/dnnl.h),bench_onednn) bench_onednn3

.PHONY: bench-onednn
bench-onednn: $(BUILD)/bench/bench_engine $(addprefix $(BUILD)/bench/,$(ONEDNN)) ## the engine's convolutions beside oneDNN's (BENCH_ARGS="--cases 64:32:3")
	@$(if $(filter bench_onednn,$(ONEDNN)),,echo "left out: the distribution's oneDNN; install libdnnl-dev")
	BUILD=$(BUILD) $(PYTHON) test/bench/bench_onednn.py $(BENCH_ARGS) $(ONEDNN)

$(ONEDNN3)/ready:
	@mkdir -p $(@D)
	python3 -m venv $(ONEDNN3)
	$(ONEDNN3)/bin/pip install --quiet --disable-pip-version-check onednn-devel-cpu-gomp
	@touch $@

bench_onednn_LINK = $(Q)$(CC) $(CPPFLAGS) $(TEST_INCLUDES) $(1) $(CFLAGS) -o $@ $< $(filter %.a,$^) $(LDFLAGS) $(2) -ldnnl $(LIBS_common)

$(BUILD)/bench/bench_onednn: test/bench/bench_onednn.c $(LIB_common)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(call bench_onednn_LINK)

$(BUILD)/bench/bench_onednn3: test/bench/bench_onednn.c $(LIB_common) $(ONEDNN3)/ready
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(call bench_onednn_LINK,-isystem $(ONEDNN3)/include,-L$(ONEDNN3)/lib -Wl$(comma)-rpath$(comma)$(abspath $(ONEDNN3))/lib)
