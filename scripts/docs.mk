.PHONY: docs
docs: $(BUILD)/bin/kubeml ## write the tables of pages that are made from tables of the code
	$(Q)$(PYTHON) scripts/write-docs $<
