/* The option table.  Everything that knows an option's name reads it from here; conf/tandem.yaml is checked against it
 * by tests/unit/server/conf_test.c. */
#include "server/conf.h"

enum {
    RUN = CMD_SERVE | CMD_GENERATE | CMD_PERPLEXITY, /* commands that run a model */
    ALL = RUN | CMD_TOKENIZE | CMD_QUANTIZE | CMD_BENCH,
    MEASURED = RUN | CMD_BENCH,
};

#define AT(field) offsetof(struct settings, field)
#define NO_TYPES "none|int8|int4|nf4"

static const struct conf_option table[] = {
    {"config", "General", CONF_STRING, AT(config), NULL, 0, 0, NULL, ALL, false, "FILE",
     "read options from a YAML file; the environment and flags override it"},
    {"log-level", "General", CONF_CHOICE, AT(log_level), "info", 0, 0, "debug|info|warn|error", ALL, false, "LEVEL",
     "least level of the lines written to stderr"},

    {"model", "Model", CONF_STRING, AT(model), "models/demo", 0, 0, NULL, ALL, false, "DIR",
     "the model: a Hugging Face directory (config.json, tokenizer.json, *.safetensors)"},
    {"quantize", "Model", CONF_CHOICE, AT(quantize), "none", 0, 0, NO_TYPES, MEASURED, false, "TYPE",
     "weights: as the file has them, or quantised while loading"},
    {"activations", "Model", CONF_CHOICE, AT(activations), "auto", 0, 0, "auto|f32|bf16", MEASURED, false, "TYPE",
     "what bf16 weights are multiplied with; auto is bf16 where the processor multiplies bf16, else f32"},
    {"device", "Model", CONF_STRING, AT(device), "auto", 0, 0, NULL, MEASURED, false, "NAME",
     "auto, cpu, cpu:portable, or ref (the slow definition of every operation)"},
    {"threads", "Model", CONF_INT, AT(threads), "0", 0, 1024, NULL, MEASURED, false, "N",
     "compute threads; 0 is one per available core"},
    {"cpus", "Model", CONF_STRING, AT(cpus), "", 0, 0, NULL, MEASURED, false, "LIST",
     "cores that the compute threads are bound to, such as 0-3,8; empty: the system places them"},
    {"verify-weights", "Model", CONF_BOOL, AT(verify_weights), "false", 0, 0, NULL, MEASURED | CMD_QUANTIZE, false,
     NULL, "first compare every byte of the weights with the checksums that tandem quantize wrote"},

    {"kv-cache-bytes", "Batching and memory", CONF_BYTES, AT(kv_cache_bytes), "0", 0, 1e15, NULL, RUN, false, "BYTES",
     "memory for keys and values (512M, 4G); 0 is enough for max-seqs requests of moderate length, "
     "at most a quarter of the free memory"},
    {"kv-cache", "Batching and memory", CONF_CHOICE, AT(kv_type), "auto", 0, 0, "auto|f16|bf16|f32|int8", MEASURED,
     false, "TYPE", "how keys and values are kept; auto is bf16 where the processor multiplies bf16, else f16"},
    {"max-seqs", "Batching and memory", CONF_INT, AT(max_seqs), "64", 1, 4096, NULL, RUN, false, "N",
     "requests that run at once"},
    {"max-batch-tokens", "Batching and memory", CONF_INT, AT(max_batch_tokens), "512", 16, 65536, NULL, MEASURED, false,
     "N", "tokens in one step: smaller gives steadier streams, larger reads prompts faster"},
    {"max-queue", "Batching and memory", CONF_INT, AT(max_queue), "256", 1, 65536, NULL, CMD_SERVE, false, "N",
     "requests that wait; beyond it the answer is 429 with Retry-After"},
    {"max-total-tokens", "Batching and memory", CONF_INT, AT(max_total_tokens), "0", 0, 16777216, NULL, RUN, false, "N",
     "prompt and generated tokens of one request; 0 is what model and memory allow"},
    {"prefix-cache", "Batching and memory", CONF_BOOL, AT(prefix_cache), "true", 0, 0, NULL, RUN, false, NULL,
     "reuse keys and values of prompts that begin alike"},

    {"host", "HTTP", CONF_STRING, AT(host), "127.0.0.1", 0, 0, NULL, CMD_SERVE, false, "ADDRESS",
     "address to listen on; 0.0.0.0 or :: for every interface"},
    {"port", "HTTP", CONF_INT, AT(port), "8080", 0, 65535, NULL, CMD_SERVE, false, "N",
     "port to listen on; 0 takes a free one and prints it"},
    {"cors-origin", "HTTP", CONF_STRING, AT(cors_origin), "*", 0, 0, NULL, CMD_SERVE, false, "ORIGIN",
     "origin that browsers may call from; empty sends no CORS headers"},
    {"max-connections", "HTTP", CONF_INT, AT(max_connections), "4096", 1, 1000000, NULL, CMD_SERVE, false, "N",
     "open connections; beyond it 503"},
    {"max-header-size", "HTTP", CONF_BYTES, AT(max_header_size), "16K", 1024, 1048576, NULL, CMD_SERVE, false, "BYTES",
     "request line and headers of one request"},
    {"max-body-size", "HTTP", CONF_BYTES, AT(max_body_size), "2M", 1024, 1073741824, NULL, CMD_SERVE, false, "BYTES",
     "body of one request"},
    {"header-timeout", "HTTP", CONF_NUMBER, AT(header_timeout), "10", 0.1, 3600, NULL, CMD_SERVE, false, "SECONDS",
     "time for a request's head to arrive"},
    {"body-timeout", "HTTP", CONF_NUMBER, AT(body_timeout), "30", 0.1, 3600, NULL, CMD_SERVE, false, "SECONDS",
     "time for a request's body to arrive"},
    {"idle-timeout", "HTTP", CONF_NUMBER, AT(idle_timeout), "75", 0.1, 86400, NULL, CMD_SERVE, false, "SECONDS",
     "time a connection may stay open without a request"},
    {"write-timeout", "HTTP", CONF_NUMBER, AT(write_timeout), "60", 0.1, 86400, NULL, CMD_SERVE, false, "SECONDS",
     "time a client may take no byte of its answer"},
    {"sse-keepalive", "HTTP", CONF_NUMBER, AT(sse_keepalive), "15", 0.1, 3600, NULL, CMD_SERVE, false, "SECONDS",
     "a silent stream gets a comment line this often"},

    {"max-best-of", "Requests", CONF_INT, AT(max_best_of), "4", 1, 16, NULL, CMD_SERVE, false, "N", "largest best_of"},
    {"max-stop-sequences", "Requests", CONF_INT, AT(max_stop_sequences), "4", 0, 16, NULL, CMD_SERVE, false, "N",
     "stop texts of one request"},
    {"max-top-n-tokens", "Requests", CONF_INT, AT(max_top_n_tokens), "5", 0, 32, NULL, CMD_SERVE, false, "N",
     "largest top_n_tokens"},

    {"drain-timeout", "Operation", CONF_NUMBER, AT(drain_timeout), "60", 0, 86400, NULL, CMD_SERVE, false, "SECONDS",
     "after SIGTERM, time for running requests to finish; a second signal stops at once"},
    {"step-timeout", "Operation", CONF_NUMBER, AT(step_timeout), "60", 0.1, 86400, NULL, CMD_SERVE, false, "SECONDS",
     "an engine step that takes longer makes /health and /ready answer 503"},
    {"data-dir", "Operation", CONF_STRING, AT(data_dir), "", 0, 0, NULL, CMD_SERVE, false, "DIR",
     "where jobs, files, adapters and checkpoints are kept; empty: /var/lib/tandem for root, else ./tandem-data"},
    {"access-log", "Operation", CONF_BOOL, AT(access_log), "false", 0, 0, NULL, CMD_SERVE, false, NULL,
     "write a line for every finished request"},

    {"prompt", "Generation", CONF_STRING, AT(prompt), NULL, 0, 0, NULL, CMD_GENERATE, true, "TEXT",
     "text to continue; - reads it from stdin"},
    {"max-new-tokens", "Generation", CONF_INT, AT(max_new_tokens), "128", 1, 16777216, NULL, CMD_GENERATE, true, "N",
     "tokens to generate at most"},
    {"temperature", "Generation", CONF_NUMBER, AT(temperature), "0", 0, 100, NULL, CMD_GENERATE, true, "X",
     "0 takes the most likely token, unless another of the next four is given (then 1)"},
    {"top-k", "Generation", CONF_INT, AT(top_k), "0", 0, 1e9, NULL, CMD_GENERATE, true, "N",
     "sample among the N most likely tokens; 0 is off"},
    {"top-p", "Generation", CONF_NUMBER, AT(top_p), "1", 1e-6, 1, NULL, CMD_GENERATE, true, "X",
     "sample among the most likely tokens that hold this probability; 1 is off"},
    {"typical-p", "Generation", CONF_NUMBER, AT(typical_p), "1", 1e-6, 1, NULL, CMD_GENERATE, true, "X",
     "sample among the tokens of typical information that hold this probability; 1 is off"},
    {"min-p", "Generation", CONF_NUMBER, AT(min_p), "0", 0, 1, NULL, CMD_GENERATE, true, "X",
     "drop tokens less likely than X times the most likely one"},
    {"seed", "Generation", CONF_U64, AT(seed), NULL, 0, 0, NULL, CMD_GENERATE, true, "N",
     "same seed, same text; without it a random one is chosen"},
    {"repetition-penalty", "Generation", CONF_NUMBER, AT(repetition_penalty), "1", 1e-3, 1e3, NULL, CMD_GENERATE, true,
     "X", "divide the logits of tokens already seen"},
    {"frequency-penalty", "Generation", CONF_NUMBER, AT(frequency_penalty), "0", -2, 2, NULL, CMD_GENERATE, true, "X",
     "subtract for every time a token was generated"},
    {"presence-penalty", "Generation", CONF_NUMBER, AT(presence_penalty), "0", -2, 2, NULL, CMD_GENERATE, true, "X",
     "subtract once for every token that was generated"},
    {"stop", "Generation", CONF_LIST, AT(stop), NULL, 0, 0, NULL, CMD_GENERATE, true, "TEXT",
     "end when this text appears; may be given again"},
    {"ignore-eos", "Generation", CONF_BOOL, AT(ignore_eos), "false", 0, 0, NULL, CMD_GENERATE, true, NULL,
     "do not end at the model's end-of-text token"},
    {"top-n", "Generation", CONF_INT, AT(top_n), "0", 0, 32, NULL, CMD_GENERATE, true, "N",
     "with --json, list the N most likely tokens at every position"},

    {"text", "Input", CONF_STRING, AT(text), NULL, 0, 0, NULL, CMD_TOKENIZE, true, "TEXT", "text to tokenize"},
    {"file", "Input", CONF_STRING, AT(file), NULL, 0, 0, NULL, CMD_TOKENIZE | CMD_PERPLEXITY, true, "FILE",
     "read the text from a file; - is stdin"},
    {"ids", "Input", CONF_STRING, AT(ids), NULL, 0, 0, NULL, CMD_TOKENIZE, true, "LIST",
     "decode these ids (separated by commas or spaces) instead; - reads them from stdin"},
    {"special", "Input", CONF_BOOL, AT(special), "true", 0, 0, NULL, CMD_TOKENIZE, true, NULL,
     "let the tokenizer add its own tokens (begin-of-text...)"},

    {"window", "Measure", CONF_INT, AT(window), "0", 0, 16777216, NULL, CMD_PERPLEXITY, true, "N",
     "tokens seen at once; 0 is 512 or the model's positions, whichever is less"},
    {"kl", "Measure", CONF_BOOL, AT(kl), "false", 0, 0, NULL, CMD_PERPLEXITY, true, NULL,
     "with --quantize, load the unquantised model too and print the divergence from it"},

    {"calibrate", "Input", CONF_STRING, AT(calibrate), NULL, 0, 0, NULL, CMD_QUANTIZE, true, "FILE",
     "choose the weights so that the model's answers to this text change least (\"self\": to text it writes itself)"},

    {"prompt-tokens", "Bench", CONF_INT, AT(prompt_tokens), "512", 1, 16777216, NULL, CMD_BENCH, true, "N",
     "tokens of each prompt; unless given, less where the model has no room"},
    {"generate-tokens", "Bench", CONF_INT, AT(generate_tokens), "64", 1, 16777216, NULL, CMD_BENCH, true, "N",
     "steps of decoding after the prompt; unless given, less where the model has no room"},
    {"batch", "Bench", CONF_STRING, AT(batch), "1,8,32", 0, 0, NULL, CMD_BENCH, true, "LIST",
     "sequences decoded at once: numbers from 1 to 1024, separated by commas"},
    {"repeat", "Bench", CONF_INT, AT(repeat), "3", 1, 1000, NULL, CMD_BENCH, true, "N",
     "runs of each phase; the median counts"},
    {"ops", "Bench", CONF_MAYBE, AT(ops), NULL, 0, 0, NULL, CMD_BENCH, true, "[FILTER]",
     "measure single operations in the shapes of Qwen2.5-0.5B instead, those whose name contains FILTER"},

    {"out", "Output", CONF_STRING, AT(out), NULL, 0, 0, NULL, CMD_QUANTIZE, true, "DIR",
     "directory to write; must not hold a model yet"},
    {"type", "Output", CONF_CHOICE, AT(type), "int8", 0, 0, "int8|int4|nf4", CMD_QUANTIZE, true, "TYPE", "weight type"},
    {"layout", "Output", CONF_CHOICE, AT(layout), "packed", 0, 0, "packed|canonical", CMD_QUANTIZE, true, "LAYOUT",
     "packed for the cpu device, which maps it: starts at once, shared by processes; canonical is for any device"},
    {"json", "Output", CONF_BOOL, AT(json), "false", 0, 0, NULL,
     CMD_GENERATE | CMD_TOKENIZE | CMD_PERPLEXITY | CMD_BENCH, true, NULL, "print one JSON object"},
};

const struct conf_option *conf_options(int *n)
{
    _Static_assert(sizeof table / sizeof *table <= sizeof((struct settings *)0)->source, "source[] is too small");
    *n = (int)(sizeof table / sizeof *table);
    return table;
}
