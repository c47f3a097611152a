/* The scripts (scripts.h).  PCRE2 can only say whether a character is of a script: one pattern with all of them, each with
 * a mark, finds the runs among all characters. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/tokenizer/scripts.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/text.h"

#include <pcre2.h>
#include <pthread.h>
#include <stdlib.h>

/* Of Unicode 9 (UAX 24, Scripts.txt), the frequent ones first. */
static const char *const names[] = {
    "Common", "Latin", "Han", "Cyrillic", "Arabic", "Hangul", "Inherited", "Hiragana", "Katakana", "Adlam", "Ahom",
    "Anatolian_Hieroglyphs", "Armenian", "Avestan", "Balinese", "Bamum", "Bassa_Vah", "Batak", "Bengali", "Bhaiksuki",
    "Bopomofo", "Brahmi", "Braille", "Buginese", "Buhid", "Canadian_Aboriginal", "Carian", "Caucasian_Albanian",
    "Chakma", "Cham", "Cherokee", "Coptic", "Cuneiform", "Cypriot", "Deseret", "Devanagari", "Duployan",
    "Egyptian_Hieroglyphs", "Elbasan", "Ethiopic", "Georgian", "Glagolitic", "Gothic", "Grantha", "Greek", "Gujarati",
    "Gurmukhi", "Hanunoo", "Hatran", "Hebrew", "Imperial_Aramaic", "Inscriptional_Pahlavi", "Inscriptional_Parthian",
    "Javanese", "Kaithi", "Kannada", "Kayah_Li", "Kharoshthi", "Khmer", "Khojki", "Khudawadi", "Lao", "Lepcha",
    "Limbu", "Linear_A", "Linear_B", "Lisu", "Lycian", "Lydian", "Mahajani", "Malayalam", "Mandaic", "Manichaean",
    "Marchen", "Meetei_Mayek", "Mende_Kikakui", "Meroitic_Cursive", "Meroitic_Hieroglyphs", "Miao", "Modi",
    "Mongolian", "Mro", "Multani", "Myanmar", "Nabataean", "New_Tai_Lue", "Newa", "Nko", "Ogham", "Ol_Chiki",
    "Old_Hungarian", "Old_Italic", "Old_North_Arabian", "Old_Permic", "Old_Persian", "Old_South_Arabian",
    "Old_Turkic", "Oriya", "Osage", "Osmanya", "Pahawh_Hmong", "Palmyrene", "Pau_Cin_Hau", "Phags_Pa", "Phoenician",
    "Psalter_Pahlavi", "Rejang", "Runic", "Samaritan", "Saurashtra", "Sharada", "Shavian", "Siddham", "SignWriting",
    "Sinhala", "Sora_Sompeng", "Sundanese", "Syloti_Nagri", "Syriac", "Tagalog", "Tagbanwa", "Tai_Le", "Tai_Tham",
    "Tai_Viet", "Takri", "Tamil", "Tangut", "Telugu", "Thaana", "Thai", "Tibetan", "Tifinagh", "Tirhuta", "Ugaritic",
    "Vai", "Warang_Citi", "Yi",
};
/* A script is its place here, from 1 on. */
enum { SCRIPTS = sizeof names / sizeof *names, NONE = 0, COMMON = 1, HAN = 3, HIRAGANA = 8, KATAKANA = 9 };

/* Characters younger than Unicode 9, of the scripts above: between the ends of a range there is no older one.  Found by
 * trying every code point, with the scripts of Unicode 17. */
