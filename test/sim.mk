# The simulator links only the production objects of the state machines. There is one more simulator for each
# mutation, with the mutated source compiled with -DMUTATION=n (common/base/mutation.h), which makes one decision
# wrong. test_simulate shows that every mutation is found; sanitizer builds omit the mutations.

SIM_LOGIC  := $(addprefix common/contract/,shard_plan.c job_options.c request.c reduce_placement.c gpu.c) $(call src,common/round) \
              $(filter-out controller/job/algorithms.c,$(call src,controller/job))
SIM_GROUND := common/contract/tensor_filter.c common/base/rng.c common/contract/exit_cause.c common/base/err.c common/base/text.c common/base/clock.c common/base/log.c
SIM_WORLD  := test/sim/sim.c test/sim/sim_store.c test/sim/sim_ps.c test/sim/sim_function.c test/sim/sim_controller.c \
              test/sim/sim_pool.c test/sim/sim_check.c test/sim/sim_bounds.c test/sim/sim_user.c
SIM_SHARED := $(call obj,$(SIM_GROUND) $(SIM_WORLD))
MUTATIONS  := 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 \
              37 38 39 40 41 42 43 44 45 46 47 48 49 50 51
# SOURCE=n for each mutation
MUTATED    := $(shell grep -oE 'MUTATE.[0-9]+' $(SIM_LOGIC) | sed 's/:MUTATE./=/')
MUTANTS    := $(addprefix $(BUILD)/test/mutant-,$(MUTATIONS))

$(BUILD)/test/simulate: $(call obj,test/sim/simulate.c $(SIM_LOGIC)) $(SIM_SHARED)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -ljansson -lpthread -lm

$(BUILD)/test/test_simulate: $(call obj,test/sim/test_simulate.c $(SIM_LOGIC)) $(SIM_SHARED) $(LIB_support) | $(BUILD)/test/simulate $(if $(SANITIZER),,$(MUTANTS))
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) $(LIB_support) -ljansson -lpthread -lm

# $1: the mutation, $2: the source that contains it
define mutant
$(BUILD)/obj/mutant-$1/%.o: %.c $(BUILD)/flags
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CPPFLAGS) $$(CFLAGS) -DMUTATION=$1 -MMD -MP -c $$< -o $$@
$(BUILD)/test/mutant-$1: $(BUILD)/obj/mutant-$1/$(2:.c=.o) $(call obj,$(filter-out $2,$(SIM_LOGIC)) test/sim/simulate.c) $(SIM_SHARED)
	@mkdir -p $$(@D)
	@echo '  LINK $$@'
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$(filter %.o,$$^) -ljansson -lpthread -lm
endef
$(foreach n,$(MUTATIONS),$(eval $(call mutant,$n,$(patsubst %=$n,%,$(filter %=$n,$(MUTATED))))))
