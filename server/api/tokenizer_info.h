/* GET /tokenizer_info. */
#ifndef TANDEM_SERVER_API_TOKENIZER_INFO_H
#define TANDEM_SERVER_API_TOKENIZER_INFO_H

struct app;
struct engine;

/* Builds the route's answer.  Pool thread, once, after chat_open. */
void tokenizer_info_load(struct app *, struct engine *);

#endif