static const uint32_t later[][2] = {
    {0x558, 0x558}, {0x560, 0x560}, {0x588, 0x588}, {0x58b, 0x58c}, {0x5c8, 0x5c9}, {0x5ef, 0x5ef}, {0x61d, 0x61d},
    {0x7fd, 0x7ff}, {0x860, 0x89f}, {0x8b5, 0x8b5}, {0x8be, 0x8d3}, {0x9fc, 0x9fe}, {0xa76, 0xa76}, {0xafa, 0xaff},
    {0xb53, 0xb55}, {0xc04, 0xc04}, {0xc3c, 0xc3c}, {0xc5c, 0xc5d}, {0xc77, 0xc77}, {0xc84, 0xc84}, {0xcdc, 0xcdd},
    {0xcf3, 0xd00}, {0xd04, 0xd04}, {0xd3b, 0xd3c}, {0xd81, 0xd81}, {0xe86, 0xe86}, {0xe89, 0xe89}, {0xe8c, 0xe8c},
    {0xe8e, 0xe93}, {0xe98, 0xe98}, {0xea0, 0xea0}, {0xea8, 0xea9}, {0xeac, 0xeac}, {0xeba, 0xeba}, {0xece, 0xece},
    {0x170d, 0x170d}, {0x1715, 0x171f}, {0x180f, 0x180f}, {0x1878, 0x1878}, {0x1abf, 0x1af0}, {0x1b4c, 0x1b4f},
    {0x1b7d, 0x1b7f}, {0x1c89, 0x1cbf}, {0x1cf7, 0x1cf7}, {0x1cfa, 0x1cfa}, {0x1df6, 0x1dfa}, {0x208f, 0x208f},
    {0x209d, 0x209f}, {0x20bf, 0x20c4}, {0x23ff, 0x23ff}, {0x2427, 0x2429}, {0x2b96, 0x2b97}, {0x2bba, 0x2bbc},
    {0x2bc9, 0x2bc9}, {0x2bd2, 0x2beb}, {0x2bf0, 0x2bff}, {0x2c2f, 0x2c2f}, {0x2c5f, 0x2c5f}, {0x2e45, 0x2e63},
    {0x2ffc, 0x2fff}, {0x312e, 0x312f}, {0x31bb, 0x31bf}, {0x31e4, 0x31ef}, {0x32ff, 0x32ff}, {0x4db6, 0x4dbf},
    {0x9fd6, 0x9fff}, {0xa7af, 0xa7af}, {0xa7b8, 0xa7f6}, {0xa82c, 0xa82c}, {0xa8fe, 0xa8ff}, {0xab66, 0xab6d},
    {0xfbc2, 0xfbd2}, {0xfd40, 0xfd4f}, {0xfd90, 0xfd91}, {0xfdc8, 0xfdcf}, {0xfdfe, 0xfdff}, {0x1019c, 0x1019c},
    {0x1032d, 0x1032f}, {0x10780, 0x107bf}, {0x10a34, 0x10a35}, {0x10a48, 0x10a48}, {0x10ec2, 0x10eff},
    {0x11070, 0x11075}, {0x110c2, 0x110cd}, {0x11144, 0x11147}, {0x111ce, 0x111cf}, {0x1123f, 0x11241},
    {0x1133b, 0x1133b}, {0x1145a, 0x1145a}, {0x1145e, 0x11461}, {0x116b8, 0x116b9}, {0x116d0, 0x116e3},
    {0x1171a, 0x1171a}, {0x11740, 0x11746}, {0x11ab0, 0x11abf}, {0x11b00, 0x11b67}, {0x11df0, 0x11fff},
    {0x1246f, 0x1246f}, {0x12475, 0x1247f}, {0x12550, 0x12686}, {0x1342f, 0x143fa}, {0x16f45, 0x16f4f},
    {0x16f7f, 0x16f87}, {0x16fe2, 0x16ff6}, {0x187ed, 0x187ff}, {0x18af3, 0x1affe}, {0x1b002, 0x1b168},
    {0x1cc00, 0x1cfc3}, {0x1d127, 0x1d128}, {0x1d1e9, 0x1d1ff}, {0x1d250, 0x1d2f3}, {0x1d372, 0x1d378},
    {0x1d6a6, 0x1d6a6}, {0x1db00, 0x1dfff}, {0x1e030, 0x1e7fe}, {0x1e94b, 0x1e94b}, {0x1ec71, 0x1ed3d},
    {0x1f10d, 0x1f10f}, {0x1f12f, 0x1f12f}, {0x1f16c, 0x1f16f}, {0x1f1ad, 0x1f1ae}, {0x1f260, 0x1f265},
    {0x1f6d3, 0x1f6df}, {0x1f6f7, 0x1f6fc}, {0x1f774, 0x1f77f}, {0x1f7d5, 0x1f7ff}, {0x1f8b0, 0x1f90f},
    {0x1f91f, 0x1f91f}, {0x1f928, 0x1f92f}, {0x1f931, 0x1f932}, {0x1f93f, 0x1f93f}, {0x1f94c, 0x1f94f},
    {0x1f95f, 0x1f97f}, {0x1f992, 0x1f9bf}, {0x1f9c1, 0x1fbfa}, {0x2a6d7, 0x2a6df}, {0x2b735, 0x2b73f},
    {0x2b81e, 0x2b81e}, {0x2cea2, 0x2ee5d}, {0x30000, 0x33479}};

