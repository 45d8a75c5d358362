# nvml.mk: a fake NVML for the tests, because machines without a GPU have no NVML.
FAKE_NVML := $(BUILD)/testlib/fake-nvml.so
$(FAKE_NVML): test/nvml/fake_nvml.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $<'
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -shared $< -o $@
tests: $(FAKE_NVML)
