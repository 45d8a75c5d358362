# charts.mk: the images and the chart.
# `make images` settings: ENGINE=docker|podman|buildah BASE=IMAGE PREFIX=REGISTRY/ TAG=VERSION OUT=FOLDER IMAGES="ps ..."

HELM ?= $(or $(shell command -v helm),$(HOME)/.cache/kubeml-cluster/bin/helm)

.PHONY: images manifests lint-chart helm-is-there
images: ## build the container images with docker, podman or buildah
	manifests/images/build.sh $(IMAGES)

helm-is-there:
	@command -v $(HELM) >/dev/null || { echo "helm is not installed; HELM=PATH names one" >&2; exit 1; }

manifests: helm-is-there ## render manifests/kubeml.yaml from the chart
	HELM=$(HELM) manifests/render.sh > manifests/kubeml.yaml.new || { rm -f manifests/kubeml.yaml.new; exit 1; }
	mv manifests/kubeml.yaml.new manifests/kubeml.yaml

lint-chart: helm-is-there ## helm lint
	$(HELM) lint charts/kubeml
