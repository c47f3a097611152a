/* The option table, its four sources, and that conf/tandem.yaml says what the table says.
 * The argument is that file's path. */
#include "engine/base/buf.h"
#include "server/config/settings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *shipped = "conf/tandem.yaml";
static struct settings s;
static struct err e;

static int teardown(void **state)
{
    (void)state;
    settings_free(&s);
    unsetenv("TANDEM_PORT");
    unsetenv("TANDEM_MAX_SEQS");
    unsetenv("TANDEM_PROMPT");
    unsetenv("TANDEM_CONFIG");
    return 0;
}

#define PARSE(cmd, ...) parse(cmd, (char *[]){__VA_ARGS__, NULL})

static int parse(enum command cmd, char **argv)
{
    int n = 0;
    while (argv[n]) n++;
    settings_free(&s);
    e = (struct err){0};
    return settings_parse(&s, cmd, n, argv, &e);
}

/* A file that holds `text`; its name is good until the next call. */
static const char *file_of(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/tandem-conf-%d.yaml", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static int load(const char *text)
{
    settings_free(&s);
    settings_defaults(&s);
    e = (struct err){0};
    const char *path = file_of(text);
    int rc = settings_load_file(&s, path, &e);
    unlink(path);
    return rc;
}

static void assert_says(const char *part)
{
    if (!strstr(e.msg, part)) fail_msg("'%s' is not in '%s'", part, e.msg);
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

static void test_table_is_sound(void **state)
{
    (void)state;
    int n;
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++) {
        const struct setting_option *first = settings_find(o[i].name, strlen(o[i].name));
        /* a name that another command has too is that command's flag: the environment and the file mean the first */
        assert_true(first == &o[i] || (!(first->commands & o[i].commands) && o[i].flag_only));
        assert_true(o[i].commands != 0);
        assert_true(*o[i].help != 0);
        assert_true((o[i].arg == NULL) == (o[i].type == SETTING_BOOL));
        assert_true((o[i].choices != NULL) == (o[i].type == SETTING_CHOICE));
        for (int j = 0; j < i; j++) assert_true(o[i].offset != o[j].offset || !(o[i].commands & o[j].commands));
        for (const char *p = o[i].name; *p; p++) assert_true((*p >= 'a' && *p <= 'z') || *p == '-');
    }
    settings_defaults(&s); /* aborts on a default that its own range refuses */
}

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(parse(CMD_SERVE, (char *[]){NULL}), 0);
    assert_string_equal(s.host, "127.0.0.1");
    assert_int_equal(s.port, 8080);
    assert_int_equal(s.max_body_size, 2 * 1024 * 1024);
    assert_true(s.prefix_cache);
    assert_false(settings_given(&s, "port"));
}

/* ---- flags ----------------------------------------------------------------------------------------------------- */

static void test_flag_forms(void **state)
{
    (void)state;
    assert_int_equal(PARSE(CMD_SERVE, "--port", "1", "--host=::1", "--no-prefix-cache", "--access-log",
                           "--kv-cache-bytes=1.5G", "--drain-timeout", "0.5", "--max_seqs", "7"),
                     0);
    assert_int_equal(s.port, 1);
    assert_string_equal(s.host, "::1");
    assert_false(s.prefix_cache);
    assert_true(s.access_log);
    assert_true(s.kv_cache_bytes == (size_t)3 << 29);
    assert_true(s.drain_timeout == 0.5);
    assert_int_equal(s.max_seqs, 7);
    assert_true(settings_given(&s, "port"));
    assert_int_equal(PARSE(CMD_SERVE, "--prefix-cache=off", "--port=0"), 0);
    assert_false(s.prefix_cache);
}

static void test_list_and_seed(void **state)
{
    (void)state;
    assert_int_equal(PARSE(CMD_GENERATE, "--stop", "a", "--stop=", "--stop", "--b", "--seed", "18446744073709551615",
                           "--prompt", "-"),
                     0);
    assert_int_equal(s.stop.n, 3);
    assert_string_equal(s.stop.v[0], "a");
    assert_string_equal(s.stop.v[1], "");
    assert_string_equal(s.stop.v[2], "--b");
    assert_true(s.seed == UINT64_MAX);
}