/* From this character on; sorted. */
struct run {
    uint32_t first;
    int script;
};
static struct run *runs;
static size_t n_runs, cap_runs;

static void run_add(uint32_t first, int script)
{
    if (n_runs && runs[n_runs - 1].script == script) return;
    mem_grow(&runs, &cap_runs, n_runs + 1, sizeof *runs);
    runs[n_runs++] = (struct run){first, script};
}

/* The characters from `first` to before `end` are of a script, but for those that Unicode 9 had not. */
static void add(uint32_t first, uint32_t end, int script)
{
    for (size_t i = 0; i < sizeof later / sizeof *later && first < end && script != NONE; i++) {
        if (later[i][1] < first) continue;
        if (later[i][0] >= end) break;
        if (later[i][0] > first) run_add(first, script);
        run_add(later[i][0], NONE);
        first = later[i][1] + 1;
    }
    if (first < end) run_add(first, script);
}

static pcre2_code *compile(void)
{
    struct buf pattern = {0};
    int code;
    PCRE2_SIZE where;
    buf_str(&pattern, "\\p{sc:Unknown}+(*:0)");
    for (int i = 0; i < SCRIPTS; i++) {
        int script = i + 1 == HIRAGANA || i + 1 == KATAKANA ? HAN : i + 1;
        buf_printf(&pattern, "|\\p{sc:%s}+(*:%d)", names[i], script);
    }
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern.data, pattern.len, PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);
    CHECK(compiled);
    buf_free(&pattern);
    return compiled;
}

enum { BLOCK = 0x1000, END = 0x110000 };

/* The runs among the characters from `first` to before `end`. */
static void read_block(pcre2_code *code, pcre2_match_data *match, uint32_t first, uint32_t end)
{
    char text[4 * BLOCK];
    size_t n = 0;
    for (uint32_t c = first; c < end; c++)
        if (c < 0xd800 || c > 0xdfff) n += utf8_put(text + n, c);
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(match);
    uint32_t done = first;
    for (size_t from = 0; from < n; from = found[1]) {
        uint32_t start, stop = end;
        if (pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, match, NULL) < 0) break;
        utf8_get(text + found[0], &start);
        if (found[1] < n) utf8_get(text + found[1], &stop);
        add(done, start, NONE);
        add(start, stop, atoi((const char *)pcre2_get_mark(match)));
        done = stop;
    }
    add(done, end, NONE);
}

static void read_all(void)
{
    pcre2_code *code = compile();
    pcre2_match_data *match = pcre2_match_data_create(1, regex_memory());
    CHECK(match);
    for (uint32_t c = 0; c < END; c += BLOCK) read_block(code, match, c, c + BLOCK);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
}

void scripts_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_all);
}

int script_of(uint32_t c)
{
    size_t lo = 0, hi = n_runs;
    if (c == ' ') return NONE;
    if (c == 0x30fc) return HAN; /* the mark of a long vowel, which is Common */
    if (c == 0x589 || c == 0x61c) return COMMON; /* since Unicode 10, of scripts of their own */
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (runs[mid].first <= c)
            lo = mid;
        else
            hi = mid;
    }
    return runs[lo].script;
}
