/* An exchange of OpenAI's and Anthropic's routes, which openai.c runs and openai_reply.c answers.  Loop thread. */
#ifndef TANDEM_SERVER_API_OPENAI_EXCHANGE_H
#define TANDEM_SERVER_API_OPENAI_EXCHANGE_H

#include "engine/serve/engine.h"
#include "server/api/choice.h"
#include "server/api/messages_answer.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_params.h"
#include "server/api/request_body.h"
#include "server/api/responses_answer.h"
#include "server/api/responses_params.h"
#include "server/memory/reservation.h"
#include "server/net/http.h"
#include "server/net/sse.h"

struct admission_handle;
struct answered_draft;
struct app;
struct gen;
struct grammar_cache_job;
struct served_model;

/* whose convention an answer follows */
enum style { STYLE_OPENAI, STYLE_RESPONSES, STYLE_MESSAGES, STYLE_COUNT /* of tokens: nothing is generated */ };

struct exchange;

struct sequence {
    struct exchange *x;
    struct gen *gen; /* NULL before and after it runs */
    struct choice choice;
    int index;    /* index of the choice in a stream */
    bool started; /* stream: its first chunk was sent */
};

/* a prompt prepared for the engine */
struct prepared {
    int32_t *ids; /* owned */
    size_t n;
    struct buf echo; /* its text for echo */
    bool thinking;   /* it ends with <think> */
    int32_t *scored; /* openai_params_scored; owned; NULL: none */
    int max_new_tokens;
};

struct exchange {
    int refs; /* the open http exchange, running callbacks, work on the pool */
    struct app *app;
    struct served_model *served;
    struct http_req *req; /* NULL once closed */
    struct admission_handle *handle;
    _Atomic bool gone; /* the pool's flag: closed, or past its deadline */
    uint64_t client;
    enum openai_route route;
    enum style style;
    struct openai_params params;
    struct openai_limits limits;
    struct http_body body; /* while it is read on the pool */
    size_t body_len;
    int status; /* of reading it; 0: no error */
    struct err err;
    const char *param;
    struct reservation held; /* for prompts and answer; owned by the pool while it prepares */
    size_t gathered_bytes;   /* memory of the choices, at most */
    struct openai_head head;
    char id[REQUEST_ID_MAX + 24];
    struct choice_config config;

    struct prepared *prompts; /* (params.n_prompts) */
    struct err failed;        /* of preparing */
    const char *failed_param;
    struct grammar_cache_job *compiling;
    uint64_t asked;          /* clock_now() of the start of compiling */
    struct grammar *grammar; /* held until the sequences are submitted */

    struct sequence *seqs;        /* n, prompt by prompt */
    struct answered_draft *draft; /* for feedback; owned; NULL: none */
    struct choice **answer;       /* (n_answer) of a whole answer, in its order; owned */
    int n_answer;
    int n, n_done, n_late;
    struct openai_usage usage;
    struct sse sse;
    struct messages_stream blocks;      /* STYLE_MESSAGES */
    struct responses_request asked_for; /* STYLE_RESPONSES, and the next */
    struct responses_stream items;
    struct buf out;
};

void exchange_unref(struct exchange *);
void exchange_cancel(struct exchange *); /* its sequences */

/* ---- openai_reply.c -------------------------------------------------------------------------------------------- */

/* An error instead of an answer; code and param: OpenAI's, NULL for none. */
void exchange_reply_error(struct exchange *, int status, const char *code, const char *param, const char *msg);
void exchange_start_stream(struct exchange *);
/* Events of a sequence (arg), for an answer that is gathered, or streamed. */
void exchange_on_gather(void *arg, const struct event *, const struct event_batch *);
void exchange_on_stream(void *arg, const struct event *, const struct event_batch *);

#endif
