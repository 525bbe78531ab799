/* Who exchanges what with whom: faces by peer, the list of all links, and what may be wrong with either. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline_inside.h"

static int fault_of(const dovetail_pipeline* p, const dovetail_face* faces, int count, const char* what, char* fault) {
    for (int i = 0; i < count; i++) {
        const dovetail_face* face = faces + i;
        if (face->peer == MPI_PROC_NULL) continue;
        if (face->peer < 0 || face->peer >= p->size || face->peer == p->rank)
            return snprintf(fault, TEXT, "face %d %s rank %d: there is no such other rank among %d", i, what,
                            face->peer, p->size);
        if (!face->first || !face->bytes || face->rows < 0)
            return snprintf(fault, TEXT, "face %d %s rank %d has no memory: first, bytes and rows must say where", i,
                            what, face->peer);
    }
    return 0;
}

/* The sides of this rank: faces of one peer, in their order. */
static side* sides_of(const dovetail_face* faces, int count, int* num_sides) {
    side* found = calloc((size_t)count + 1, sizeof *found);
    *num_sides = 0;
    for (int i = 0; i < count; i++) {
        int k = 0;
        if (faces[i].peer == MPI_PROC_NULL) continue;
        while (k < *num_sides && found[k].peer != faces[i].peer) k++;
        if (k == *num_sides) found[(*num_sides)++].faces = malloc((size_t)count * sizeof *faces);
        found[k].peer = faces[i].peer;
        found[k].requests[0] = found[k].requests[1] = MPI_REQUEST_NULL;
        dovetail_face* face = found[k].faces + found[k].num_faces++;
        *face = faces[i];
        face->rows = face->rows ? face->rows : 1;
        found[k].bytes += face->bytes * (size_t)face->rows;
    }
    return found;
}

static link* gathered(const dovetail_pipeline* p, const side* sides, int count, int into, int* total) {
    int *counts = malloc((size_t)p->size * sizeof *counts), *starts = malloc((size_t)p->size * sizeof *starts);
    const int words = 3 * count;
    link *own = malloc(((size_t)count + 1) * sizeof *own), *all;
    MPI_Allgather(&words, 1, MPI_INT, counts, 1, MPI_INT, p->comm);
    for (int i = *total = 0; i < p->size; i++) starts[i] = 3 * *total, *total += counts[i] / 3;
    for (int i = 0; i < count; i++)
        own[i] = (link){into ? sides[i].peer : p->rank, into ? p->rank : sides[i].peer, (int64_t)sides[i].bytes};
    all = malloc(((size_t)*total + 1) * sizeof *all);
    MPI_Allgatherv(own, words, MPI_INT64_T, all, counts, starts, MPI_INT64_T, p->comm);
    free(counts), free(starts), free(own);
    return all;
}

static int64_t bytes_of(const link* links, int count, int64_t source, int64_t target) {
    for (int i = 0; i < count; i++)
        if (links[i].source == source && links[i].target == target) return links[i].bytes;
    return 0;
}

/* Whether some rank sends another what this one does not take, or takes what is not sent. */
static int unpaired(const link* sent, int num_sent, const link* taken, int num_taken, char* fault) {
    for (int i = 0; i < num_sent + num_taken; i++) {
        const link* any = i < num_sent ? sent + i : taken + i - num_sent;
        const int64_t sends = bytes_of(sent, num_sent, any->source, any->target);
        const int64_t takes = bytes_of(taken, num_taken, any->source, any->target);
        if (sends != takes)
            return snprintf(fault, TEXT, "rank %d sends rank %d %lld bytes a position, which takes %lld",
                            (int)any->source, (int)any->target, (long long)sends, (long long)takes);
    }
    return 0;
}

