# bench_platform.mk: the platform's cost compared with its engine alone, and all benchmarks together.

.PHONY: bench bench-job bench-start bench-memory bench-load bench-functions
bench: all benches ## every benchmark, as tables with ratios; each runs, whatever bar another missed
	+$(MAKE) -j1 -k bench-engine bench-round bench-job bench-start bench-memory bench-load bench-functions

bench-job: all $(BUILD)/bench/bench_epoch ## a job's epochs beside the engine alone
	BUILD=$(BUILD) $(PYTHON) test/bench/bench_platform.py job $(BENCH_ARGS)

bench-start: all ## POST /train to the first trained batch (BENCH_ARGS="--jobs 100")
	BUILD=$(BUILD) $(PYTHON) test/bench/bench_platform.py start $(BENCH_ARGS)

bench-functions: $(BUILD)/bench/bench_engine ## two functions of one thread beside one
	BUILD=$(BUILD) $(PYTHON) test/bench/bench_functions.py $(BENCH_ARGS)

bench-load: all ## what loading and converting take of a function's time
	BUILD=$(BUILD) $(PYTHON) test/bench/bench_platform.py load $(BENCH_ARGS)

bench-memory: all ## what idle processes hold
	BUILD=$(BUILD) $(PYTHON) test/bench/bench_platform.py memory $(BENCH_ARGS)
