# cluster.mk: tests on a real Kubernetes (test/cluster/run.sh has the requirements).

.PHONY: check-cluster bench-cluster
check-cluster: ## tests on a real Kubernetes that is started here, or on that of KUBECONFIG (CASES="pattern ...")
	@PYTHON=$(PYTHON) BUILD=$(BUILD) test/cluster/run.sh $(CASES) || [ $$? = 77 ]

bench-cluster: ## a job's start, a lost node and what is lacking, timed on that cluster (CASES="start node words")
	@KUBEML_TC_BENCH=1 PYTHON=$(PYTHON) BUILD=$(BUILD) test/cluster/run.sh $(CASES) || [ $$? = 77 ]
