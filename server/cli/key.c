/* tandem key: makes, lists and revokes API keys in the file that `tandem serve --api-keys` reads (keys.h).  Main
 * thread.
 *
 * The key itself is printed once, alone on stdout, and not stored; messages go to stderr. */
#include "server/cli/cmd.h"

#include "server/access/keys.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] = "tandem key new --name NAME [--role user|train|admin] [--api-keys FILE] [options]\n"
                            "       tandem key list [--api-keys FILE]\n"
                            "       tandem key revoke NAME [--api-keys FILE]";
static const char about[] =
    "Makes an API key, prints it once and adds its hash to the file; lists the keys; marks one as revoked.\n"
    "A running daemon reads the file again when it gets SIGHUP.";

static int wrong(const char *why)
{
    fprintf(stderr, "tandem: %s\nusage: %s\n", why, usage);
    return 2;
}

/* "90d", "12h": from now; or a date, or a time */
static bool read_expiry(const char *text, int64_t *out)
{
    char *end;
    if (key_time_parse(text, out)) return true;
    errno = 0;
    long n = strtol(text, &end, 10);
    int64_t unit = *end == 'd' ? 86400 : *end == 'h' ? 3600 : 0;
    if (errno || *text < '0' || *text > '9' || !unit || end[1] || n < 1 || n > 1000000) return false;
    *out = (int64_t)time(NULL) + n * unit;
    return true;
}

static int new_key(const struct settings *s, const char *path)
{
    struct err e = {0};
    char text[KEY_TEXT + 1];
    struct key key = {
        .name = s->name,
        .requests_per_minute = s->requests_per_minute,
        .tokens_per_minute = s->tokens_per_minute,
        .max_concurrent = s->max_concurrent,
        .priority_max = settings_given(s, "priority-max") ? s->priority_max : INT_MIN,
    };
    if (!s->name) return wrong("--name is missing");
    if (!key_name_good(s->name)) return wrong("--name: 1 to 64 letters, digits, '.', '_' or '-'");
    if (s->expires && !read_expiry(s->expires, &key.expires))
        return wrong("--expires: a date (2027-01-31), a time (2027-01-31T12:00:00Z), or how long (90d, 12h)");
    if ((s->requests_per_minute > 0 && s->requests_per_minute < 0.001) ||
        (s->tokens_per_minute > 0 && s->tokens_per_minute < 0.001))
        return wrong("--requests-per-minute, --tokens-per-minute: a number from 0.001, or 0 for no limit");
    while (strcmp(key_roles[key.role], s->role) != 0) key.role++; /* always valid: the option table checks it */
    if (!key_make(text)) return err_set(&e, ERR_IO, "the system has no random bytes"), cmd_fail(&e);
    keys_hash(text, strlen(text), key.hash);
    if (keys_file_add(path, &key, &e)) return cmd_fail(&e);
    fprintf(stderr, "%s: key of %s added, role %s; it is shown only now\n", path, s->name, s->role);
    if (printf("%s\n", text) < 0 || fflush(stdout))
        return err_set(&e, ERR_IO, "the key could not be printed; revoke %s", s->name), cmd_fail(&e);
    return 0;
}

static void print_limits(const struct key *k)
{
    if (k->requests_per_minute > 0) printf(" %g requests a minute", k->requests_per_minute);
    if (k->tokens_per_minute > 0) printf(" %g tokens a minute", k->tokens_per_minute);
    if (k->max_concurrent) printf(" %d at once", k->max_concurrent);
    if (k->priority_max != INT_MIN) printf(" priority from %d", k->priority_max);
}

static int list_keys(const char *path)
{
    struct err e = {0};
    struct buf text = {0};
    int64_t now = (int64_t)time(NULL);
    if (cmd_read_file(path, &text, &e)) return buf_free(&text), cmd_fail(&e);
    struct key_set *set = keys_parse(text.data ? text.data : "", text.len, path, &e);
    buf_free(&text);
    if (!set) return cmd_fail(&e);
    for (size_t i = 0; i < set->n; i++) {
        const struct key *k = &set->v[i];
        char at[32];
        key_time_print(k->revoked ? k->revoked : k->expires, at);
        const char *state = k->revoked ? "revoked" : !k->expires ? "good" : now < k->expires ? "good until" : "expired";
        printf("%-24s %-5s  %-10s %-20s ", k->name, key_roles[k->role], state, k->revoked || k->expires ? at : "");
        print_limits(k);
        putchar('\n');
    }
    key_set_release(set);
    return 0;
}

static int revoke_key(const char *path, const char *name)
{
    struct err e = {0};
    if (keys_file_revoke(path, name, (int64_t)time(NULL), &e)) return cmd_fail(&e);
    fprintf(stderr, "%s: key of %s revoked; a running daemon takes it until it gets SIGHUP\n", path, name);
    return 0;
}

static int run(const struct settings *s, const char *verb, const char *name)
{
    const char *path = s->file && *s->file ? s->file : s->api_keys;
    if (!path || !*path) return wrong("which file? --api-keys FILE, or TANDEM_API_KEYS in the environment");
    if (strcmp(verb, "new") == 0) return new_key(s, path);
    if (strcmp(verb, "list") == 0) return list_keys(path);
    return revoke_key(path, name);
}

int cmd_key(int argc, char **argv)
{
    struct settings s = {0};
    int status = 0, words = 1;
    const char *verb = argc > 0 ? argv[0] : "", *name = NULL;
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0) {
        words = 0;
    } else if (strcmp(verb, "new") && strcmp(verb, "list") && strcmp(verb, "revoke")) {
        return wrong(*verb ? "unknown word after key" : "new, list or revoke?");
    }
    if (strcmp(verb, "revoke") == 0 && argc > 1 && argv[1][0] != '-') name = argv[1], words = 2;
    if (cmd_settings(&s, CMD_KEY, argc - words, argv + words, usage, about, &status)) {
        if (!name) name = s.name; /* --name NAME is accepted, too */
        status =
            strcmp(verb, "revoke") == 0 && !name ? wrong("revoke: whose? tandem key revoke NAME") : run(&s, verb, name);
    }
    settings_free(&s);
    return status;
}
