# The simulator links the production objects of the state machines and nothing else, and once more for
# each mutation: the same sources compiled with -DMUTATION=n (common/mutation.h), where one decision is
# taken wrongly. test_simulate shows that every one of those is found.

SIM_LOGIC  := $(filter common/deal.c common/request.c common/average.c common/gpu.c common/policy.c common/round%.c common/job%.c,$(SRC_common))
SIM_GROUND := common/rng.c common/err.c common/clock.c common/log.c
SIM_WORLD  := test/sim/sim.c test/sim/sim_store.c test/sim/sim_ps.c test/sim/sim_function.c test/sim/sim_controller.c
SIM_SHARED := $(call obj,$(SIM_GROUND) $(SIM_WORLD))
MUTATIONS  := 1 2 3 4 5 6 7 8 9 10 11 12 13 14 20 21 22 23 24 25
MUTANTS    := $(addprefix $(BUILD)/test/mutant-,$(MUTATIONS))

CPPFLAGS += $(if $(wildcard test/sim),-Itest/sim)

$(BUILD)/test/simulate: $(call obj,test/sim/simulate.c $(SIM_LOGIC)) $(SIM_SHARED)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -ljansson -lpthread -lm

$(BUILD)/test/test_simulate: $(call obj,test/sim/test_simulate.c $(SIM_LOGIC)) $(SIM_SHARED) $(LIB_support) | $(BUILD)/test/simulate $(MUTANTS)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) $(LIB_support) -ljansson -lpthread -lm

define mutant
$(BUILD)/obj/mutant-$1/%.o: %.c $(BUILD)/flags
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CPPFLAGS) $$(CFLAGS) -DMUTATION=$1 -MMD -MP -c $$< -o $$@
$(BUILD)/test/mutant-$1: $(patsubst %.c,$(BUILD)/obj/mutant-$1/%.o,$(SIM_LOGIC)) $(call obj,test/sim/simulate.c) $(SIM_SHARED)
	@mkdir -p $$(@D)
	@echo '  LINK $$@'
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$(filter %.o,$$^) -ljansson -lpthread -lm
endef
$(foreach n,$(MUTATIONS),$(eval $(call mutant,$n)))
