/* Counted checks of a program that goes on after a failure. */
#ifndef TANDEM_TESTS_SIMT_CHECK_H
#define TANDEM_TESTS_SIMT_CHECK_H

#include <cstdio>
#include <cstdlib>

namespace {

int n_checks, n_failures;

/* CHECK(ok, format, arguments...): the first failures are told */
#define CHECK(ok, ...)                                                                                                 \
    do {                                                                                                               \
        n_checks++;                                                                                                    \
        if (!(ok) && n_failures++ < 20) fprintf(stderr, __VA_ARGS__), fputc('\n', stderr);                             \
    } while (0)

/* the exit status */
int checked()
{
    printf("%d checks, %d failures\n", n_checks, n_failures);
    return n_failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

} // namespace

#endif
