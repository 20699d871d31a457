/* Stage 3: first, middle or last contribution? */
#ifndef FANIN_COUNT_H
#define FANIN_COUNT_H

#include "dedup.h"

struct position {
    __u32 is_first;
    __u32 is_last;
};

/* Counts modulo the worker count (SwitchML Alg. 3, line 8); with one worker a contribution is first and last at once. */
inlined struct position count(const struct job *job, struct copy *copy)
{
    struct position position = {.is_first = copy->contribution_count == 0};
    __u32 next = copy->contribution_count + 1;
    position.is_last = next == job->worker_count;
    copy->contribution_count = position.is_last ? 0 : next;
    return position;
}

#endif
