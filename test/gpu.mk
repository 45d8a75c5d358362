# gpu.mk: checks and benchmarks that need a GPU. check-gpu and bench-gpu are built only from kernels/, a few files of common/
# and the CUDA toolkit, which is fetched where the machine has none: no server library, no data. The other targets need the
# platform. PyTorch's side of the benchmarks needs a GPU_PYTHON with PyTorch. Results are CSVs in GPU_OUT, named by the GPU.

GPU_OUT      ?= docs/measurements
# GPU_SECONDS=500, where a command's time is limited: each of the four targets ends after 500 s, and continues when called
# again.
GPU_LIMIT     = $(if $(GPU_SECONDS),--seconds $(GPU_SECONDS))
GPU_CORE     := $(call obj,$(filter-out kernels/backends.c,$(SRC_kernels)) $(CUDA_COMMON) common/base/clock.c) $(CUDA_OBJECTS) \
                $(BUILD)/shim/kernels/backends.o
GPU_TESTS    := $(addprefix $(BUILD)/gpu/test_gpu_,graph_ops graph_engine golden models)
gpu_link      = @mkdir -p $(@D); echo '  LINK $@'; $(CC) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) $(CUDA_LIBS) -lpthread -ldl -lm

.PHONY: gpu gpu-programs gpu-pack check-gpu check-gpu-platform bench-gpu bench-paper-gpu
gpu: ## on a machine with a GPU: check-gpu, check-gpu-platform, bench-gpu and bench-paper-gpu, as far as they go; leaves their CSVs
	@test/gpu/ready $@
	+@undone=; for goal in check-gpu check-gpu-platform bench-gpu bench-paper-gpu; do echo "=== $$goal"; \
	    $(MAKE) --no-print-directory $$goal || undone="$$undone $$goal"; done; \
	    ls -l $(GPU_OUT)/gpu-*.csv; [ -z "$$undone" ] || { echo "gpu: failed, or not to be done here:$$undone" >&2; exit 1; }

check-gpu: ## on a machine with a GPU: every op, golden losses, the zoo, caps, sharing, as CSV; CHECK="--only zoo" and the like
	@test/gpu/ready $@
	+@$(MAKE) --no-print-directory gpu-programs
	@$(GPU_PYTHON) test/gpu/check_gpu.py $(BUILD)/gpu/bench_gpu $(GPU_OUT) $(GPU_TESTS) $(GPU_LIMIT) $(CHECK)

check-gpu-platform: ## on a machine with a GPU: jobs of the platform there, what is killed, caps, MPS, as CSV; CASES="--only warm" and the like
	@test/gpu/ready $@
	+@$(MAKE) --no-print-directory gpu-programs gpu-platform
	@BUILD=$(BUILD) $(GPU_PYTHON) test/gpu/check_platform.py $(BUILD)/gpu/bench_gpu $(GPU_OUT) $(GPU_LIMIT) $(CASES)

bench-gpu: ## on a machine with a GPU: the engine beside PyTorch (GPU_PYTHON), as CSV; BENCH="--only steps" and the like
	@test/gpu/ready $@
	+@$(MAKE) --no-print-directory gpu-programs
	@$(GPU_PYTHON) test/gpu/bench_gpu.py $(BUILD)/gpu/bench_gpu $(GPU_OUT) $(GPU_LIMIT) $(BENCH)

bench-paper-gpu: ## on a machine with a GPU: time to accuracy beside PyTorch DDP (GPU_PYTHON, DATA=folder), as CSV
	@test/gpu/ready $@
	+@$(MAKE) --no-print-directory gpu-platform
	@BUILD=$(BUILD) $(GPU_PYTHON) test/gpu/bench_paper_gpu.py --python $(GPU_PYTHON) --out $(GPU_OUT) $(GPU_LIMIT) $(PAPER)

# The programs of these targets. Building needs no GPU; a missing toolkit is fetched, and make starts again.
.PHONY: gpu-platform
GPU_PLATFORM := $(BUILD)/bin/kubeml-function $(patsubst %,$(BUILD)/bin/kubeml-%,controller ps builder) \
                $(BUILD)/lib/kubeml-cuda.so $(BUILD)/lib/kubeml-redis.so
