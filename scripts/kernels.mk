# kernels.mk: flags of single kernel files. Vectors wider than the set's registers are passed between
# inlined functions alone, so that how the ABI would pass them does not matter.
EXTRA_kernels_cpu_kernels_generic := -Wno-psabi
EXTRA_kernels_cpu_kernels_avx2    := -Wno-psabi
EXTRA_kernels_cpu_kernels_avx512_bf16 := -mavx512bf16
