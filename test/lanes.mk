# The kernels for AVX-512 and AVX512-BF16, and their tests, on a CPU that has neither: their files are compiled for AVX2 with
# each intrinsic computed lane by lane (lanes/avx512_lanes.h), and checks of the CPU report both as present. The cases are
# complete; check-avx512 tests the compiler's code for the real intrinsics.
LANES       := $(BUILD)/lanes
LANES_TESTS := $(addprefix $(LANES)/test/test_,cpu_pool cpu_layers cpu_golden cpu_bf16 graph_ops)
LANES_OBJ   := $(addprefix $(LANES)/obj/kernels/cpu/,kernels_avx512.o kernels_avx512_bf16.o cpu_isa.o)
LANES_CASES := test_cpu_pool:windows_of_avx512 $(addprefix test_cpu_layers:,updates_avx512 rooms_avx512 ops_avx512 layers_avx512 layers_bf16) \
    $(addprefix test_cpu_golden:,same_bits_avx512 lenet5_avx512) $(addprefix test_cpu_bf16:,values_are_rounded_to_the_nearest_even \
    products_round_their_factors_and_nothing_else winograds_transforms_are_those_of_fp32 lenet_learns_as_in_fp32)

.PHONY: check-lanes
check-lanes: $(LANES_TESTS) ## the tests of the AVX-512 and bf16 kernels on a CPU that has AVX2 alone
	BUILD=$(LANES) $(PYTHON) test/run.py --unit $(or $(CASES),$(LANES_CASES))

$(LANES)/obj/%_avx512.o $(LANES)/obj/%_avx512_bf16.o: LANES_FLAGS = -mavx2 -mfma -ffp-contract=fast -include test/lanes/avx512_lanes.h -Wno-psabi
$(LANES)/obj/%.o: LANES_FLAGS = '-D__builtin_cpu_supports(x)=1'
$(LANES)/obj/%.o: %.c $(BUILD)/flags test/lanes/avx512_lanes.h
	@mkdir -p $(@D)
	@echo '  CC   $< (lanes)'
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(if $(filter test/%,$<),$(TEST_INCLUDES)) $(LANES_FLAGS) -MMD -MP -c $< -o $@

$(LANES)/test/%: $(LANES)/obj/test/unit/%.o $(LANES_OBJ) $(LIB_support) $(ALL_LIBS)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(LIB_support) $(ALL_LIBS) -Wl,--end-group $(LIBS_common)
-include $(shell find $(LANES)/obj -name '*.d' 2>/dev/null)