ifeq ($(CUDA_LACKS),)
gpu-programs: $(GPU_TESTS) $(BUILD)/gpu/bench_gpu ## build what check-gpu and bench-gpu run, with a toolkit that is fetched if need be
gpu-platform: $(GPU_PLATFORM)
else
gpu-programs gpu-platform:
	@echo "this machine's CUDA toolkit lacks $(CUDA_LACKS): one is fetched into $(CUDA_TOOLKIT) (1.1 GB)"
	$(if $(filter $(CUDA_TOOLKIT)/home,$(CUDA_HOME)),$(error $(CUDA_TOOLKIT) lacks $(CUDA_LACKS): remove it),scripts/cuda-toolkit $(CUDA_TOOLKIT))
	+@$(MAKE) --no-print-directory CUDA_HOME=$(CUDA_TOOLKIT)/home $@
endif

# For test/gpu/packed, on a machine that cannot build: the stripped programs, redis-server, and their libraries other than
# CUDA's and libc's; with DATA=folder also its MNIST, 11 MB, for bench-paper-gpu.
GPU_PACK     := $(BUILD)/gpu-pack
gpu-pack: ## what `make gpu` runs, to take to a machine with a GPU; DATA=folder: with its MNIST
	+@$(MAKE) --no-print-directory gpu-programs gpu-platform
	@rm -rf $(GPU_PACK) && mkdir -p $(GPU_PACK)/gpu $(GPU_PACK)/bin $(GPU_PACK)/lib
	@for file in $(patsubst $(BUILD)/%,%,$(GPU_TESTS) $(GPU_PLATFORM)) gpu/bench_gpu; do \
	    strip -o $(GPU_PACK)/$$file $(BUILD)/$$file || exit 1; done
	@cp $(BUILD)/cuda_kernels_version.h $(GPU_PACK) && test/gpu/packed sources >$(GPU_PACK)/sources
	@[ -z "$(DATA)" ] || { mnist=$$(DATA="$(DATA)" scripts/mnist-data --at-hand none) && mkdir $(GPU_PACK)/data && \
	    cp -RL "$$mnist" $(GPU_PACK)/data/mnist && chmod -R u+w $(GPU_PACK)/data; }
	@redis=$$(command -v redis-server) && cp -L "$$redis" $(GPU_PACK)/bin/redis-server || { \
	    echo "gpu-pack: redis-server is not installed here" >&2; exit 1; }
	@ldd $(GPU_PACK)/bin/* $(GPU_PACK)/lib/kubeml-redis.so | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u | \
	    grep -v -E '/(libc|libm|libdl|libpthread|librt)\.so' | xargs -I{} cp -L {} $(GPU_PACK)/lib
	@tar -C $(BUILD) -czf $(GPU_PACK).tar.gz gpu-pack && du -sh $(GPU_PACK) $(GPU_PACK).tar.gz
	@echo "next, there, beside this tree: test/gpu/lent $(GPU_PACK).tar.gz OUT"

# Links the programs that need a GPU where there is none, so that they run when there is one.
check-cuda: $(GPU_TESTS) $(BUILD)/gpu/bench_gpu

# Cases that count this process's allocations are omitted, because they would count the CUDA driver's too.
$(BUILD)/gpu/obj/%.o: test/unit/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $< (for a GPU)'
	$(Q)$(CC) $(CPPFLAGS) $(TEST_INCLUDES) $(CFLAGS) -DTEST_GPU=1 -DRANDOM_MODELS=60 -MMD -MP -c $< -o $@
$(BUILD)/gpu/test_gpu_models: $(call obj,test/gpu/test_gpu_models.c test/support/test.c) $(GPU_CORE)
	$(gpu_link)
$(BUILD)/gpu/test_gpu_%: $(BUILD)/gpu/obj/test_%.o $(call obj,test/support/test.c) $(GPU_CORE)
	$(gpu_link)
$(BUILD)/obj/test/gpu/bench_norm.o: private CPPFLAGS += $(CUDA_INCLUDE)
$(BUILD)/obj/test/gpu/bench_norm.o: $(BUILD)/flags-cuda
$(BUILD)/gpu/bench_gpu: $(call obj,test/gpu/bench_gpu.c test/gpu/bench_norm.c common/contract/nvml.c common/base/log.c) $(GPU_CORE)
	$(gpu_link)
