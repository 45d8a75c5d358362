# gpu.mk: what needs a GPU. Built from kernels/, three files of common/ and the CUDA toolkit alone: no
# server library, no data. PyTorch's side of the benchmark needs GPU_PYTHON to have PyTorch.

GPU_OUT      ?= $(BUILD)/gpu
GPU_CORE     := $(call obj,$(filter-out kernels/backends.c,$(SRC_kernels)) $(CUDA_COMMON) common/clock.c) $(CUDA_OBJECTS) \
                $(BUILD)/shim/kernels/backends.o
GPU_TESTS    := $(addprefix $(BUILD)/gpu/test_gpu_,graph_ops graph_engine golden models)
gpu_link      = @mkdir -p $(@D); echo '  LINK $@'; $(CC) $(LDFLAGS) -rdynamic -o $@ $(filter %.o,$^) $(CUDA_LIBS) -lpthread -ldl -lm

.PHONY: check-gpu bench-gpu bench-paper-gpu
# What cannot run without a GPU is linked at least, so that it runs when there is one.
check-cuda: $(GPU_TESTS) $(BUILD)/gpu/bench_gpu
check-gpu: $(GPU_TESTS) ## on a machine with a GPU: every op, golden losses, the zoo, caps, sharing
	@failed=0; for test in $(GPU_TESTS); do echo "== $$test"; $$test || failed=1; done; exit $$failed

bench-gpu: $(BUILD)/gpu/bench_gpu ## on a machine with a GPU: the engine beside PyTorch, as CSV
	$(GPU_PYTHON) test/gpu/bench_gpu.py $< $(GPU_OUT)/bench_gpu.csv

bench-paper-gpu: all ## on a machine with a GPU: time to accuracy beside PyTorch DDP (GPU_PYTHON, DATA=folder), as CSV
	BUILD=$(BUILD) $(PYTHON) test/gpu/bench_paper_gpu.py --python $(GPU_PYTHON) --out $(GPU_OUT) $(PAPER)

# What counts this process's allocations counts the CUDA driver's too: those cases are left out.
$(BUILD)/gpu/obj/%.o: test/unit/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  CC   $< (for a GPU)'
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -DTEST_GPU=1 -MMD -MP -c $< -o $@
$(BUILD)/gpu/test_gpu_models: $(call obj,test/gpu/test_gpu_models.c test/support/test.c) $(GPU_CORE)
	$(gpu_link)
$(BUILD)/gpu/test_gpu_%: $(BUILD)/gpu/obj/test_%.o $(call obj,test/support/test.c) $(GPU_CORE)
	$(gpu_link)
$(BUILD)/gpu/bench_gpu: $(call obj,test/gpu/bench_gpu.c) $(GPU_CORE)
	$(gpu_link)
