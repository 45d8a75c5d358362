# cuda.mk: the CUDA engine, an object of its own (lib/kubeml-cuda.so) that programs load when they run
# on a machine that has a GPU, and the same sources for the host, which the tests use.
#
# CUDA=1 builds it, CUDA=0 does not; unsaid, it is built where a toolkit is found: CUDA_HOME, the usual
# folder, the distribution's nvcc, or what `make cuda-toolkit` has fetched.

CUDA_TOOLKIT := build/cuda-toolkit
ifndef CUDA_HOME
CUDA_HOME    := $(firstword $(patsubst %/bin/nvcc,%,$(wildcard /usr/local/cuda/bin/nvcc \
                  $(CUDA_TOOLKIT)/home/bin/nvcc /usr/lib/nvidia-cuda-toolkit/bin/nvcc /usr/bin/nvcc)))
endif
CUDA         ?= $(if $(SANITIZER),0,$(if $(wildcard $(CUDA_HOME)/bin/nvcc),1,0))
NVCC         := $(CUDA_HOME)/bin/nvcc
ifeq ($(CUDA)$(wildcard $(NVCC)),1)
$(error CUDA=1, and there is no $(NVCC): set CUDA_HOME, or run make cuda-toolkit first)
endif
# A100, H100 and H200, and what comes after them from PTX.
CUDA_ARCH    ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
                -gencode arch=compute_90,code=compute_90
NVCCFLAGS    := -std=c++17 -O3 --Werror all-warnings $(CUDA_ARCH) \
                -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