/* --ops may stand alone; what follows is its value unless it is a flag. */
static void test_value_may_be_missing(void **state)
{
    (void)state;
    assert_int_equal(PARSE(CMD_BENCH, "--json"), 0);
    assert_null(s.ops);
    assert_int_equal(PARSE(CMD_BENCH, "--ops"), 0);
    assert_string_equal(s.ops, "");
    assert_int_equal(PARSE(CMD_BENCH, "--ops", "--json"), 0);
    assert_string_equal(s.ops, "");
    assert_true(s.json);
    assert_int_equal(PARSE(CMD_BENCH, "--ops", "linear int8", "--json"), 0);
    assert_string_equal(s.ops, "linear int8");
    assert_true(s.json);
    assert_int_equal(PARSE(CMD_BENCH, "--ops=attn"), 0);
    assert_string_equal(s.ops, "attn");
    assert_int_equal(PARSE(CMD_BENCH, "--ops", "a", "b"), ERR_INVALID);
    assert_says("unexpected argument 'b'");
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(PARSE(CMD_SERVE, "--help"), SETTING_HELP);
    assert_int_equal(PARSE(CMD_SERVE, "--port", "1", "-h"), SETTING_HELP);
}

static void test_every_option_is_in_help(void **state)
{
    (void)state;
    const enum command all[] = {CMD_SERVE, CMD_GENERATE, CMD_TOKENIZE, CMD_PERPLEXITY, CMD_QUANTIZE,
                                CMD_BENCH, CMD_TRAIN,    CMD_CHAT,     CMD_HEALTH};
    for (size_t c = 0; c < sizeof all / sizeof *all; c++) {
        char *text = NULL, name[80];
        size_t len = 0;
        FILE *f = open_memstream(&text, &len);
        settings_help(f, all[c], "usage", "about");
        fclose(f);
        int n;
        const struct setting_option *o = settings_options(&n);
        for (int i = 0; i < n; i++) {
            if (!(o[i].commands & (unsigned)all[c])) continue;
            bool on = o[i].type == SETTING_BOOL && strcmp(o[i].value, "true") == 0;
            snprintf(name, sizeof name, "\n  --%s%s ", on ? "[no-]" : "", o[i].name);
            if (!strstr(text, name)) fail_msg("--help lacks %s", o[i].name);
        }
        free(text);
    }
}

