# The demo: installs, builds, trains LeNet on MNIST to 99 % through the platform, and leaves no process.
demo: install-packages ## install, build, train LeNet on MNIST to 99 % with 4 functions
	+@$(MAKE) --no-print-directory all
	BUILD=$(BUILD) scripts/demo
