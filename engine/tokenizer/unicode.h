/* Unicode as tokenizers need it: character classes, and the normal forms with a record of what replaced what. */
#ifndef TANDEM_ENGINE_TOKENIZER_UNICODE_H
#define TANDEM_ENGINE_TOKENIZER_UNICODE_H

#include "engine/tokenizer/text.h"

bool unicode_is_space(uint32_t c);   /* White_Space */
bool unicode_is_numeric(uint32_t c); /* Nd, Nl, No */
bool unicode_is_punct(uint32_t c);   /* P*, and ASCII's symbols */

bool unicode_is_other(uint32_t c);      /* Cc, Cf, Co of Unicode 8, as BertNormalizer knows them */
bool unicode_is_nonspacing(uint32_t c); /* Mn, likewise */
bool unicode_is_mark(uint32_t c);       /* Mn, Mc, Me of Unicode 9, as StripAccents knows them */

/* Bytes of the extended grapheme cluster that s[0, n), n > 0, begins with. */
size_t unicode_grapheme(const char *s, size_t n);

/* A rewritten text, character by character: change 0 replaces one old character, 1 is new, -k replaces one and drops
 * the k after it. */
struct edit {
    uint32_t c;
    int32_t change;
};

struct edits {
    struct edit *v;
    size_t n, cap;
};

void edits_add(struct edits *x, uint32_t c, int32_t change);
void edits_free(struct edits *x);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Appends the edits that bring s[0, n) into the form. */
void unicode_normalize(const char *s, size_t n, enum unicode_form form, struct edits *out);
/* true when s[0, n) surely is in all forms already (a cheap look at the bytes) */
bool unicode_is_inert(const char *s, size_t n, enum unicode_form form);
void unicode_lowercase(const char *s, size_t n, struct edits *out);

#endif
