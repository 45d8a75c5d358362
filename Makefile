# KubeML: one Makefile, not recursive. `make help` lists what it does.
#
# CONFIG names the build folder: release, or the sanitizers' names. Every object remembers its
# headers (-MMD) and the flags it was built with (a changed flag rebuilds).

SANITIZER ?=
comma     := ,
CONFIG    := $(if $(SANITIZER),$(subst $(comma),-,$(SANITIZER)),release)
BUILD     ?= build/$(CONFIG)
CC        ?= gcc
ifeq ($(origin CC),default)
CC        := gcc
endif
WERROR    ?= 1
# The distribution's Python, which has the packages that scripts/install-packages installs.
PYTHON    ?= /usr/bin/python3
# Sanitizers check every access at any -O; -O1 takes two thirds of the time to compile.
OPT       ?= $(if $(SANITIZER),-O1,-O2)
Q         := $(if $(V),,@)

# Debian 12 and 13 and Ubuntu 24.04; scripts/install-packages has the packages and the names that differ.
LIBS_common := -llmdb -lyaml -lmicrohttpd -ljansson -lhiredis -lcurl -lz -lzip -lxxhash -lcrypto -lpthread -ldl -lm

# An include is a path from the root, or the bare name of a header beside it; <kubeml.h> is the SDK, as user code includes it.
CPPFLAGS  += -D_GNU_SOURCE -I. -Ifunction-runtime/include
# Only test objects find the headers of the test folders by bare names.
TEST_INCLUDES := -Itest/support -Itest/sim -Itest/cuda
WARNINGS  := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes \
             $(if $(filter 1,$(WERROR)),-Werror)
CFLAGS    += -std=gnu11 $(OPT) $(if $(SANITIZER),-g1,-g) -fno-omit-frame-pointer -fvisibility=hidden -fPIC -ffp-contract=off $(WARNINGS) \
             $(if $(SANITIZER),-fsanitize=$(SANITIZER) -fno-sanitize-recover=undefined)
LDFLAGS   += $(if $(SANITIZER),-fsanitize=$(SANITIZER)) -Wl,--as-needed -Wl,--gc-sections

# Kernels are compiled once per instruction set; kernels/cpu chooses a set at run time. x_avx512.c and x_avx2.c are the same
# algorithm with wider registers. Products are fused with sums (-ffp-contract) in these loops alone, because the merge and
# random draws must give the same bits everywhere. arm64 always has instructions for that, x86-64 only in these sets.
# On processors other than x86-64 the files of a set are empty, because their compilers do not know the flags.
X86      := $(findstring x86_64,$(shell $(CC) -dumpmachine 2>/dev/null))
x86_flags = $(if $(findstring _avx512,$1),$(loops_opt) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma) \
            $(if $(findstring _avx512_bf16,$1),-mavx512bf16) \
            $(if $(findstring _avx2,$1),$(loops_opt) -mavx2 -mfma)
# Vectors wider than a set's registers are only passed between inlined functions: how the ABI passes them does not matter.
flags_for = $(if $(filter test/%,$1),$(TEST_INCLUDES)) $(if $(X86),$(x86_flags)) \
            $(if $(filter kernels/cpu/kernels_generic.c kernels/cpu/kernels_avx2.c,$1),-Wno-psabi) \
            $(if $(findstring /merge,$1)$(findstring common/base/rng.,$1),-O3) \
            $(if $(findstring kernels/cpu/kernels_,$1),-ffp-contract=fast) \
            $(if $(findstring kernels/cpu/kernels_generic,$1),$(SEEN_AT_ACCESS)) \
            $(if $(findstring /reference/,$1),-O3 $(SEEN_AT_ACCESS))

# Few tests run the engine's loops under a sanitizer: -O3 would cost three times the compile time that it saves there.
# Products are fused with sums as by -O3, because otherwise a result may differ from a golden result by its rounding.
loops_opt = $(if $(and $(SANITIZER),$(findstring /obj/kernels/cpu/,$@)),$(OPT) -fexpensive-optimizations $(SEEN_AT_ACCESS),-O3)
# AddressSanitizer reports a pointer outside its object when the pointer is used. In innermost loops these two checks of the
# pointer itself take as long to compile, and to run, as all other checks.
SEEN_AT_ACCESS = $(if $(findstring undefined,$(SANITIZER)),-fno-sanitize=object-size$(comma)pointer-overflow)

