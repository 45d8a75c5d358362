# install.mk: installs the build to a folder of the system. Programs find each other, their objects and the SDK from their
# own folder; so one folder has all of them, and the shell's path has a link.

PREFIX       ?= /usr/local
INSTALLED    := $(PREFIX)/lib/kubeml
COMPLETION   := $(PREFIX)/share/bash-completion/completions/kubeml

.PHONY: install uninstall
install: all ## the programs to PREFIX (/usr/local; DESTDIR=folder: below that): bin/kubeml, lib/kubeml, bash's completion
	@rm -rf $(DESTDIR)$(INSTALLED)
	@install -d $(addprefix $(DESTDIR),$(PREFIX)/bin $(dir $(COMPLETION)) $(addprefix $(INSTALLED)/,bin lib include))
	@install -m 0755 $(BUILD)/bin/* $(DESTDIR)$(INSTALLED)/bin
	@install -m 0755 $(BUILD)/lib/*.so $(DESTDIR)$(INSTALLED)/lib
	@install -m 0644 function-runtime/include/kubeml.h $(DESTDIR)$(INSTALLED)/include
	@ln -sfn ../lib/kubeml/bin/kubeml $(DESTDIR)$(PREFIX)/bin/kubeml
	@$(BUILD)/bin/kubeml completion bash >$(DESTDIR)$(COMPLETION)
	@echo "installed: $(DESTDIR)$(PREFIX)/bin/kubeml"

uninstall: ## takes away what install has put there; data and jobs (KUBEML_HOME, ~/.kubeml) stay
	@rm -rf $(DESTDIR)$(INSTALLED)
	@rm -f $(DESTDIR)$(PREFIX)/bin/kubeml $(DESTDIR)$(COMPLETION)
