# charts.mk: the images and the chart.
# `make images` settings: ENGINE=docker|podman|buildah BASE=IMAGE PREFIX=REGISTRY/ TAG=VERSION OUT=FOLDER IMAGES="ps ..."

HELM ?= $(or $(shell command -v helm),$(HOME)/.cache/kubeml-cluster/bin/helm)

.PHONY: images manifests lint-chart
images: ## build the container images with docker, podman or buildah
	manifests/images/build.sh $(IMAGES)

manifests: ## render manifests/kubeml.yaml from the chart
	HELM=$(HELM) manifests/render.sh > manifests/kubeml.yaml.new
	mv manifests/kubeml.yaml.new manifests/kubeml.yaml

lint-chart: ## helm lint
	$(HELM) lint charts/kubeml
