/* One Open MPI rank of `fanin bench`, driven over a TCP connection to the loopback port in its first argument.
 *
 * A request is one line, "BYTES TYPE REPEAT" or "quit", sent to every rank: between requests a rank sleeps in read(), because a rank
 * that waits inside MPI polls and would disturb whoever is measured then (mpirun passes its stdin to rank 0 only). REPEAT
 * times it fills the tensor, runs a barrier and one all-reduce in place, and checks the result. The answer is one line of
 * JSON with the times of entering and leaving, on the clock that all processes of a host share.
 */
#include <arpa/inet.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 128
#define REPEAT_MAX 100000

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* One of the three types of elements; a loop for each, because the type must not be looked up per element. */
#define FILL(T) for (size_t i = 0; i < count; i++) ((T *)tensor)[i] = (T)1
#define COUNT_WRONG(T) for (size_t i = 0; i < count; i++) wrong += ((const T *)tensor)[i] != (T)ranks

static void fill(void *tensor, MPI_Datatype type, size_t count) {
    if (type == MPI_FLOAT) FILL(float);
    else if (type == MPI_INT32_T) FILL(int32_t);
    else FILL(int64_t);
}

static size_t count_wrong(const void *tensor, MPI_Datatype type, size_t count, int ranks) {
    size_t wrong = 0;
    if (type == MPI_FLOAT) COUNT_WRONG(float);
    else if (type == MPI_INT32_T) COUNT_WRONG(int32_t);
    else COUNT_WRONG(int64_t);
    return wrong;
}

static void answer(FILE *peer, const uint64_t *times, size_t repeat, size_t wrong) {
    const char *names[] = {"starts_ns", "ends_ns"};
    fprintf(peer, "{\"wrong_elements\":%zu", wrong);
    for (size_t side = 0; side < 2; side++) {
        fprintf(peer, ",\"%s\":[", names[side]);
        for (size_t k = 0; k < repeat; k++) fprintf(peer, "%s%llu", k ? "," : "", (unsigned long long)times[2 * k + side]);
        fprintf(peer, "]");
    }
    fprintf(peer, "}\n");
    fflush(peer);
}

static void serve(FILE *peer, const char *line, int ranks) {
    size_t bytes = 0, repeat = 0, wrong = 0;
    char type[16] = "";
    if (sscanf(line, "%zu %15s %zu", &bytes, type, &repeat) != 3 || repeat < 1 || repeat > REPEAT_MAX) {
        fprintf(peer, "{\"error\":\"a request is BYTES TYPE REPEAT\"}\n");
        fflush(peer);
        return;
    }
    int wide = !strcmp(type, "int64");
    MPI_Datatype datatype = wide ? MPI_INT64_T : !strcmp(type, "int32") ? MPI_INT32_T : MPI_FLOAT;
    size_t count = bytes / (wide ? 8 : 4);
    void *tensor = malloc(bytes + 8);
    uint64_t *times = malloc(2 * repeat * sizeof *times);
    if (!tensor || !times) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t k = 0; k < repeat; k++) {
        fill(tensor, datatype, count);
        MPI_Barrier(MPI_COMM_WORLD);
        times[2 * k] = now_ns();
        MPI_Allreduce(MPI_IN_PLACE, tensor, (int)count, datatype, MPI_SUM, MPI_COMM_WORLD);
        times[2 * k + 1] = now_ns();
        wrong += count_wrong(tensor, datatype, count, ranks);
    }
    answer(peer, times, repeat, wrong);
    free(times);
    free(tensor);
}

/* The coordinator, on both directions of one connection. */
static int dial(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address)) return -1;
    return connection;
}

int main(int argc, char **argv) {
    /* A benchmark that is killed leaves nothing running: the kernel kills this process with mpirun. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int rank, ranks, version_bytes;
    char version[MPI_MAX_LIBRARY_VERSION_STRING], line[LINE_BYTES];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Get_library_version(version, &version_bytes);
    version[strcspn(version, ",\n")] = 0;
    int connection = argc > 1 ? dial(argv[1]) : -1;
    FILE *requests = connection < 0 ? NULL : fdopen(connection, "r");
    FILE *peer = connection < 0 ? NULL : fdopen(dup(connection), "w");
    if (!requests || !peer) {
        fprintf(stderr, "rank %d cannot reach the benchmark on the loopback port it was given\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    fprintf(peer, "{\"rank\":%d,\"version\":\"%s\"}\n", rank, version);
    fflush(peer);
    while (fgets(line, sizeof line, requests) && strcmp(line, "quit\n")) serve(peer, line, ranks);
    MPI_Finalize();
    return 0;
}
