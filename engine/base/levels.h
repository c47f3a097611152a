/* FOR_EACH_LEVEL before a function: it is built once for each level of the instruction set and the machine's is chosen
 * at load, where the compiler can do that.  All give the same bits (no contraction into FMA, see meson.build).  For the
 * few loops outside the devices in which a large model spends minutes. */
#ifndef TANDEM_BASE_LEVELS_H
#define TANDEM_BASE_LEVELS_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(TANDEM_SANITIZED)
#define FOR_EACH_LEVEL __attribute__((target_clones("avx512f", "avx2", "default"), flatten))
#else
#define FOR_EACH_LEVEL
#endif

#endif
