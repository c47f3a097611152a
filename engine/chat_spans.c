#include "engine/chat_input.h"
int chat_find_spans(struct chat_view *v, const struct chat_page *page, struct chat_spans *out, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "not yet");
}
