# cuda.mk: the CUDA engine, an object of its own (lib/kubeml-cuda.so) that programs load when they run
# on a machine that has a GPU, and the same sources for the host, which the tests use.
#
# CUDA=1 builds it, CUDA=0 does not; unsaid, it is built where a toolkit is found: CUDA_HOME, what `make
# cuda-toolkit` has fetched, the usual folder, or the distribution's nvcc.

CUDA_TOOLKIT := build/cuda-toolkit
ifndef CUDA_HOME
CUDA_HOME    := $(firstword $(patsubst %/bin/nvcc,%,$(wildcard $(CUDA_TOOLKIT)/home/bin/nvcc \
                  /usr/local/cuda/bin/nvcc /usr/lib/nvidia-cuda-toolkit/bin/nvcc \
                  $(realpath $(shell command -v nvcc)) /usr/bin/nvcc)))
endif
NVCC         := $(CUDA_HOME)/bin/nvcc
# What a toolkit lacks of the libraries Python's wheels may have (PyTorch brings them), by GPU_PYTHON: their folder.
GPU_PYTHON   ?= python3
cuda_header   = $(wildcard $(CUDA_HOME)/include/$1 /usr/include/$1 /usr/include/*/$1)
cuda_wheel    = $(if $(call cuda_header,$2),,$(patsubst %/include/$2,%,$(wildcard $(addsuffix /include/$2,$(shell \
                $(GPU_PYTHON) -c "import importlib.util as u; print(list(u.find_spec('nvidia.$1').submodule_search_locations)[0])" 2>/dev/null)))))
ifneq ($(wildcard $(NVCC)),)
CUBLAS_WHEEL := $(or $(call cuda_wheel,cu13,cublasLt.h),$(call cuda_wheel,cublas,cublasLt.h))
CUDNN_WHEEL  := $(call cuda_wheel,cudnn,cudnn.h)
NCCL_WHEEL   := $(call cuda_wheel,nccl,nccl.h)
endif
CUDA_WHEELS  := $(CUBLAS_WHEEL) $(CUDNN_WHEEL) $(NCCL_WHEEL)
CUDA_LACKS   := $(strip $(if $(wildcard $(NVCC)),,nvcc) $(if $(CUBLAS_WHEEL)$(call cuda_header,cublasLt.h),,cuBLAS) \
                  $(if $(CUDNN_WHEEL)$(call cuda_header,cudnn.h),,cuDNN) $(if $(NCCL_WHEEL)$(call cuda_header,nccl.h),,NCCL))
CUDA_SAID    := $(filter-out undefined,$(origin CUDA))
CUDA         ?= $(if $(SANITIZER),0,$(if $(CUDA_LACKS),0,1))
ifeq ($(CUDA)$(if $(CUDA_LACKS),1),11)
$(error CUDA=1, and the toolkit$(if $(CUDA_HOME), in $(CUDA_HOME)) lacks $(CUDA_LACKS): set CUDA_HOME, or run make cuda-toolkit first)
endif
# A100, H100 and H200, and what comes after them from PTX. Nothing before 8.0: CAPABILITY_LEAST in driver_cuda.c and nvml.c.
CUDA_ARCH    ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
                -gencode arch=compute_90,code=compute_90
# A kernel whose registers do not suffice goes on in memory, slowly and without a word: an error here.
NVCCFLAGS    := -std=c++17 -O3 $(if $(filter 1,$(WERROR)),--Werror all-warnings) -Xptxas -warn-spills,-warn-lmem-usage $(CUDA_ARCH) \
                -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
CUDA_LIBDIRS := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib)) $(addsuffix /lib,$(CUDA_WHEELS))
# Wheels have a library by its version's name alone. NCCL is loaded when it is wanted (driver_nccl.c), by the same run path.
cuda_lib      = $(or $(if $(wildcard $(addsuffix /lib$1.so,$(CUDA_LIBDIRS))),-l$1),\
                $(addprefix -l:,$(notdir $(firstword $(wildcard $(addsuffix /lib$1.so.*,$(CUDA_LIBDIRS)))))),-l$1)
CUDA_LIBS    := $(addprefix -L,$(CUDA_LIBDIRS)) $(addprefix -Wl$(comma)-rpath$(comma),$(realpath $(CUDA_LIBDIRS))) \
                $(foreach library,cudart cublas cublasLt cudnn,$(call cuda_lib,$(library)))
CUDA_INCLUDE := $(addprefix -isystem ,$(addsuffix /include,$(CUDA_HOME) $(CUDA_WHEELS)))

SRC_cuda     := $(call src,kernels/cuda)
SRC_cu       := $(sort $(wildcard kernels/cuda/*.cu))
SRC_cuda_host:= $(filter-out kernels/cuda/driver_%,$(SRC_cuda))
# What the engine needs of the rest: the kernels' own tree and a few small files. The table of ops names the reference's functions.
CUDA_COMMON  := $(addprefix common/base/,err.c text.c parallel.c rng.c)
CUDA_GRAPH   := $(addprefix kernels/,plan.c graph.c layers.c shapes.c graph_init.c optim.c) $(wildcard kernels/reference/ref_*.c)

# Which kernels of ours there are: a sum over their text, part of the key of what was measured on a GPU (cuda_autotune.c).
CUDA_VERSION := $(BUILD)/cuda_kernels_version.h
$(CUDA_VERSION): FORCE
	@mkdir -p $(@D)
	@version="#define CUDA_KERNELS_VERSION \"$$(cat $(SRC_cu) $(sort $(wildcard kernels/cuda/*.cuh)) | cksum | cut -d' ' -f1)\""; \
	    echo "$$version" | cmp -s - $@ || echo "$$version" >$@
EXTRA_kernels_cuda_cuda_autotune := -I$(BUILD)
$(BUILD)/obj/kernels/cuda/cuda_autotune.o: $(CUDA_VERSION)

# An engine that has been built of these sources stays where a later call finds no toolkit and was not told CUDA=0: `sudo make install`
# has neither CUDA_HOME nor the PATH that it was built with.
CUDA_ENGINE  := $(BUILD)/lib/kubeml-cuda.so
CUDA_STAYS   := $(if $(CUDA_SAID)$(filter 1,$(CUDA)),,$(if $(wildcard $(CUDA_ENGINE)),$(if $(shell \
                find kernels/cuda -type f -newer $(CUDA_ENGINE)),,1)))

# Whose CUDA it is, 13 say, which an older driver does not run: common/contract/nvml.c. 0: the engine is not built.
CUDA_MAJOR   := $(or $(if $(CUDA_STAYS),$(shell cat $(BUILD)/cuda_major 2>/dev/null)),$(if $(filter 1,$(CUDA)),$(shell sed -n 's/^.define CUDART_VERSION *\([0-9]*\)[0-9]\{3\}$$/\1/p' \
                $(firstword $(call cuda_header,cuda_runtime_api.h)))),0)
ifneq ($(CUDA_MAJOR)$(wildcard $(BUILD)/cuda_major),0) # or an earlier build had one
$(eval $(call says,$(BUILD)/cuda_major,CUDA_MAJOR))
EXTRA_common_contract_nvml := -DCUDA_MAJOR=$(CUDA_MAJOR)
$(BUILD)/obj/common/contract/nvml.o: $(BUILD)/cuda_major
endif

.PHONY: cuda-toolkit cuda check-cuda check-cuda-host
cuda-toolkit: ## fetch a CUDA toolkit into the build folder (1.1 GB), for machines without one
	scripts/cuda-toolkit $(CUDA_TOOLKIT)

cuda: $(BUILD)/lib/kubeml-cuda.so ## build the CUDA engine alone

# ---- for the device --------------------------------------------------------------------------

# Of which toolkit, and for which architectures. What is linked may lie elsewhere for another GPU_PYTHON: no kernel is compiled for it.
NVCC_NOW     := $(realpath $(NVCC)) $(NVCCFLAGS)
CUDA_NOW     := $(CUDA_INCLUDE) $(CUDA_LIBS)
$(eval $(call says,$(BUILD)/flags-nvcc,NVCC_NOW))
$(eval $(call says,$(BUILD)/flags-cuda,CUDA_NOW))

$(BUILD)/cuda/%.o: %.cu $(BUILD)/flags-nvcc
	@mkdir -p $(@D)
	@echo '  NVCC $<'
	$(Q)$(NVCC) -I. $(NVCCFLAGS) -MMD -MP -c $< -o $@

CUDA_DRIVERS := $(call obj,$(filter kernels/cuda/driver_%,$(SRC_cuda)))
$(CUDA_DRIVERS): private CPPFLAGS += $(CUDA_INCLUDE)
$(CUDA_DRIVERS): $(BUILD)/flags-cuda

CUDA_OBJECTS := $(patsubst %.cu,$(BUILD)/cuda/%.o,$(SRC_cu)) $(call obj,$(SRC_cuda))
# Bound within itself: its copies of the graph's and the plan's functions are its own.
$(BUILD)/lib/kubeml-cuda.so: $(CUDA_OBJECTS) $(call obj,$(CUDA_GRAPH) $(CUDA_COMMON))
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-Bsymbolic -Wl,-rpath,'$$ORIGIN' -o $@ $^ $(CUDA_LIBS) -lpthread -lm -ldl

ifeq ($(CUDA),1)
all: $(BUILD)/lib/kubeml-cuda.so
else ifneq ($(CUDA_STAYS),)
.PHONY: earlier-cuda
all: earlier-cuda
earlier-cuda:
	@echo "the CUDA engine of an earlier build stays: none can be built here for want of $(CUDA_LACKS) (CUDA=0 removes it)"
else ifneq ($(wildcard $(CUDA_ENGINE)),)
# One of an earlier build has other kernels than this one, and programs would load it.
.PHONY: without-cuda
all: without-cuda
without-cuda:
	@rm -f $(CUDA_ENGINE)
	@echo "the CUDA engine of an earlier build is removed: this one is without$(if $(CUDA_LACKS),$(comma) for want of $(CUDA_LACKS))"
endif

# Before the targets that want them: what a target wants is read where it stands.
RACE_TESTS   := $(addprefix $(BUILD)/test/test_races_,planted kernels algorithms graph_ops)

check-cuda: $(BUILD)/lib/kubeml-cuda.so $(BUILD)/cuda-probe $(BUILD)/cuda-probe-errors $(BUILD)/cuda-probe-graph $(BUILD)/cuda-probe-nccl tests $(RACE_TESTS) ## compile, link and load the CUDA engine, and run its tests on the host
	$(BUILD)/cuda-probe $<
	$(BUILD)/cuda-probe-errors
	$(BUILD)/cuda-probe-graph
	$(BUILD)/cuda-probe-nccl
	test/cuda/check_rounding $(NVCC) kernels/cuda/merge.cu kernels/cuda/optim.cu
	+@$(MAKE) --no-print-directory check-cuda-host

# Watched, a case takes several times as long as its limit was made for.
check-cuda-host: tests $(RACE_TESTS) ## what check-cuda runs on the host, which needs no toolkit
	TEST_STRETCH=$${TEST_STRETCH:-4} BUILD=$(BUILD) SANITIZER=$(SANITIZER) $(PYTHON) test/run.py --unit \
	    $(if $(findstring thread,$(SANITIZER)),,test_cuda_) test_races_

$(BUILD)/cuda-probe: $(call obj,test/cuda/probe.c)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -ldl

$(BUILD)/obj/test/cuda/probe_errors.o: private CPPFLAGS += $(CUDA_INCLUDE)
$(BUILD)/obj/test/cuda/probe_errors.o: $(BUILD)/flags-cuda
$(BUILD)/cuda-probe-errors: $(call obj,test/cuda/probe_errors.c) $(CUDA_OBJECTS) $(call obj,$(CUDA_GRAPH) $(CUDA_COMMON))
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(CUDA_LIBS) -lpthread -lm -ldl

$(BUILD)/obj/test/cuda/probe_graph.o: private CPPFLAGS += $(CUDA_INCLUDE)
$(BUILD)/obj/test/cuda/probe_graph.o: $(BUILD)/flags-cuda
$(BUILD)/cuda-probe-graph: $(call obj,test/cuda/probe_graph.c common/base/err.c common/base/text.c) $(BUILD)/cuda/kernels/cuda/pointwise.o
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(CUDA_LIBS) -ldl

$(BUILD)/obj/test/cuda/probe_nccl.o: private CPPFLAGS += $(CUDA_INCLUDE)
$(BUILD)/obj/test/cuda/probe_nccl.o: $(BUILD)/flags-cuda
$(BUILD)/cuda-probe-nccl: $(call obj,test/cuda/probe_nccl.c kernels/cuda/driver_nccl.c common/base/err.c common/base/text.c)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(CUDA_LIBS) -lpthread -ldl

# ---- for the host: the same sources on a shim and a fake driver ------------------------------

CXX          ?= g++
ifeq ($(origin CXX),default)
CXX          := g++
endif
# -O2 with a sanitizer too: what it takes longer to compile the kernels so is saved several times as they run.
SHIM_FLAGS   := -std=c++17 -O2 $(if $(SANITIZER),-g1,-g) -fno-omit-frame-pointer -ffp-contract=off -D_GNU_SOURCE -Wall -Wextra -Werror \
                -Wno-unused-function -I. $(TEST_INCLUDES) \
                $(if $(SANITIZER),-fsanitize=$(SANITIZER) -fno-sanitize-recover=undefined $(SEEN_AT_ACCESS))
SRC_shim     := $(filter-out test/cuda/races%.cc,$(sort $(wildcard test/cuda/*.cc)))
SHIM_OBJECTS := $(patsubst %,$(BUILD)/shim/%.o,$(SRC_cu) $(SRC_shim)) $(call obj,$(SRC_cuda_host)) \
                $(BUILD)/shim/kernels/backends.o

RACE_FLAGS   := -fsanitize=thread -Wno-tsan
SHIM_NOW     := $(CXX) $(SHIM_FLAGS) $(RACE_FLAGS) $(CPPFLAGS)
$(eval $(call says,$(BUILD)/flags-shim,SHIM_NOW))

$(BUILD)/shim/%.cu.o: %.cu $(BUILD)/flags-shim
	@mkdir -p $(@D)
	@echo '  SHIM $<'
	$(Q)$(CCACHE) $(CXX) -x c++ -include test/cuda/shim.h $(SHIM_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/shim/%.cc.o: %.cc $(BUILD)/flags-shim
	@mkdir -p $(@D)
	@echo '  CXX  $<'
	$(Q)$(CCACHE) $(CXX) $(SHIM_FLAGS) -MMD -MP -c $< -o $@
# The fake libraries' arithmetic is the truth that the engine's is compared with: what there is to find is in the engine.
$(BUILD)/shim/test/cuda/fake_driver.cc.o: SHIM_FLAGS := $(filter-out -fsanitize% -fno-sanitize%,$(SHIM_FLAGS))
$(BUILD)/shim/kernels/backends.o: kernels/backends.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $< (with the CUDA engine on the fake driver)'
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -DBACKEND_CUDA_LINKED=1 -MMD -MP -c $< -o $@

# Those that launch every kernel run once more with each access watched (test/cuda/races.cc); and what that finds is tested.
RACE_OBJECTS := $(patsubst %,$(BUILD)/races/%.o,$(SRC_cu)) $(BUILD)/shim/test/cuda/races.cc.o $(filter-out %.cu.o,$(SHIM_OBJECTS))
$(BUILD)/races/%.cu.o: %.cu $(BUILD)/flags-shim
	@mkdir -p $(@D)
	@echo '  SHIM $< (watched)'
	$(Q)$(CCACHE) $(CXX) -x c++ -include test/cuda/shim.h $(SHIM_FLAGS) $(RACE_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/races/%.cc.o: %.cc $(BUILD)/flags-shim
	@mkdir -p $(@D)
	@echo '  CXX  $< (watched)'
	$(Q)$(CCACHE) $(CXX) $(SHIM_FLAGS) $(RACE_FLAGS) $(CPPFLAGS) -MMD -MP -c $< -o $@

# The engine's own tests, with the CUDA backend among the backends; and the tests of test/cuda.
SHIM_TESTS   := $(addprefix $(BUILD)/test/test_cuda_,graph_ops graph_engine) \
                $(patsubst test/cuda/%.c,$(BUILD)/test/%,$(wildcard test/cuda/test_*.c))
tests: $(if $(findstring thread,$(SANITIZER)),,$(SHIM_TESTS))
shim_link = @mkdir -p $(@D); echo '  LINK $@'
$(BUILD)/shim/test_graph_%.o: test/unit/test_graph_%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $< (on the shim)'
	$(Q)$(CC) $(CPPFLAGS) $(TEST_INCLUDES) $(CFLAGS) -DON_SHIM -DRANDOM_MODELS=$(if $(SANITIZER),3,20) -DWIDE=8 -DROOM=12 -MMD -MP -c $< -o $@
$(BUILD)/test/test_cuda_graph_%: $(BUILD)/shim/test_graph_%.o $(SHIM_OBJECTS) $(LIB_support) $(LIB_kernels) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
$(BUILD)/test/test_races_planted: $(BUILD)/races/test/cuda/races_planted.cc.o $(RACE_OBJECTS) $(LIB_support) $(LIB_kernels) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
$(BUILD)/races/test_graph_ops.o: test/unit/test_graph_ops.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $< (watched)'
	$(Q)$(CC) $(CPPFLAGS) $(TEST_INCLUDES) $(CFLAGS) -DON_SHIM -DRANDOM_MODELS=3 -DWIDE=8 -DROOM=12 -MMD -MP -c $< -o $@
$(BUILD)/test/test_races_graph_ops: $(BUILD)/races/test_graph_ops.o $(RACE_OBJECTS) $(LIB_support) $(LIB_kernels) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
$(BUILD)/test/test_races_%: $(BUILD)/obj/test/cuda/test_cuda_%.o $(RACE_OBJECTS) $(LIB_support) $(LIB_kernels) $(LIB_function) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
$(BUILD)/test/%: $(BUILD)/obj/test/cuda/%.o $(SHIM_OBJECTS) $(LIB_support) $(LIB_kernels) $(LIB_function) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)

# The programs with a function whose engine computes on the fake device: a platform on GPUs, without one.
FAKEGPU      := $(BUILD)/fakegpu/bin
$(FAKEGPU)/kubeml-function: $(call obj,$(MAIN_function)) $(SHIM_OBJECTS) $(LIB_function) $(LIB_kernels) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
$(FAKEGPU)/kubeml-%: $(BUILD)/bin/kubeml-%
	@mkdir -p $(@D)
	$(Q)ln -f $< $@ && ln -sfn ../lib $(BUILD)/fakegpu/lib
# And what make bench-gpu runs: test/e2e/test_gpu_bench.py.
$(BUILD)/shim/bench_gpu.o: test/gpu/bench_gpu.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $< (on the shim)'
	$(Q)$(CC) $(CPPFLAGS) $(TEST_INCLUDES) $(CFLAGS) -DON_SHIM -MMD -MP -c $< -o $@
$(FAKEGPU)/bench_gpu: $(BUILD)/shim/bench_gpu.o $(SHIM_OBJECTS) $(LIB_kernels) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
tests: $(if $(findstring thread,$(SANITIZER)),,$(FAKEGPU)/bench_gpu $(addprefix $(FAKEGPU)/kubeml-,function controller ps builder))

-include $(shell find $(BUILD)/shim $(BUILD)/races $(BUILD)/cuda -name '*.d' 2>/dev/null)