src       = $(sort $(wildcard $(addsuffix /*.c,$1)))
tree      = $(call src,$1 $(wildcard $1/*))
obj       = $(patsubst %.c,$(BUILD)/obj/%.o,$1)
PLAIN    := $(if $(SANITIZER),build/release,$(BUILD))
plain     = $(patsubst %.c,$(PLAIN)/obj/%.o,$1)

# The MongoDB store is a shared object of its own, loaded when a locator names MongoDB. Without libmongoc it is not built, and
# store_open reports that.
MONGO_PKG    := $(shell pkg-config --exists libmongoc-1.0 2>/dev/null && echo libmongoc-1.0)
MONGO_CFLAGS := $(if $(MONGO_PKG),$(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(MONGO_PKG))))
MONGO_LIBS   := $(if $(MONGO_PKG),$(shell pkg-config --libs $(MONGO_PKG)))
SRC_mongo    := $(if $(MONGO_PKG),$(call src,common/store/mongo))
SRC_common   := $(call tree,common)
SRC_kernels  := $(call src,kernels $(addprefix kernels/,reference cpu zoo))
SRC_ps       := $(filter-out ps/module/%,$(call tree,ps))
SRC_module   := $(call src,ps/module)
SRC_function := $(filter-out function-runtime/examples/%,$(call tree,function-runtime))
SRC_controller := $(call tree,controller)
SRC_cli      := $(call src,cli)
SRC_unit     := $(filter-out $(if $(MONGO_PKG),,test/unit/test_store_mongo_form.c),$(call src,test/unit))
SRC_sim      := $(call src,test/sim)
SRC_bench    := $(filter-out test/bench/bench_onednn.c $(if $(MONGO_PKG),,test/bench/bench_mongo.c),$(call src,test/bench))
SRC_fuzz     := $(call src,test/fuzz)
SRC_support  := $(call src,test/support)

# A program's main file has the program's name; the rest of its folder is an archive that tests link too.
lib_objs  = $(call obj,$(filter-out $2,$1))
# kubeml-function has one more file, which replaces the C library's _exit.
MAIN_function := function-runtime/kubeml-function.c function-runtime/process_exit.c
MAINS     := builder/kubeml-builder.c ps/kubeml-ps.c function-runtime/kubeml-function.c controller/kubeml-controller.c cli/kubeml.c

LIB_common     := $(BUILD)/libcommon.a
LIB_kernels    := $(BUILD)/libkernels.a
LIB_ps         := $(BUILD)/libps.a
LIB_function   := $(BUILD)/libfunction.a
LIB_controller := $(BUILD)/libcontroller.a
LIB_cli        := $(BUILD)/libcli.a
LIB_support    := $(BUILD)/libsupport.a

PROGRAMS := $(foreach m,$(wildcard $(MAINS)),$(BUILD)/bin/$(basename $(notdir $m)))
MODULE   := $(if $(SRC_module),$(BUILD)/lib/kubeml-redis.so) $(if $(SRC_mongo),$(BUILD)/lib/kubeml-mongo.so)
UNITS    := $(patsubst test/unit/%.c,$(BUILD)/test/%,$(SRC_unit))
BENCHES  := $(patsubst test/bench/%.c,$(BUILD)/bench/%,$(SRC_bench))
SIMS     := $(patsubst test/sim/%.c,$(BUILD)/test/%,$(wildcard test/sim/test_*.c test/sim/simulate.c))

.PHONY: all help tests benches install-packages check check-built check-unit check-api demo clean format
all: $(PROGRAMS) $(MODULE) ## build every program and the Redis module (default)
	@echo "built in $(BUILD); next: make check, or make demo"

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22
	@echo "settings: SANITIZER=address,undefined|thread  CC=clang  WERROR=0  V=1  BUILD=folder"

tests: $(UNITS) $(SIMS) $(PROGRAMS) $(MODULE) ## build the tests without running them
benches: $(BENCHES)

# A file whose time changes only when its text changes: $(eval $(call says,FILES,VARIABLE)).
define says
$1: FORCE
	@mkdir -p $$(@D)
	@echo '$$($2)' | cmp -s - $$@ || echo '$$($2)' >$$@
endef
.PHONY: FORCE
FORCE:

# More targets. Images are built without these files (manifests/images/build.sh): `all` needs none of them except for CUDA.
-include scripts/*.mk test/*.mk charts/*.mk

install-packages: ## install what the build and the tests need, from the distribution
	scripts/install-packages

check: install-packages ## install, build with warnings as errors, run all tests
	+$(MAKE) --no-print-directory check-built

check-built: tests ## run all tests, without installing
	BUILD=$(BUILD) SANITIZER=$(SANITIZER) $(PYTHON) test/run.py

check-unit: tests ## the unit tests alone
	BUILD=$(BUILD) SANITIZER=$(SANITIZER) $(PYTHON) test/run.py --unit

check-api: all ## docs/reference/openapi.yaml against a running platform, by schemathesis
	BUILD=$(BUILD) SANITIZER=$(SANITIZER) $(PYTHON) test/run.py -v the_server_keeps_openapi

format: ## clang-format over the lines that differ from the last commit
	git clang-format --extensions c,h,cu,cuh

clean: ## remove the build folder
	rm -rf build

# ---- how things are built -------------------------------------------------------------------

# The flags that objects are built with. Some files have more flags, each kind with a file like this one: flags-mongo,
# flags-cuda.
FLAGS_NOW = $(CC) $(CXX) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $(X86) $(FLAGS_OF_FILES)
FLAGS_OF_FILES := $(foreach name,flags_for x86_flags loops_opt SEEN_AT_ACCESS,$(value $(name)))
$(eval $(call says,$(sort $(BUILD)/flags $(PLAIN)/flags),FLAGS_NOW))

define compile
	@mkdir -p $(@D)
	@echo '  CC   $<'
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(call flags_for,$<) $(EXTRA_$(subst /,_,$(basename $<))) -MMD -MP -c $< -o $@
endef
$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	$(compile)
# Objects without a sanitizer are the release's, and are compiled once for all configurations.
ifneq ($(PLAIN),$(BUILD))
$(PLAIN)/flags $(PLAIN)/obj/%.o: override SANITIZER =
$(PLAIN)/obj/%.o: %.c $(PLAIN)/flags
	$(compile)
endif

# What the CUDA engine and a program that loads it must share: a sum over the headers between them (kernels/backends.c).
SEAM := kernels/backend.h kernels/graph.h kernels/optim.h common/base/err.h
$(BUILD)/backend_seam.h: $(SEAM)
	@mkdir -p $(@D)
	@echo "#define BACKEND_SEAM \"$$(cat $(SEAM) | cksum | cut -d' ' -f1)\"" >$@
EXTRA_kernels_backends := -I$(BUILD)
EXTRA_kernels_cuda_cuda_backend := -I$(BUILD)
$(addprefix $(BUILD)/obj/kernels/,backends.o cuda/cuda_backend.o): $(BUILD)/backend_seam.h

# q, not r: two folders may have files of one name.
%.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)ar qcs $@ $^

$(LIB_common): $(call obj,$(SRC_common))
$(LIB_kernels): $(call obj,$(SRC_kernels))
$(LIB_ps): $(call lib_objs,$(SRC_ps),$(MAINS))
$(LIB_function): $(call lib_objs,$(SRC_function),$(MAIN_function))
$(LIB_controller): $(call lib_objs,$(SRC_controller),$(MAINS))
$(LIB_cli): $(call lib_objs,$(SRC_cli),$(MAINS))
$(LIB_support): $(call obj,$(SRC_support))

link = @mkdir -p $(@D)
$(BUILD)/bin/kubeml-ps: $(call obj,ps/kubeml-ps.c) $(LIB_ps) $(LIB_common)
$(BUILD)/bin/kubeml-controller: $(call obj,controller/kubeml-controller.c) $(LIB_controller) $(LIB_common)
$(BUILD)/bin/kubeml-builder: $(call obj,builder/kubeml-builder.c) $(LIB_common)
$(BUILD)/bin/kubeml: $(call obj,cli/kubeml.c) $(LIB_cli) $(LIB_common)
# User code resolves kml_* from the program itself: the whole SDK goes in and is exported.
# Under a sanitizer a job's functions use the usual instruction sets' loops without the sanitizer: with it, the loops are
# most of the end-to-end tests' time. The files around the loops decide which thread computes what, and where.
# test_cpu_layers runs the loops under the sanitizer, for every kind of layer and with several threads.
PLAIN_LOOPS := $(if $(SANITIZER),$(call plain,$(addprefix kernels/cpu/kernels_,avx2.c avx512.c)))
# These tests use the reference and the weights' random numbers only to compare with, so both go without the sanitizer too;
# test_graph_ops and test_golden run the reference under it, test_common the random numbers.
PLAIN_TRUTH := $(if $(SANITIZER),$(call plain,common/base/rng.c $(wildcard kernels/reference/ref_*.c)))
$(addprefix $(BUILD)/test/test_,cpu_layers cpu_golden zoo): $(PLAIN_TRUTH)
$(BUILD)/bin/kubeml-function: $(call obj,$(MAIN_function)) $(PLAIN_LOOPS) $(LIB_function) $(LIB_kernels) $(LIB_common)
$(BUILD)/bin/kubeml-function: EXTRA_LDFLAGS = -rdynamic
$(BUILD)/bin/%:
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(EXTRA_LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)

# The module runs inside redis-server: it contains the merge and no other library of ours. It never has a sanitizer, because
# redis-server lacks the runtime; test_module runs the module's logic under sanitizers.
MODULE_SRC := $(SRC_module) $(addprefix common/base/,err.c text.c hash64.c hash64_avx2.c hash64_avx512.c parallel.c) \
              $(addprefix common/modelstore/,block.c shm.c merge.c merge_generic.c merge_avx2.c merge_avx512.c)
$(BUILD)/lib/kubeml-redis.so: $(call plain,$(MODULE_SRC))
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(filter-out -fsanitize%,$(LDFLAGS)) -shared -Wl,-Bsymbolic -o $@ $^ -lxxhash -lpthread -lm

# The MongoDB store has copies of its own of the few small files that it needs, bound within the object.
$(BUILD)/obj/common/store/mongo/%.o: private CPPFLAGS += $(MONGO_CFLAGS)
MONGO_NOW := $(MONGO_CFLAGS) $(MONGO_LIBS)
$(eval $(call says,$(BUILD)/flags-mongo,MONGO_NOW))
$(call obj,$(SRC_mongo)) $(BUILD)/lib/kubeml-mongo.so: $(BUILD)/flags-mongo
$(BUILD)/lib/kubeml-mongo.so: $(call obj,$(SRC_mongo) $(addprefix common/,base/err.c base/text.c base/buf.c base/fs.c base/clock.c base/jsontext.c store/store_id.c))
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-Bsymbolic -o $@ $(filter %.o,$^) $(MONGO_LIBS) -ljansson -lxxhash -lpthread

# What tests link. PARTS="kernels common" omits folders that do not compile at the moment.
PARTS    ?= controller ps function cli kernels common
ALL_LIBS := $(foreach part,$(PARTS),$(LIB_$(part)))
$(BUILD)/test/%: $(BUILD)/obj/test/unit/%.o $(LIB_support) $(ALL_LIBS)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(LIB_support) $(ALL_LIBS) -Wl,--end-group $(LIBS_common)
$(BUILD)/test/%: $(BUILD)/obj/test/sim/%.o $(call obj,$(filter-out $(wildcard test/sim/test_*.c test/sim/simulate.c),$(SRC_sim))) $(LIB_support) $(ALL_LIBS)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(LIB_support) $(ALL_LIBS) -Wl,--end-group $(LIBS_common)
$(BUILD)/bench/%: $(BUILD)/obj/test/bench/%.o $(LIB_support) $(ALL_LIBS)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -rdynamic -o $@ $< -Wl,--start-group $(LIB_support) $(ALL_LIBS) -Wl,--end-group $(LIBS_common)

.SECONDARY:
-include $(shell find $(sort $(BUILD)/obj $(PLAIN)/obj) -name '*.d' 2>/dev/null)
