/* test_tensor_filter.c: which tensors a list names. */
#include "common/contract/tensor_filter.h"
#include "test.h"

static bool has(const char *list, const char *tensor)
{
    tensor_filter l = {.list = list};
    return tensor_filter_has(&l, tensor);
}

TEST(a_name_is_a_tensor_or_what_it_begins_with_up_to_a_dot)
{
    CHECK(has("fc", "fc.weight") && has("fc", "fc.bias") && has("fc.bias", "fc.bias"));
    CHECK(!has("fc", "fc1.weight") && !has("fc", "block.fc.weight") && !has("fc.weight", "fc"));
    CHECK(!has("fc.bias", "fc.bias_scale") && !has("fc.bias", "fc.weight"));
    CHECK(has("layer4.1,fc", "layer4.1.conv1.weight") && has("layer4.1,fc", "fc.weight"));
    CHECK(!has("layer4.1,fc", "layer4.10.conv1.weight"));
    CHECK(!has(NULL, "fc.weight") && !has("", "fc.weight"));
}

TEST(a_name_that_no_tensor_has_is_told)
{
    err e = ERR_INIT;
    tensor_filter l = {.list = "fc,fd,fc.bias"};
    CHECK(tensor_filter_has(&l, "fc.bias") && tensor_filter_has(&l, "fc.weight"));
    CHECK_ERR(tensor_filter_end(&l, &e), e, ERR_INVALID,
              "no tensor of the model is fd, nor begins with fd.");
    CHECK(tensor_filter_has(&l, "fd.weight"));
    err_clear(&e);
    CHECK_OK(tensor_filter_end(&l, &e), e);
    CHECK_OK(tensor_filter_end(&(tensor_filter){0}, &e), e);
}

TEST(wrong_lists_are_refused)
{
    static const char *const wrong[] = {"", ",", "fc,", ",fc", "a,,b"};
    char many[256] = "a";
    err e = ERR_INIT;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err_clear(&e);
        CHECK_ERR(tensor_filter_check(wrong[i], &e), e, ERR_INVALID,
                  i ? "an empty name" : "no tensor");
    }
    err_clear(&e);
    for (int i = 1; i < TENSOR_FILTER_MAX; i++)
        strcat(many, ",a");
    CHECK_OK(tensor_filter_check(many, &e), e);
    strcat(many, ",a");
    CHECK_ERR(tensor_filter_check(many, &e), e, ERR_INVALID, "33 names");
}
