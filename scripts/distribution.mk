.PHONY: check-bare check-debian13 check-avx512 check-arm64
check-bare: ## make demo and make check in a bare Debian 12, made by debootstrap, as on a fresh machine
	scripts/check-bare bookworm

check-debian13: ## the same in a bare Debian 13
	scripts/check-bare trixie

# AVX512=PROGRAM:CASE... runs only these cases.
check-avx512: tests ## the AVX-512 kernels' tests on a CPU that has none, in an emulator; slow
	scripts/install-packages emulator
	BUILD=$(BUILD) scripts/check-avx512 $(AVX512)

# ARM64=PROGRAM[:CASE]... runs only these cases. PAGES=16: pages of 16 KiB.
check-arm64: ## unit tests and a job on arm64, in an emulator, with Debian's kernel
	scripts/install-packages arm64
	PAGES=$(or $(PAGES),4) scripts/check-arm64 $(ARM64)
