/* What was replaced, as each process reports it. Included once. */

static const char* const dx_kind_name[] = {"Allreduce", "Allgather", "Alltoall", "Barrier"};
static const char* const dx_state_name[] = {"watched",      "watched",     "tried",     "replaced", "slower",
                                            "slower later", "other bytes", "no memory", "tried"};
static const char* const dx_class_name[] = {"",        "int8",      "int16",      "int32",  "int64",
                                            "uint8",   "uint16",    "uint32",     "uint64", "float32",
                                            "float64", "complex64", "complex128", ""};
static const char* const dx_op_name[] = {"", "SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"};

static const char* dx_write_comm(FILE* file, const dx_comm* on, double tick_s, const char* comma) {
    for (int i = 0; i < DX_BUCKETS; ++i) {
        const dx_bucket* bucket = &on->bucket[i];
        if (!bucket->key) continue;
        fprintf(file,
                "%s\n  [\"%s\", %d, %d, \"%s\", \"%s\", \"%s\", %llu, %llu, %.9g, %.9g, %.4f, %.4f, %.4f, %u, %llu]",
                comma, dx_kind_name[bucket->key >> 24 & 127], on->group.size, (int)(bucket->key & 255) - 1,
                dx_class_name[bucket->key >> 16 & 255], dx_op_name[bucket->key >> 8 & 255],
                on->is_left_alone ? "left alone" : dx_state_name[bucket->state], (unsigned long long)bucket->calls,
                (unsigned long long)bucket->moved, bucket->was * tick_s, bucket->now * tick_s, bucket->low,
                bucket->high, bucket->ratio, bucket->key, (unsigned long long)bucket->block);
        comma = ",";
    }
    return comma;
}

/* Writes further members of the process's JSON object. */
static void dx_write(FILE* file, double tick_s) {
    const char* comma = "";
    fprintf(file, ", \"knobs\": {");
    for (int i = 0; i < dk_num_knobs; ++i, comma = ", ") {
        fprintf(file, "%s\"", comma), dc_text(file, dk_knob[i].name);
        fprintf(file, "\": \""), dc_text(file, dk_knob[i].value), fprintf(file, "\"");
    }
    fprintf(file, "}");
    if (!dx.is_on) return;
    fprintf(file, ", \"replaced\": [");
    comma = "";
    for (int i = 0; i < DX_CHAINS; ++i)
        for (const dx_comm* on = dx.chain[i]; on; on = on->next) comma = dx_write_comm(file, on, tick_s, comma);
    for (const dx_comm* on = dx.freed; on; on = on->next_freed) comma = dx_write_comm(file, on, tick_s, comma);
    fprintf(file, "], \"left\": {\"operation\": %llu, \"order\": %llu, \"long\": %llu, \"communicator\": %llu},",
            (unsigned long long)dx.left_op, (unsigned long long)dx.left_order, (unsigned long long)dx.left_long,
            (unsigned long long)dx.left_comm);
    fprintf(file, " \"spent_s\": %.9g", (double)dx.spent * tick_s);
}