CUDA_LIBDIR  := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
# A toolkit without cuDNN or NCCL: those of Python's wheels (PyTorch brings them), by GPU_PYTHON.
GPU_PYTHON   ?= python3
cuda_wheel    = $(if $(wildcard $(CUDA_HOME)/include/$2 /usr/include/$2 /usr/include/*/$2),,$(shell $(GPU_PYTHON) -c \
                "import importlib.util as u; print(list(u.find_spec('nvidia.$1').submodule_search_locations)[0])" 2>/dev/null))
CUDNN_WHEEL  := $(if $(filter 1,$(CUDA))$(filter check-gpu bench-gpu,$(MAKECMDGOALS)),$(call cuda_wheel,cudnn,cudnn.h))
NCCL_WHEEL   := $(if $(filter 1,$(CUDA))$(filter check-gpu bench-gpu,$(MAKECMDGOALS)),$(call cuda_wheel,nccl,nccl.h))
wheel_lib     = $(if $1,-L$1/lib -Wl$(comma)-rpath$(comma)$1/lib -l:$(notdir $(firstword $(wildcard $1/lib/$2.so.*))),-l$(patsubst lib%,%,$2))
CUDA_LIBS    := -L$(CUDA_LIBDIR) -Wl,-rpath,$(realpath $(CUDA_LIBDIR)) -lcudart -lcublas -lcublasLt \
                $(call wheel_lib,$(CUDNN_WHEEL),libcudnn) $(call wheel_lib,$(NCCL_WHEEL),libnccl)
CUDA_INCLUDE := $(addprefix -isystem ,$(CUDA_HOME)/include $(addsuffix /include,$(CUDNN_WHEEL) $(NCCL_WHEEL)))

SRC_cuda     := $(call src,kernels/cuda)
SRC_cu       := $(sort $(wildcard kernels/cuda/*.cu))
SRC_cuda_host:= $(filter-out kernels/cuda/driver_%,$(SRC_cuda))
# What the engine needs of the rest: the kernels' own tree and a few small files.
CUDA_COMMON  := $(addprefix common/,err.c rng.c)

.PHONY: cuda-toolkit cuda check-cuda
cuda-toolkit: ## fetch a CUDA toolkit into the build folder (1.1 GB), for machines without one
	scripts/cuda-toolkit $(CUDA_TOOLKIT)

cuda: $(BUILD)/lib/kubeml-cuda.so ## build the CUDA engine alone

# ---- for the device --------------------------------------------------------------------------

$(BUILD)/cuda/%.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  NVCC $<'
	$(Q)$(NVCC) -Ikernels -Icommon $(NVCCFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/kernels/cuda/driver_%.o: CPPFLAGS += $(CUDA_INCLUDE)

CUDA_OBJECTS := $(patsubst %.cu,$(BUILD)/cuda/%.o,$(SRC_cu)) $(call obj,$(SRC_cuda))
# Bound within itself: its copies of the graph's and the plan's functions are its own.
$(BUILD)/lib/kubeml-cuda.so: $(CUDA_OBJECTS) $(call obj,kernels/plan.c kernels/graph.c kernels/layers.c \
                             kernels/graph_init.c kernels/optim.c $(CUDA_COMMON))
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-Bsymbolic -o $@ $^ $(CUDA_LIBS) -lpthread -lm -ldl

ifeq ($(CUDA),1)
all: $(BUILD)/lib/kubeml-cuda.so
endif

check-cuda: $(BUILD)/lib/kubeml-cuda.so $(BUILD)/cuda-probe $(BUILD)/cuda-probe-graph tests ## compile, link and load the CUDA engine, and run its tests on the host
	$(BUILD)/cuda-probe $<
	$(BUILD)/cuda-probe-graph
	BUILD=$(BUILD) SANITIZER=$(SANITIZER) $(PYTHON) test/run.py --unit test_cuda_

$(BUILD)/cuda-probe: $(call obj,test/cuda/probe.c)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -ldl

$(BUILD)/obj/test/cuda/probe_graph.o: CPPFLAGS += $(CUDA_INCLUDE)
$(BUILD)/cuda-probe-graph: $(call obj,test/cuda/probe_graph.c common/err.c)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(CUDA_LIBS) -ldl

# ---- for the host: the same sources on a shim and a fake driver ------------------------------

CXX          ?= g++
ifeq ($(origin CXX),default)
CXX          := g++
endif
SHIM_FLAGS   := -std=c++17 $(if $(SANITIZER),-O1 -g1,-O2 -g) -fno-omit-frame-pointer -ffp-contract=off -D_GNU_SOURCE -Wall -Wextra -Werror \
                -Wno-unused-function -Ikernels -Icommon -Itest/cuda \
                $(if $(SANITIZER),-fsanitize=$(SANITIZER) -fno-sanitize-recover=undefined)
SRC_shim     := $(sort $(wildcard test/cuda/*.cc))
SHIM_OBJECTS := $(patsubst %,$(BUILD)/shim/%.o,$(SRC_cu) $(SRC_shim)) $(call obj,$(SRC_cuda_host)) \
                $(BUILD)/shim/kernels/backends.o

$(BUILD)/shim/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  SHIM $<'
	$(Q)$(CCACHE) $(CXX) -x c++ $(SHIM_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/shim/%.cc.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CXX  $<'
	$(Q)$(CCACHE) $(CXX) $(SHIM_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/shim/kernels/backends.o: kernels/backends.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $< (with the CUDA engine on the fake driver)'
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -DBACKEND_CUDA_LINKED=1 -MMD -MP -c $< -o $@

# The engine's own tests, with the CUDA backend among the backends; and the tests of test/cuda.
SHIM_TESTS   := $(addprefix $(BUILD)/test/test_cuda_,graph_ops graph_engine) \
                $(patsubst test/cuda/%.c,$(BUILD)/test/%,$(wildcard test/cuda/test_*.c))
tests: $(if $(findstring thread,$(SANITIZER)),,$(SHIM_TESTS))
shim_link = @mkdir -p $(@D); echo '  LINK $@'
$(BUILD)/shim/test_graph_%.o: test/unit/test_graph_%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $< (on the shim)'
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -DRANDOM_MODELS=$(if $(SANITIZER),6,20) -DWIDE=8 -DROOM=12 -MMD -MP -c $< -o $@
$(BUILD)/test/test_cuda_graph_%: $(BUILD)/shim/test_graph_%.o $(SHIM_OBJECTS) $(LIB_support) $(LIB_kernels) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
$(BUILD)/test/%: $(BUILD)/obj/test/cuda/%.o $(SHIM_OBJECTS) $(LIB_support) $(LIB_kernels) $(LIB_function) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)

# The programs with a function whose engine computes on the fake device: a platform on GPUs, without one.
FAKEGPU      := $(BUILD)/fakegpu/bin
$(FAKEGPU)/kubeml-function: $(call obj,function-runtime/kubeml-function.c) $(SHIM_OBJECTS) $(LIB_function) $(LIB_kernels) $(LIB_common)
	$(shim_link)
	$(Q)$(CXX) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_common)
$(FAKEGPU)/kubeml-%: $(BUILD)/bin/kubeml-%
	@mkdir -p $(@D)
	$(Q)ln -f $< $@ && ln -sfn ../lib $(BUILD)/fakegpu/lib
tests: $(if $(findstring thread,$(SANITIZER)),,$(addprefix $(FAKEGPU)/kubeml-,function controller ps builder))

-include $(shell find $(BUILD)/shim $(BUILD)/cuda -name '*.d' 2>/dev/null)
