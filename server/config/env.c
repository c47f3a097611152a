/* Settings from the environment: TANDEM_NAME for the option NAME.
 *
 * Kubernetes uses the same names: for a Service called `tandem`, kubelet sets TANDEM_PORT=tcp://10.0.0.1:80 and a dozen
 * more in every container of the namespace (enableServiceLinks, on by default).  Such values are never valid for an
 * option, and are ignored.  Main thread only. */
#include "server/config/settings.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "TANDEM_"

/* variables that are not options: for debugging the start of a GPU, and for tests */
static const char *const others[] = {"TANDEM_GPU_EARLY", "TANDEM_BUILD_DIR", "TANDEM_TEST_DEVICE"};

static void env_name(char out[static 64], const struct setting_option *o)
{
    int n = snprintf(out, 64, PREFIX "%s", o->name);
    for (int i = 0; i < n && i < 63; i++) out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* tcp://ADDRESS:PORT, as kubelet writes it for NAME_PORT and NAME_PORT_80_TCP; others may be endpoints. */
static bool is_service_link(const char *name, const char *text)
{
    if (fnmatch("*_PORT", name, 0) != 0 && fnmatch("*_PORT_[0-9]*", name, 0) != 0) return false;
    static const char *const schemes[] = {"tcp://", "udp://", "sctp://"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(schemes[i]);
        if (strncmp(text, schemes[i], n) != 0) continue;
        const char *port = strrchr(text + n, ':');
        return port && port > text + n && port[1] && !port[1 + strspn(port + 1, "0123456789")];
    }
    return false;
}

int settings_read_env(struct settings *s, enum command cmd, struct err *e)
{
    int n;
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++) {
        char name[64];
        if (o[i].flag_only || !(o[i].commands & (unsigned)cmd)) continue;
        env_name(name, &o[i]);
        const char *text = getenv(name);
        if (!text || is_service_link(name, text)) continue;
        if (settings_set(s, &o[i], text, name, SETTING_ENV, e)) return e ? e->code : ERR_INVALID;
    }
    return 0;
}

/* ---- variables without effect
 * ------------------------------------------------------------------------------------------ */

/* @return whether kubelet set the variable for a Service whose name begins with `tandem`. */
static bool is_injected(const char *name, const char *text)
{
    static const char *const forms[] = {
        "*_PORT_[0-9]*_TCP_PROTO", "*_PORT_[0-9]*_TCP_PORT", "*_PORT_[0-9]*_TCP_ADDR",   "*_PORT_[0-9]*_UDP_PROTO",
        "*_PORT_[0-9]*_UDP_PORT",  "*_PORT_[0-9]*_UDP_ADDR", "*_PORT_[0-9]*_SCTP_PROTO", "*_PORT_[0-9]*_SCTP_PORT",
        "*_PORT_[0-9]*_SCTP_ADDR", "*_SERVICE_HOST",         "*_SERVICE_PORT",           "*_SERVICE_PORT_*"};
    if (is_service_link(name, text)) return true;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (fnmatch(forms[i], name, 0) == 0) return true;
    return false;
}

static bool is_other(const char *name)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i]) == 0) return true;
    return false;
}

/* @return the option of this variable; NULL: none. */
static const struct setting_option *option_of(const char *name)
{
    int n;
    const struct setting_option *o = settings_options(&n);
    for (int i = 0; i < n; i++) {
        char own[64];
        env_name(own, &o[i]);
        if (strcmp(own, name) == 0) return &o[i];
    }
    return NULL;
}

static void warn_unknown(const char *name, settings_warning_fn *fn, void *arg)
{
    char lower[64], own[64], text[240];
    size_t n = 0;
    for (const char *p = name + strlen(PREFIX); *p && n + 1 < sizeof lower; p++)
        lower[n++] = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
    lower[n] = 0;
    const char *near = settings_nearest(lower, n, 0);
    const struct setting_option *o = near ? settings_find(near, strlen(near)) : NULL;
    if (o && !o->flag_only) env_name(own, o);
    snprintf(text, sizeof text, "%.100s has no effect: there is no such option%s%s", name,
             o && !o->flag_only ? "; did you mean " : "", o && !o->flag_only ? own : "");
    fn(arg, text);
}

void settings_check_env(settings_warning_fn *fn, void *arg)
{
    extern char **environ;
    for (char **at = environ; at && *at; at++) {
        char name[128], text[400];
        const char *value = strchr(*at, '=');
        if (!value || strncmp(*at, PREFIX, strlen(PREFIX)) != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)(value - *at), *at);
        value++;
        const struct setting_option *o = option_of(name);
        if (o && o->flag_only) {
            snprintf(text, sizeof text, "%s has no effect: %s belongs to one run, give it as --%s", name, o->name,
                     o->name);
            fn(arg, text);
        } else if (o && is_service_link(name, value)) {
            snprintf(text, sizeof text,
                     "%s is ignored: its value is a link to a Kubernetes Service; set enableServiceLinks: false in the "
                     "pod, or give the Service another name",
                     name);
            fn(arg, text);
        } else if (!o && !is_other(name) && !is_injected(name, value)) {
            warn_unknown(name, fn, arg);
        }
    }
}
