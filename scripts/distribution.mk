.PHONY: check-bare check-debian13
check-bare: ## make demo and make check in a bare Debian 12, made by debootstrap, as on a fresh machine
	scripts/check-bare bookworm

check-debian13: ## the same in a bare Debian 13
	scripts/check-bare trixie
