# `make demo` and `make test` are all that a newcomer needs; CONTRIBUTING.md tells the rest.

.DEFAULT_GOAL := help
.PHONY: help demo bench test soak fuzz lint fmt setup clean

# make demo NET=500mbit WORKERS=8 ...: each variable that is set becomes a flag of the demo.
DEMO_FLAGS = $(if $(NET),--net $(NET)) $(if $(ALGORITHM),--algorithm $(ALGORITHM)) \
             $(if $(WORKERS),--workers $(WORKERS)) $(if $(EPOCHS),--epochs $(EPOCHS)) $(DEMO_ARGS)

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1|/p' Makefile | column -t -s '|'

demo: setup ## train a model over gloo and over fanin, and compare (NET=500mbit WORKERS=4 EPOCHS=2 ALGORITHM=switchml)
	.venv/bin/python -m fanin.demo $(DEMO_FLAGS)

bench: setup ## measure everything and write benches/RESULTS.md, ten minutes (BENCH_ARGS='switch one-host-4': these steps)
	@./benches/run.sh $(BENCH_ARGS)

test: ## everything that CI runs (STEP=python runs one step; STEP=list names them)
	@python3 scripts/test.py $(if $(STEP),$(STEP),all)

soak: ## the seeded and fuzzed tests for MINUTES=60
	@python3 scripts/test.py soak --minutes $(or $(MINUTES),60)

fuzz: ## every fuzz target for SECONDS=60
	@./scripts/fuzz.sh $(or $(SECONDS),60)

lint: ## what reviewers would say first: layout, lints, layers, generated files
	@python3 scripts/test.py generate tidy fmt clippy ruff pyfmt

fmt: ## lay out the Rust and Python code
	cargo fmt --all
	@[ -x .venv/bin/ruff ] || { echo "the Python code was left as it is: run make setup first"; exit 1; }
	.venv/bin/ruff check --quiet --fix --exit-zero python scripts
	.venv/bin/ruff format --quiet python scripts

setup: ## make .venv: fanin in release mode, PyTorch, test tools (FANIN_FULL_TORCH=1 for CUDA)
	@./scripts/setup.sh

clean: ## remove all that was built
	rm -rf .venv .cache target fuzz/target out
	find python scripts -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/fanin/_fanin*.so
