#include "engine/train_full.h"
int train_full_open(struct train_full *f, const struct model *m, struct optim *o, struct err *e)
{
    (void)f, (void)m, (void)o;
    return err_set(e, ERR_UNSUPPORTED, "method full is not there yet");
}
size_t train_full_bytes(const struct train_full *f)
{
    (void)f;
    return 0;
}
int train_full_bind(struct train_full *f, const struct train_params *p, struct optim *o, struct err *e)
{
    (void)f, (void)p, (void)o, (void)e;
    return 0;
}
void train_full_update(struct train_full *f, struct optim *o)
{
    (void)f, (void)o;
}
int train_full_write(struct train_full *f, const float *p, const char *m, const char *d, struct err *e)
{
    (void)f, (void)p, (void)m, (void)d, (void)e;
    return 0;
}
void train_full_close(struct train_full *f)
{
    (void)f;
}
