# make fuzz: runs every parser of outside bytes under libFuzzer, for FUZZ_SECONDS each, from its corpus.
# Needs clang, whose warnings are errors here as gcc's are elsewhere. New inputs stay in the build folder. The input of a
# crash goes, minimised, to test/fuzz/corpus once the parser is fixed.

FUZZ_SECONDS ?= 10
FUZZ_CC      ?= clang
FUZZ_BUILD   := $(BUILD)/fuzz
FUZZ_FLAGS   := -std=gnu11 -O1 -g -fno-omit-frame-pointer $(WARNINGS) -DKUBEML_FUZZ $(TEST_INCLUDES) -Itest/fuzz
FUZZ_NAMES   := $(patsubst test/fuzz/fuzz_%.c,%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_COMMON  := $(patsubst %.c,$(FUZZ_BUILD)/obj/%.o,$(SRC_common) $(call src,controller/job) test/support/store_memory.c)

.PHONY: fuzz fuzz-build $(addprefix fuzz-,$(FUZZ_NAMES))
fuzz: $(addprefix fuzz-,$(FUZZ_NAMES)) ## run each fuzz target for FUZZ_SECONDS (default 10)
	@echo "fuzzed $(words $(FUZZ_NAMES)) parsers for $(FUZZ_SECONDS) s each"

fuzz-build: $(addprefix $(FUZZ_BUILD)/,$(FUZZ_NAMES)) ## build the fuzz targets

FUZZ_NOW      = $(FUZZ_CC) $(CPPFLAGS) $(FUZZ_FLAGS) $(X86) $(FLAGS_OF_FILES)
$(eval $(call says,$(FUZZ_BUILD)/flags,FUZZ_NOW))

$(FUZZ_BUILD)/obj/%.o: %.c $(FUZZ_BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_FLAGS) $(call flags_for,$<) -fsanitize=fuzzer-no-link,address,undefined \
		-fno-sanitize-recover=undefined -MMD -MP -c $< -o $@

$(FUZZ_BUILD)/libcommon.a: $(FUZZ_COMMON)
	@rm -f $@
	$(Q)ar rcs $@ $^

$(FUZZ_BUILD)/%: test/fuzz/fuzz_%.c test/fuzz/fuzz.h $(FUZZ_BUILD)/libcommon.a
	@mkdir -p $(@D)
	@echo '  FUZZ $*'
	$(Q)$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=undefined -o $@ $< $(FUZZ_BUILD)/libcommon.a $(LIBS_common)

$(addprefix fuzz-,$(FUZZ_NAMES)): fuzz-%: $(FUZZ_BUILD)/%
	@mkdir -p $(FUZZ_BUILD)/found/$* test/fuzz/corpus/$*
	@echo '  RUN  $* for $(FUZZ_SECONDS) s'
	$(Q)ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 $(FUZZ_BUILD)/$* -max_total_time=$(FUZZ_SECONDS) \
		-max_len=16384 -rss_limit_mb=2048 -timeout=10 -verbosity=0 -print_final_stats=0 \
		-artifact_prefix=$(FUZZ_BUILD)/crash-$*- $(FUZZ_BUILD)/found/$* test/fuzz/corpus/$* \
		> $(FUZZ_BUILD)/$*.log 2>&1 || { tail -40 $(FUZZ_BUILD)/$*.log; exit 1; }

-include $(shell find $(FUZZ_BUILD)/obj -name '*.d' 2>/dev/null)
