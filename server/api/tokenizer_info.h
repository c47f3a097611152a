/* GET /tokenizer_info. */
#ifndef TANDEM_SERVER_API_TOKENIZER_INFO_H
#define TANDEM_SERVER_API_TOKENIZER_INFO_H

struct engine;
struct served_model;
struct settings;

/* Builds the route's answer.  Pool thread, once, after chat_open. */
void tokenizer_info_load(const struct settings *, struct served_model *, struct engine *);

#endif