/* Whether ranks wait for each other in a circle: take away, again and again, ranks that wait for none. */
static int in_a_circle(const dovetail_pipeline* p, char* fault) {
    char* gone = calloc((size_t)p->size, 1);
    int left = p->size, rank;
    for (int before = left + 1; left < before;) {
        before = left;
        for (rank = 0; rank < p->size; rank++) {
            int waits = gone[rank];
            for (int i = 0; i < p->num_links; i++) waits |= p->links[i].target == rank && !gone[p->links[i].source];
            if (!waits) gone[rank] = 1, left--;
        }
    }
    for (rank = 0; rank < p->size && gone[rank];) rank++;
    free(gone);
    return left ? snprintf(fault, TEXT, "rank %d waits for itself by way of others: faces go round in a circle", rank)
                : 0;
}

/* The fault of the first rank that has one, on all. */
static int shared(const dovetail_pipeline* p, char* fault) {
    int mine = fault[0] ? p->rank : p->size, first, length;
    char text[TEXT];
    MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, p->comm);
    if (first == p->size) return 0;
    memcpy(text, fault, TEXT);
    MPI_Bcast(text, TEXT, MPI_CHAR, first, p->comm);
    length = snprintf(fault, TEXT, "rank %d: ", first);
    memcpy(fault + length, text, (size_t)(TEXT - length));
    fault[TEXT - 1] = 0;
    return 1;
}

static void local_fault(const dovetail_pipeline* p, const dovetail_face* from, int num_from, const dovetail_face* to,
                        int num_to, char* fault) {
    const int refuses = fault[0] != 0; /* its length is none */
    const int64_t asked = p->choice.grain, none = INT64_MIN;
    int64_t own[] = {p->length, -p->length, asked, -asked}, most[4];
    for (int i = 0; refuses && i < 4; i++) own[i] = none;
    MPI_Allreduce(own, most, 4, MPI_INT64_T, MPI_MAX, p->comm);
    if (refuses) return;
    if (p->length < 1)
        snprintf(fault, TEXT, "a pipeline of %lld positions", (long long)p->length);
    else if (most[0] != p->length || most[0] != -most[1])
        snprintf(fault, TEXT, "%lld positions here, %lld to %lld on all ranks", (long long)p->length,
                 (long long)-most[1], (long long)most[0]);
    else if (most[2] != asked || most[2] != -most[3])
        snprintf(fault, TEXT, "a grain of %lld here, %lld to %lld on all ranks", (long long)asked, (long long)-most[3],
                 (long long)most[2]);
    else if (num_from < 0 || num_to < 0 || (num_from && !from) || (num_to && !to))
        snprintf(fault, TEXT, "it gives %d faces from others and %d to others", num_from, num_to);
    else if (!fault_of(p, from, num_from, "from", fault))
        fault_of(p, to, num_to, "to", fault);
}

int dovetail_pipeline_link(dovetail_pipeline* p, const dovetail_face* from, int num_from, const dovetail_face* to,
                           int num_to, char* fault) {
    link* received;
    int num_received, is_wrong;
    local_fault(p, from, num_from, to, num_to, fault);
    if (shared(p, fault)) return 1;
    p->from = sides_of(from, num_from, &p->num_from);
    p->to = sides_of(to, num_to, &p->num_to);
    p->links = gathered(p, p->to, p->num_to, 0, &p->num_links);
    received = gathered(p, p->from, p->num_from, 1, &num_received);
    is_wrong = unpaired(p->links, p->num_links, received, num_received, fault) || in_a_circle(p, fault);
    free(received);
    p->most = p->length;
    for (int i = 0; i < p->num_links && !is_wrong; i++) {
        const int64_t fits = (1 << 30) / p->links[i].bytes;
        if (fits < 1) is_wrong = snprintf(fault, TEXT, "a position has %lld bytes", (long long)p->links[i].bytes);
        p->most = fits < p->most ? fits : p->most;
    }
    return is_wrong;
}

void dovetail_pipeline_unlink(dovetail_pipeline* p) {
    for (int side_of = 0; side_of < 2; side_of++) {
        side* sides = side_of ? p->to : p->from;
        for (int i = 0; i < (side_of ? p->num_to : p->num_from); i++)
            free(sides[i].faces), free(sides[i].buffers[0]), free(sides[i].buffers[1]);
        free(sides);
    }
    free(p->links);
}
