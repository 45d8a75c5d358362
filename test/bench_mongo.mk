# bench_mongo.mk: reading a dataset from MongoDB, compared with the driver alone. The server is
# MONGODB_URI, or the tests' stand-in.

EXTRA_test_bench_bench_mongo = $(MONGO_CFLAGS)
$(call obj,test/bench/bench_mongo.c): $(BUILD)/flags-mongo
$(BUILD)/bench/bench_mongo: LIBS_common += $(MONGO_LIBS)

.PHONY: bench-mongo
bench-mongo: $(BUILD)/bench/bench_mongo $(BUILD)/lib/kubeml-mongo.so mongo-stand-in ## reading from MongoDB beside its driver alone (BENCH_ARGS="MIB ROUNDS")
	@uri=$$(MONGO_JVM= test/mongo/uri.sh) && case $$uri in *\?*) uri=$${uri%%\?*}bench\?$${uri#*\?};; *) uri=$${uri%/}/bench;; esac && \
	$(BUILD)/bench/bench_mongo "$$uri" $(BENCH_ARGS)
