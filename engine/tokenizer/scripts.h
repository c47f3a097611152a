/* Unicode's scripts as the pre-tokenizer UnicodeScripts has them: those of Unicode 9, and kana is Han. */
#ifndef TANDEM_ENGINE_TOKENIZER_SCRIPTS_H
#define TANDEM_ENGINE_TOKENIZER_SCRIPTS_H

#include <stdint.h>

/* Reads the scripts from PCRE2's properties, once for the process.  Any thread. */
void scripts_open(void);
/* A number of the character's script; 0: a space, or a character without one.  After scripts_open. */
int script_of(uint32_t c);

#endif
