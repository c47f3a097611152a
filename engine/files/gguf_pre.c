#include "engine/files/gguf_pre.h"

#include <stdint.h>
#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LETTERS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define NO_SIGN " ?[^(\\s|.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+"
#define CJK "[\xe4\xb8\x80-\xe9\xbe\xa5\xe0\xa0\x80-\xe4\xb8\x80\xea\xb0\x80-\xed\x9f\xbf]+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(more) "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" more "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" more
#define SLASHED_SIGNS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"

static const struct gguf_pre splitters[] = {
    {.pattern = ""},
    {.pattern = "", .digits = true},
    {.pattern = CONTRACTIONS "|" LETTERS "|\\p{N}{1,3}|" SIGNS "|" SPACES, .whole = true, .bos = true},
    {.pattern = CONTRACTIONS "|" LETTERS "|\\p{N}|" SIGNS "|" SPACES, .nfc = true},
    {.pattern = CASED("") "|\\p{N}|" SLASHED_SIGNS "|" SPACES, .whole = true, .bos = true},
    {.pattern = CASED(CONTRACTIONS "?") "|\\p{N}{1,3}|" SLASHED_SIGNS "|" SPACES},
    {.pattern = CONTRACTIONS "|" LETTERS "|\\p{N}{1,3}|" SIGNS "|" SPACES},
    {.pattern = CONTRACTIONS "|" LETTERS "|\\p{N}|" SIGNS "|" SPACES},
    {.pattern = CONTRACTIONS "|" LETTERS "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES},
    {.pattern = NO_SIGN},
    {.pattern = NO_SIGN, .digits = true},
    {.first = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+"}, .pattern = CJK, .digits = true},
};
enum {
    SPLIT_GPT2,
    SPLIT_DIGITS,
    SPLIT_LLAMA3,
    SPLIT_QWEN2,
    SPLIT_TEKKEN,
    SPLIT_GPT4O,
    SPLIT_THREES,
    SPLIT_ONES,
    SPLIT_SEED,
    SPLIT_NO_SIGN,
    SPLIT_NO_SIGN_DIGITS,
    SPLIT_DEEPSEEK
};

/* tokenizer.ggml.pre */
static const struct {
    const char *name;
    uint8_t splitter;
} pres[] = {
    {"gpt-2", SPLIT_GPT2},
    {"phi-2", SPLIT_GPT2},
    {"mpt", SPLIT_GPT2},
    {"olmo", SPLIT_GPT2},
    {"jais", SPLIT_GPT2},
    {"gigachat", SPLIT_GPT2},
    {"trillion", SPLIT_GPT2},
    {"granite-docling", SPLIT_GPT2},
    {"smollm", SPLIT_DIGITS},
    {"starcoder", SPLIT_DIGITS},
    {"refact", SPLIT_DIGITS},
    {"command-r", SPLIT_DIGITS},
    {"codeshell", SPLIT_DIGITS},
    {"exaone", SPLIT_DIGITS},
    {"minerva-7b", SPLIT_DIGITS},
    {"llama3", SPLIT_LLAMA3},
    {"llama-v3", SPLIT_LLAMA3},
    {"llama-bpe", SPLIT_LLAMA3},
    {"falcon3", SPLIT_LLAMA3},
    {"falcon-h1", SPLIT_LLAMA3},
    {"pixtral", SPLIT_LLAMA3},
    {"qwen2", SPLIT_QWEN2},
    {"deepseek-r1-qwen", SPLIT_QWEN2},
    {"megrez", SPLIT_QWEN2},
    {"stablelm2", SPLIT_ONES},
    {"hunyuan", SPLIT_ONES},
    {"tekken", SPLIT_TEKKEN},
    {"gpt-4o", SPLIT_GPT4O},
    {"llama4", SPLIT_GPT4O},
    {"dbrx", SPLIT_THREES},
    {"smaug-bpe", SPLIT_THREES},
    {"chatglm-bpe", SPLIT_THREES},
    {"glm4", SPLIT_THREES},
    {"a.x-4.0", SPLIT_GPT2},
    {"mellum", SPLIT_GPT2},
    {"exaone4", SPLIT_GPT2},
    {"mellum2", SPLIT_DIGITS},
    {"midm-2.0", SPLIT_LLAMA3},
    {"lfm2", SPLIT_LLAMA3},
    {"kormo", SPLIT_QWEN2},
    {"f2llmv2", SPLIT_QWEN2},
    {"solar-open", SPLIT_ONES},
    {"grok-2", SPLIT_ONES},
    {"kanana2", SPLIT_GPT4O},
    {"minimax-m2", SPLIT_GPT4O},
    {"seed-coder", SPLIT_SEED},
    {"poro-chat", SPLIT_NO_SIGN},
    {"bloom", SPLIT_NO_SIGN},
    {"gpt3-finnish", SPLIT_NO_SIGN},
    {"viking", SPLIT_NO_SIGN_DIGITS},
    {"deepseek-coder", SPLIT_DEEPSEEK},
};

const struct gguf_pre *gguf_pre_find(struct gguf_text name)
{
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (gguf_text_is(name, pres[i].name)) return &splitters[pres[i].splitter];
    return NULL;
}

const char *gguf_pre_name(const char *pattern, bool digits, bool whole, bool nfc)
{
    static const char *const names[] = {"gpt-2",  "smollm", "llama-bpe", "qwen2",
                                        "tekken", "gpt-4o", "dbrx",      "stablelm2"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct gguf_pre *p = gguf_pre_find((struct gguf_text){names[i], strlen(names[i])});
        if (p->first[0] || strcmp(p->pattern, pattern) || p->digits != digits || p->whole != whole) continue;
        if (!found || p->nfc == nfc) found = names[i];
    }
    return found;
}
