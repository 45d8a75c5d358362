# mongo.mk: the stand-in for MongoDB that tests use where MONGODB_URI names no real server. It is fetched
# and compiled once, into KUBEML_MONGO_CACHE; where that fails, the tests print the cases that they omit.

.PHONY: mongo-stand-in
mongo-stand-in: ## fetch and build the tests' stand-in for MongoDB (needs maven and a JDK)
	@test/mongo/build.sh || [ $$? = 77 ]

EXTRA_test_support_stores = $(if $(MONGO_PKG),-DMONGO_DRIVER=1)

check-built: | mongo-stand-in

# These files read the server with libmongoc itself, and check the store's requests.
EXTRA_test_unit_test_store_mongo_form = $(MONGO_CFLAGS)
$(call obj,test/support/stores.c test/unit/test_store_mongo_form.c): $(BUILD)/flags-mongo
$(BUILD)/test/test_store_mongo_form: $(BUILD)/obj/common/store/mongo/store_mongo_link.o
$(BUILD)/test/test_store_mongo_form: LIBS_common += $(MONGO_LIBS)
