.PHONY: docs
docs: $(BUILD)/bin/kubeml $(BUILD)/bin/kubeml-function ## write the parts of pages that are made from tables of the code
	$(Q)$(PYTHON) scripts/write-docs $<