static void test_bad_flags(void **state)
{
    (void)state;
    const struct {
        char *flag, *says;
    } bad[] = {
        {"--port=70000", "--port: 70000 is not between 0 and 65535"},
        {"--port=x", "--port: 'x' is not a whole number"},
        {"--port=1.5", "--port"},
        {"--port=", "--port"},
        {"--port= 1", "--port"},
        {"--port=99999999999", "--port: 99999999999 is too large"},
        {"--kv-cache-bytes=-1", "--kv-cache-bytes"},
        {"--kv-cache-bytes=1X", "not a size"},
        {"--kv-cache-bytes=1e30G", "--kv-cache-bytes"},
        {"--idle-timeout=nan", "--idle-timeout: 'nan' is not a number"},
        {"--idle-timeout=0", "--idle-timeout"},
        {"--access-log=maybe", "neither true nor false"},
        {"--quantize=int3", "is not one of none|int8|int4"},
        {"--quantize=int", "is not one of"},
        {"--quantize=", "is not one of"},
        {"--prot=1", "unknown option --prot; did you mean --port"},
        {"--max-seq=1", "did you mean --max-seqs"},
        {"--idle-timout=1", "did you mean --idle-timeout"},
        {"--temperature=1", "--temperature is not an option of this command"},
        {"--no-port", "unknown option --no-port"},
        {"--zzzzzzzzzzzz", "unknown option --zzzzzzzzzzzz"},
        {"--port", "--port needs a value"},
        {"models/demo", "unexpected argument 'models/demo'"},
        {"--", "unexpected argument"},
        {"-p", "unexpected argument"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(PARSE(CMD_SERVE, bad[i].flag), ERR_INVALID);
        assert_says(bad[i].says);
    }
}

/* ---- precedence ------------------------------------------------------------------------------------------------ */

static void test_precedence(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s", file_of("port: 1\nmax_seqs: 2\nthreads: 3\n"));
    setenv("TANDEM_PORT", "10", 1);
    setenv("TANDEM_MAX_SEQS", "20", 1);
    assert_int_equal(PARSE(CMD_SERVE, "--port", "100", "--config", path), 0);
    assert_int_equal(s.port, 100);
    assert_int_equal(s.max_seqs, 20);
    assert_int_equal(s.threads, 3);
    setenv("TANDEM_CONFIG", path, 1);
    assert_int_equal(parse(CMD_SERVE, (char *[]){NULL}), 0);
    assert_int_equal(s.port, 10);
    assert_int_equal(s.threads, 3);
    unlink(path);
}

static void test_environment_errors_name_the_variable(void **state)
{
    (void)state;
    setenv("TANDEM_PORT", "x", 1);
    assert_int_equal(parse(CMD_SERVE, (char *[]){NULL}), ERR_INVALID);
    assert_says("TANDEM_PORT");
    /* what belongs to one run, or to another command, is not read from there */
    setenv("TANDEM_PROMPT", "hello", 1);
    assert_int_equal(parse(CMD_GENERATE, (char *[]){NULL}), 0);
    assert_null(s.prompt);
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static void test_file_values(void **state)
{
    (void)state;
    assert_int_equal(load("# nothing\n"), 0);
    assert_int_equal(load(""), 0);
    assert_int_equal(load("port: 1\nhost: \"::\"\naccess-log: yes\nkv-cache-bytes: 2GiB\nmodel:\ndevice: ~\n"), 0);
    assert_int_equal(s.port, 1);
    assert_string_equal(s.host, "::");
    assert_true(s.access_log);
    assert_true(s.kv_cache_bytes == (size_t)2 << 30);
    assert_string_equal(s.model, "models/demo"); /* null leaves the default */
    assert_int_equal(load("cors-origin: ''\n"), 0);
    assert_string_equal(s.cors_origin, ""); /* a quoted empty text does not */
}

static void test_bad_files(void **state)
{
    (void)state;
    const char *const bad[][2] = {
        {"port: 1\nprot: 2\n", ":2: unknown option 'prot'; did you mean port"},
        {"port: 1\nport: 2\n", ":2: port is set twice"},
        {"a:\n  b: 1\n", "unknown option 'a'"},
        {"port:\n  b: 1\n", ":2: expected a single value"},
        {"port: [1]\n", "expected a single value"},
        {"- port\n", "expected lines of the form"},
        {"port\n", "expected lines of the form"},
        {"port: 70000\n", ":1: port: 70000 is not between"},
        {"port: 1\n---\nport: 2\n", "a second document"},
        {"port: \"1\n", ":"},
        {"\tport: 1\n", ":1:"},
        {"prompt: x\n", "prompt belongs to one run"},
        {"config: x\n", "unknown option 'config'"},
        {"port: &a 1\nhost: *a\n", "expected a single value"},
        {"? [a]\n: 1\n", "expected the name of an option"},
        {"host: \"a\\0b\"\n", "NUL"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (load(bad[i][0]) == 0) fail_msg("accepted: %s", bad[i][0]);
        assert_says(bad[i][1]);
    }
    assert_int_equal(settings_load_file(&s, "/does/not/exist.yaml", &e), ERR_NOT_FOUND);
    assert_says("/does/not/exist.yaml");
}

static void read_shipped(struct buf *out)
{
    FILE *f = fopen(shipped, "r");
    if (!f) fail_msg("%s cannot be opened", shipped);
    char block[4096];
    size_t n;
    while ((n = fread(block, 1, sizeof block, f)) > 0) buf_append(out, block, n);
    fclose(f);
}

/* Every option that a file may hold is in conf/tandem.yaml once, with its default, below its group's title. */
static void test_shipped_file_agrees(void **state)
{
    (void)state;
    struct buf text = {0}, line = {0};
    read_shipped(&text);
    assert_int_equal(load(text.data), 0);
    int n;
    const struct setting_option *o = settings_options(&n);
    const char *group = NULL;
    size_t after = 0;
    for (int i = 0; i < n; i++) {
        if (o[i].flag_only || strcmp(o[i].name, "config") == 0) continue;
        if (!group || strcmp(group, o[i].group) != 0) {
            buf_clear(&line);
            buf_printf(&line, "\n# ---- %s ----", group = o[i].group);
            const char *title = strstr(text.data, line.data);
            if (!title) fail_msg("conf/tandem.yaml lacks the group %s", group);
            assert_true((size_t)(title - text.data) >= after);
        }
        buf_clear(&line);
        buf_printf(&line, "\n%s: ", o[i].name);
        const char *at = strstr(text.data, line.data);
        if (!at) {
            fail_msg("conf/tandem.yaml lacks %s", o[i].name);
            break;
        }
        assert_true((size_t)(at - text.data) >= after); /* in the table's order */
        after = (size_t)(at - text.data);
        at += line.len;
        size_t len = strcspn(at, "\n");
        if (len >= 2 && *at == '"') at++, len -= 2;
        if (len != strlen(o[i].value) || strncmp(at, o[i].value, len) != 0)
            fail_msg("conf/tandem.yaml: %s is '%.*s', the default is '%s'", o[i].name, (int)len, at, o[i].value);
    }
    buf_free(&text);
    buf_free(&line);
}

/* ---- reloading ------------------------------------------------------------------------------------------------- */

static struct buf told;

static void note_change(void *arg, const struct setting_option *o, const char *was, const char *now, bool taken)
{
    assert_ptr_equal(arg, &told);
    buf_printf(&told, "%s: %s -> %s%s\n", o->name, was, now, taken ? "" : " (restart)");
}

static void test_reload(void **state)
{
    (void)state;
    struct settings live;
    char *first[] = {"--port=1", "--drain-timeout=5", "--access-log", NULL};
    assert_int_equal(settings_parse(&live, CMD_SERVE, 3, first, &e), 0);
    PARSE(CMD_SERVE, "--port=2", "--log-level=debug", "--access-log", "--cors-origin=*", "--model=elsewhere");
    assert_int_equal(settings_reload(&live, &s, CMD_SERVE, note_change, &told), 3);
    assert_string_equal(told.data, "log-level: info -> debug\nmodel: models/demo -> elsewhere (restart)\n"
                                   "port: 1 -> 2 (restart)\ncors-origin:  -> *\ndrain-timeout: 5 -> 60\n");
    assert_int_equal(live.port, 1);
    assert_string_equal(live.model, "models/demo");
    assert_string_equal(live.log_level, "debug");
    assert_string_equal(live.cors_origin, "*");
    assert_true(live.drain_timeout == 60 && live.access_log);
    assert_string_equal(s.log_level, "info"); /* freed with the settings it is in */
    PARSE(CMD_SERVE, "--port=1", "--log-level=debug", "--access-log", "--cors-origin=*");
    buf_clear(&told);
    assert_int_equal(settings_reload(&live, &s, CMD_SERVE, note_change, &told), 0);
    assert_int_equal(told.len, 0);
    buf_free(&told);
    settings_free(&live);
}

static void test_describe(void **state)
{
    (void)state;
    struct buf text = {0};
    setenv("TANDEM_MAX_SEQS", "5", 1);
    PARSE(CMD_SERVE, "--port=1", "--host", "::1");
    settings_describe(&s, CMD_SERVE, &text);
    assert_non_null(strstr(text.data, "\nhost = ::1  (flag)\nport = 1  (flag)\n"));
    assert_non_null(strstr(text.data, "\nmax-seqs = 5  (environment)\n"));
    assert_non_null(strstr(text.data, "\nstep-timeout = 60\n"));
    assert_null(strstr(text.data, "prompt = ")); /* not an option of serve */
    buf_free(&text);
}

/* ---- the environment's oddities -------------------------------------------------------------------------------- */

static char complaints[2000];

static void collect(void *arg, const char *text)
{
    (void)arg;
    size_t n = strlen(complaints);
    snprintf(complaints + n, sizeof complaints - n, "%s\n", text);
}

static void assert_complains(const char *name, const char *value, const char *expected)
{
    setenv(name, value, 1);
    complaints[0] = 0;
    settings_check_env(collect, NULL);
    unsetenv(name);
    if (expected ? !strstr(complaints, expected) || !strstr(complaints, name) : *complaints != 0)
        fail_msg("%s=%s: '%s', expected '%s'", name, value, complaints, expected ? expected : "");
}

static void test_unknown_variables(void **state)
{
    (void)state;
    assert_complains("TANDEM_PROT", "1", "did you mean TANDEM_PORT");
    assert_complains("TANDEM_MAXSEQS", "1", "did you mean TANDEM_MAX_SEQS");
    assert_complains("TANDEM_ZZZZZZZZZZZZZZZZ", "1", "no such option\n");
    assert_complains("TANDEM_", "1", "no such option");
    assert_complains("TANDEM_PROMPT", "hello", "--prompt");
    assert_complains("TANDEM_port", "1", "no such option");
    assert_complains("TANDEM_MAX_SEQS", "5", NULL);
    assert_complains("TANDEM_CONFIG", "x", NULL);
    assert_complains("TANDEM_GPU_EARLY", "1", NULL);
    assert_complains("TANDEMONIUM", "1", NULL);
}

/* What kubelet adds for the Services `tandem` and `tandem-train` with the ports 80 (http) and 53/UDP. */
static void test_variables_of_kubernetes(void **state)
{
    (void)state;
    static const char *const injected[][2] = {
        {"TANDEM_SERVICE_HOST", "10.96.0.7"},
        {"TANDEM_SERVICE_PORT", "80"},
        {"TANDEM_SERVICE_PORT_HTTP", "80"},
        {"TANDEM_PORT_80_TCP", "tcp://10.96.0.7:80"},
        {"TANDEM_PORT_80_TCP_PROTO", "tcp"},
        {"TANDEM_PORT_80_TCP_PORT", "80"},
        {"TANDEM_PORT_80_TCP_ADDR", "10.96.0.7"},
        {"TANDEM_TRAIN_PORT", "tcp://[fd00::7]:80"},
        {"TANDEM_TRAIN_SERVICE_HOST", "fd00::7"},
        {"TANDEM_TRAIN_PORT_53_UDP_ADDR", "fd00::7"},
        {"TANDEM_TRAIN_PORT_53_UDP", "udp://[fd00::7]:53"},
    };
    for (size_t i = 0; i < sizeof injected / sizeof *injected; i++)
        assert_complains(injected[i][0], injected[i][1], NULL);
    assert_complains("TANDEM_PORT", "tcp://10.96.0.7:80", "enableServiceLinks");
    assert_complains("TANDEM_KV_EVENTS", "tcp://router:5557", NULL); /* no link, but an endpoint */
    setenv("TANDEM_KV_EVENTS", "tcp://router:5557", 1);
    assert_int_equal(parse(CMD_SERVE, (char *[]){NULL}), 0);
    assert_string_equal(s.kv_events, "tcp://router:5557");
    unsetenv("TANDEM_KV_EVENTS");
    setenv("TANDEM_PORT", "tcp://10.96.0.7:80", 1);
    assert_int_equal(parse(CMD_SERVE, (char *[]){NULL}), 0);
    assert_int_equal(s.port, 8080);
    assert_false(settings_given(&s, "port"));
    assert_int_equal(PARSE(CMD_SERVE, "--port", "9"), 0);
    assert_int_equal(s.port, 9);
    for (size_t i = 0; i < 4; i++) {
        setenv("TANDEM_PORT", ((const char *[]){"tcp://", "tcp://a", "tcp://a:b", "http://a:1"})[i], 1);
        assert_int_not_equal(parse(CMD_SERVE, (char *[]){NULL}), 0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) shipped = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_unknown_variables, teardown),
        cmocka_unit_test_teardown(test_variables_of_kubernetes, teardown),
        cmocka_unit_test_teardown(test_reload, teardown),
        cmocka_unit_test_teardown(test_describe, teardown),
        cmocka_unit_test_teardown(test_table_is_sound, teardown),
        cmocka_unit_test_teardown(test_defaults, teardown),
        cmocka_unit_test_teardown(test_flag_forms, teardown),
        cmocka_unit_test_teardown(test_list_and_seed, teardown),
        cmocka_unit_test_teardown(test_value_may_be_missing, teardown),
        cmocka_unit_test_teardown(test_help, teardown),
        cmocka_unit_test_teardown(test_every_option_is_in_help, teardown),
        cmocka_unit_test_teardown(test_bad_flags, teardown),
        cmocka_unit_test_teardown(test_precedence, teardown),
        cmocka_unit_test_teardown(test_environment_errors_name_the_variable, teardown),
        cmocka_unit_test_teardown(test_file_values, teardown),
        cmocka_unit_test_teardown(test_bad_files, teardown),
        cmocka_unit_test_teardown(test_shipped_file_agrees, teardown),
    };
    return cmocka_run_group_tests_name("conf", tests, NULL, NULL);
}
