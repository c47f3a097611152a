/* The handlers of generation, embeddings, tokens, models and adapters: each answers one route (struct http_route), on
 * the loop thread. */
#ifndef TANDEM_SERVER_API_ROUTES_H
#define TANDEM_SERVER_API_ROUTES_H

struct http_req;

/* generate.c */
void api_generate(struct http_req *);        /* POST /generate: an object, or a stream when asked */
void api_generate_compat(struct http_req *); /* POST /: an array of one object, or a stream when asked */
void api_generate_stream(struct http_req *); /* POST /generate_stream */
/* openai.c, models.c */
void api_completions(struct http_req *);
void api_generate_tokens(struct http_req *); /* vLLM's POST /inference/v1/generate */
void api_chat_completions(struct http_req *);
void api_responses(struct http_req *);      /* POST /v1/responses */
void api_messages(struct http_req *);       /* POST /v1/messages */
void api_messages_count(struct http_req *); /* POST /v1/messages/count_tokens */
void api_models_load(struct http_req *);
void api_models_unload(struct http_req *);
void api_models_list(struct http_req *);
void api_models_get(struct http_req *);
void api_models_delete(struct http_req *); /* adapters.c */
/* adapters.c */
void api_adapters_list(struct http_req *);
void api_adapters_load(struct http_req *);
void api_adapters_get(struct http_req *);
void api_adapters_delete(struct http_req *);
void api_lora_load(struct http_req *);   /* vLLM's POST /v1/load_lora_adapter */
void api_lora_unload(struct http_req *); /* and /v1/unload_lora_adapter */
/* embeddings.c, embed.c, rerank.c, classify.c, tokenize.c */
void api_embeddings(struct http_req *);
void api_tokenize(struct http_req *);
void api_detokenize(struct http_req *);
void api_embed(struct http_req *);        /* POST /embed: TEI's; also that of POST / */
void api_similarity(struct http_req *);   /* POST /similarity: likewise */
void api_rerank(struct http_req *);       /* POST /rerank, /v1/rerank, /v2/rerank */
void api_score(struct http_req *);        /* POST /score, /v1/score */
void api_classify(struct http_req *);     /* POST /classify: vLLM's */
void api_predict(struct http_req *);      /* POST /predict: TEI's */
void api_predict_root(struct http_req *); /* that of POST / */
/* hold.c */
void api_pause(struct http_req *);
void api_resume(struct http_req *);
void api_is_paused(struct http_req *);
void api_reset_prefix_cache(struct http_req *);
/* vllm_trainer.c */
void api_world_size(struct http_req *);
void api_server_info(struct http_req *);
void api_no_weight_transfer(struct http_req *); /* refuses POST /init_weight_transfer_engine and the like */
/* tokenizer_info.c */
void api_tokenizer_info(struct http_req *);

#endif
