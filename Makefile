# Names only: what a target does is in harness/setup/targets.py. Options are make variables; they reach it through the
# environment, never through a shell line. `make help` prints the lines marked with two hashes.
PYTHON ?= python3
VENV ?= .venv
export PYTHON VENV

RUN = @[ -d harness/setup ] || { echo "setup: targets run in the repository's folder; go there, or use make -C FOLDER" >&2; exit 2; }; \
	command -v "$$PYTHON" >/dev/null 2>&1 || { echo "setup: PYTHON=$$PYTHON is not a program; name Python 3.11 or newer" >&2; exit 2; }; \
	[ "$$("$$PYTHON" -c 'print(42)' 2>/dev/null)" = 42 ] || \
	{ echo "setup: PYTHON=$$PYTHON is a program but runs no Python; name Python 3.11 or newer" >&2; exit 2; }; \
	"$$PYTHON" -m harness.setup $@

.DEFAULT_GOAL := help
TARGETS := help setup native bench report regress capacity plan doctor selftest test test-rdma lint format lock clean
.PHONY: $(TARGETS)
.NOTPARALLEL:

help: ## this list
	@echo "make TARGET [VARIABLE=value]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '  %-10s %s\n' "$$name" "$$text"; done
	@echo "All targets: PYTHON=python3, VENV=.venv (none: use PYTHON's own packages, no network), ARGS=\"...\". More: docs/usage.md"

setup: ## make .venv from the locked versions (all targets below do so when needed)
	$(RUN)

native: ## build the native loss into build/
	$(RUN)

bench: ## measure a campaign and render the page: CAMPAIGN=quick LIST=1 BUDGET=10m RESUME=<run> ARGS="rows=[256,1024]"
	$(RUN)

report: ## render tables, charts and the page from results/ into reports/out/
	$(RUN)

regress: ## compare two runs: BASE=<csv> [NEW=<csv>] (without NEW, BASE's cases are measured afresh)
	$(RUN)

capacity: ## find the largest batch each system can hold
	$(RUN)

plan: ## list a campaign's cases with predicted time, memory and disk, run none: CAMPAIGN=article
	$(RUN)

doctor: ## say what can run here, and what is wrong for benchmarking
	$(RUN)

selftest: ## check the harness against itself
	$(RUN)

test: ## run the C++ and Python tests: ARGS="-k name"
	$(RUN)

test-rdma: ## the RDMA rails between two emulated machines with Soft-RoCE (qemu; 1 to 4 minutes)
	$(RUN)

lint: ## check style and layout
	$(RUN)

format: ## rewrite sources in the project's layout
	$(RUN)

lock: ## resolve the lock files again (network): ARGS=--upgrade for newer versions
	$(RUN)

clean: ## remove build/ and rendered pages, keep .venv and results
	$(RUN)
