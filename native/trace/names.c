/* The names of intervals and points: numbers by text and lane, each written once to every file. */
#define _GNU_SOURCE
#include "names.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "writer.h"

enum { MAX_NAMES = 4096, NUM_SLOTS = 2 * MAX_NAMES };

static struct {
    char *text[MAX_NAMES], *lane[MAX_NAMES]; /* by number of a name; lane NULL: none */
    uint16_t slot[NUM_SLOTS];                /* by hash: the number of a name; 0: free */
    int count;                               /* numbers 1 to `count` are in use */
} names;

/* Writes `, "key": "text"`, truncated to the room; returns its end. */
static char* write_text(char* to, const char* end, const char* key, const char* text) {
    to += snprintf(to, (size_t)(end - to), ", \"%s\": \"", key);
    for (; *text && to < end - 16; ++text) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\' || c < 32)
            to += sprintf(to, "\\u%04x", c);
        else
            *to++ = (char)c;
    }
    *to++ = '"';
    *to = 0;
    return to;
}

static void write_name(int number) {
    char line[2400] = "", *to = line;
    to += snprintf(line, sizeof line, "{\"name\": %d", number);
    to = write_text(to, line + sizeof line / 2, "text", names.text[number]);
    if (names.lane[number]) to = write_text(to, line + sizeof line - 1, "lane", names.lane[number]);
    strcpy(to, "}");
    dvt_line(line);
}

static int is_name(int number, const char* text, const char* lane) {
    const char* held = names.lane[number];
    return strcmp(names.text[number], text) == 0 && (held && lane ? strcmp(held, lane) == 0 : held == lane);
}

static uint32_t hash_of(uint32_t hash, const char* text) {
    for (const char* c = text; *c; ++c) hash = (hash ^ (unsigned char)*c) * 16777619u;
    return hash;
}

int dvt_name(const char* text, const char* lane) {
    uint32_t at = hash_of(hash_of(2166136261u, text), lane ? lane : "") % NUM_SLOTS;
    for (; names.slot[at]; at = (at + 1) % NUM_SLOTS)
        if (is_name(names.slot[at], text, lane)) return names.slot[at];
    const int next = names.count + 1;
    if (next >= MAX_NAMES) return 0;
    names.text[next] = strdup(text);
    names.lane[next] = lane ? strdup(lane) : NULL;
    if (!names.text[next] || (lane && !names.lane[next])) return 0;
    names.slot[at] = (uint16_t)++names.count;
    write_name(names.count);
    return names.count;
}

void dvt_write_names(void) {
    for (int i = 1; i <= names.count; ++i) write_name(i);
}
