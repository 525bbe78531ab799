/* Compares the clocks of pairs of ranks by round trips: see dovetail_trace_meet.h. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "clock.h"
#include "dovetail_trace.h"
#include "dovetail_trace_meet.h"

enum { TRIPS = 20, GOOD_NS = 100000, MEET_NS = 200000000 };

static int64_t raw_ns(void) { return dvt_system_ns(CLOCK_MONOTONIC_RAW); }

char* dovetail_trace_clock_of(char* text, size_t size) {
    char boot[64] = "", space[64] = "";
    *text = 0;
    FILE* file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file) return text;
    const int is_read = fscanf(file, "%63s", boot) == 1 && readlink("/proc/self/ns/time", space, sizeof space - 1) > 0;
    fclose(file);
    if (is_read) snprintf(text, size, "%s %s", boot, space);
    return text;
}

/* Makes round trips with the parent `above`; the shortest gives the offset of the clocks. Continues while round trips
   become shorter and, on a busy host, until one takes at most GOOD_NS, but no longer than MEET_NS. */
static int ask(int above, const dovetail_trace_mail* mail, dovetail_trace_meeting* found) {
    int64_t best = INT64_MAX, answer = 0;
    const int64_t start = raw_ns();
    for (int i = 0, until = TRIPS, goes_on = 1; goes_on; ++i) {
        const int64_t before = raw_ns();
        goes_on = (i + 1 < until || best > GOOD_NS) && before - start < MEET_NS;
        int code = mail->send(mail->with, above, &goes_on, (int)sizeof goes_on);
        if (!code) code = mail->receive(mail->with, above, &answer, (int)sizeof answer);
        if (code) return code;
        const int64_t after = raw_ns();
        if (after - before >= best) continue;
        if (best - (after - before) > best / 20) until = i + 1 + TRIPS; /* only if much shorter */
        best = after - before;
        *found = (dovetail_trace_meeting){before + best / 2, answer, (best + 1) / 2};
    }
    return 0;
}

static int reply(int below, const dovetail_trace_mail* mail) {
    int code = 0;
    for (int goes_on = 1; goes_on && !code;) {
        code = mail->receive(mail->with, below, &goes_on, (int)sizeof goes_on);
        const int64_t now = raw_ns();
        if (!code) code = mail->send(mail->with, below, &now, (int)sizeof now);
    }
    return code;
}

static void note(const dovetail_trace_meeting* met) {
    char line[160];
    snprintf(line, sizeof line, "{\"clock\": {\"mine_ns\": %lld, \"peer_ns\": %lld, \"half_trip_ns\": %lld}}",
             (long long)met->mine_ns, (long long)met->peer_ns, (long long)met->half_trip_ns);
    dovetail_trace_note(line);
}

int dovetail_trace_meet(int rank, int num_ranks, const dovetail_trace_mail* mail, dovetail_trace_meeting* found) {
    int code = 0;
    *found = (dovetail_trace_meeting){0, 0, 0};
    for (int bit = 1; bit < num_ranks && !code; bit *= 2) {
        if (rank & bit) {
            code = ask(rank - bit, mail, found);
            if (!code) note(found);
            return code;
        }
        if (rank + bit < num_ranks) code = reply(rank + bit, mail);
    }
    return code;
}
