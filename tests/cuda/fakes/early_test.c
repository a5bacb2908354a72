/* Which kernels may begin before the one before them has ended: the table of kernels.h against their texts. A kernel
 * that is EARLY and does not wait would be a race on sm_90. */
#include "cuda/fatbin.h"
#include "cuda/kernels.h"

#include "support/test.h"

/* Returns the body of a kernel in a text, from its name to its closing brace, which the caller frees. */
static char *body_of(const char *text, const char *kernel) {
    char entry[128];
    snprintf(entry, sizeof entry, ".entry %s(", kernel);
    const char *start = strstr(text, entry), *end = start ? strstr(start, "\n}") : NULL;
    if (!end)
        fail_msg("no kernel %s", kernel);
    return strndup(start, (size_t)(end - start));
}

static void check_kernel(const char *file, const char *kernel, enum cuda_begin begin) {
    const char *text = NULL;
    size_t length;
    for (const struct cuda_image *image = cuda_images; image->file; image++)
        if (!strcmp(image->file, file))
            assert_int_equal(fatbin_ptx(image->start, 80, &text, &length), 0);
    if (!text)
        fail_msg("no file %s.cu", file);
    char *body = body_of(text, kernel);
    bool waits = strstr(body, "griddepcontrol_wait") != NULL;
    if (waits != (begin == EARLY))
        fail_msg("%s %s, and its row says the other", kernel, waits ? "waits" : "does not wait");
    free(body);
}

static void the_table_says_which_kernels_wait(void **state) {
    (void)state;
#define PLAIN(file, kernel, begin) check_kernel(#file, #kernel, begin);
#define TYPED(file, kernel, begin)                                                                                     \
    check_kernel(#file, #kernel "_fp32", begin);                                                                       \
    check_kernel(#file, #kernel "_bf16", begin);
    CUDA_KERNELS(TYPED, PLAIN)
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_table_says_which_kernels_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
