/* A libcuda.so.1 with CUPTI in it, for programs of tests: it loads what CUDA_INJECTION64_PATH names, as the driver does, calls back
 * at calls that are followed, and writes records as CUPTI 13.0 lays them out. Work takes the time that it is told; nothing runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTEXT_ID = 1, NULL_STREAM = 7, STREAMS = 64, FUNCTIONS = 2048, MOST = 256 };
enum { MEMCPY = 1, CONTEXT = 9, KERNEL = 10, MARKER = 12, EVENT = 36, STREAM = 37, SYNC = 38, GRAPH = 51 };
enum { ALLOCATE = 243, INIT = 1, LAUNCH = 307, COPY = 276, WAIT = 295, SYNCHRONIZE = 126, RESET = 620, GRAPH_LAUNCH = 514 };
static const int sizes[MOST] = {[MEMCPY] = 96, [CONTEXT] = 32, [KERNEL] = 216, [MARKER] = 56, [EVENT] = 56, [STREAM] = 24, [SYNC] = 56, [GRAPH] = 56};
static const char *names[FUNCTIONS] = {[ALLOCATE] = "cuMemAlloc_v2", [INIT] = "cuInit", [LAUNCH] = "cuLaunchKernel", [COPY] = "cuMemcpyHtoDAsync_v2",
                                       [WAIT] = "cuStreamWaitEvent", [SYNCHRONIZE] = "cuStreamSynchronize",
                                       [RESET] = "cuDevicePrimaryCtxReset_v2", [GRAPH_LAUNCH] = "cuGraphLaunch"};

struct data {
    int site;
    const char *name;
    const void *parameters;
    const int *result;
    const char *symbol;
    void *context;
    uint32_t context_number;
    uint64_t *own;
    uint32_t number;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t enabled[MOST], followed[FUNCTIONS], *buffer;
static size_t room, used;
static uint32_t number, stream_count;
static uint64_t ends_ns[STREAMS];
static void (*request)(uint8_t **, size_t *, size_t *), (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);
static void (*callback)(void *, int, uint32_t, const struct data *);

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
}

static void hand_over(void)
{
    if (used)
        complete(NULL, 0, buffer, room, used);
    if (used)
        buffer = NULL, used = room = 0;
}

/* Return an empty record of a kind, or none where it is not recorded. */
static uint8_t *record(int kind)
{
    static uint8_t nowhere[512];
    size_t most;
    if (!enabled[kind])
        return nowhere;
    if (buffer && room - used < (size_t)sizes[kind])
        hand_over();
    if (!buffer) {
        request(&buffer, &room, &most);
        if (!buffer)
            return nowhere;
    }
    uint8_t *made = buffer + used;
    used += sizes[kind];
    memset(made, 0, sizes[kind]);
    made[0] = kind;
    return made;
}

#define PUT(record, type, offset, value) (*(type *)((record) + (offset)) = (type)(value))

static __thread const void *parameters; /* of this thread's next call: words, as the driver takes them */

static uint32_t begin_call(uint32_t function, uint64_t *own)
{
    uint32_t mine = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
    struct data data = {.site = 0, .name = names[function], .parameters = parameters, .own = own, .number = mine};
    if (callback && followed[function])
        callback(NULL, 1, function, &data);
    return mine;
}

static void end_call(uint32_t function, uint64_t *own, uint32_t mine)
{
    struct data data = {.site = 1, .name = names[function], .parameters = parameters, .own = own, .number = mine};
    if (callback && followed[function])
        callback(NULL, 1, function, &data);
    parameters = NULL;
}

int cuInit(unsigned flags)
{
    static int is_begun;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    (void)flags;
    if (is_begun++ || !path)
        return 0;
    void *library = dlopen(path, RTLD_NOW);
    int (*begin)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
    if (begin)
        begin();
    pthread_mutex_lock(&lock);
    uint8_t *made = record(CONTEXT);
    PUT(made, uint32_t, 4, CONTEXT_ID), PUT(made, uint16_t, 14, NULL_STREAM);
    pthread_mutex_unlock(&lock);
    return 0;
}

int fake_stream(int priority)
{
    pthread_mutex_lock(&lock);
    int stream = 13 + stream_count++;
    uint8_t *made = record(STREAM);
    PUT(made, uint32_t, 4, CONTEXT_ID), PUT(made, uint32_t, 8, stream), PUT(made, int32_t, 12, priority), PUT(made, uint32_t, 16, 2);
    pthread_mutex_unlock(&lock);
    return stream;
}

static void place(int stream, uint8_t *made, uint64_t duration_ns)
{
    uint64_t now = now_ns(), start = ends_ns[stream % STREAMS] > now ? ends_ns[stream % STREAMS] : now;
    ends_ns[stream % STREAMS] = start + duration_ns;
    PUT(made, uint64_t, 16, start), PUT(made, uint64_t, 24, start + duration_ns);
}

void fake_launch(int stream, const char *name, uint64_t duration_ns)
{
    uint64_t own;
    uint32_t mine = begin_call(LAUNCH, &own);
    pthread_mutex_lock(&lock);
    uint8_t *made = record(KERNEL);
    place(stream, made, duration_ns);
    PUT(made, uint32_t, 44, CONTEXT_ID), PUT(made, uint32_t, 48, stream), PUT(made, uint32_t, 92, mine);
    PUT(made, int32_t, 52, 4), PUT(made, int32_t, 56, 1), PUT(made, int32_t, 60, 1), PUT(made, int32_t, 64, 128);
    PUT(made, const char *, 104, name);
    pthread_mutex_unlock(&lock);
    end_call(LAUNCH, &own, mine);
}

uint64_t fake_allocate(uint64_t bytes)
{
    static uint64_t next = (uint64_t)0x7f << 40;
    uint64_t own, made = __atomic_fetch_add(&next, (bytes | 511) + 1, __ATOMIC_RELAXED);
    const void *given[] = {&made, (void *)bytes};
    parameters = given;
    end_call(ALLOCATE, &own, begin_call(ALLOCATE, &own));
    return made;
}

/* Launch a kernel that is given two pieces of memory. */
void fake_compute(int stream, const char *name, uint64_t first, uint64_t second, uint64_t duration_ns)
{
    void *arguments[] = {&first, &second}, *given[8] = {(void *)name, [5] = (void *)(uintptr_t)stream, [6] = arguments};
    parameters = given;
    fake_launch(stream, name, duration_ns);
}

int cuFuncGetName(const char **name, void *function) { return *name = function, 0; }
int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size)
{
    return (void)function, *offset = 8 * index, *size = 8, index > 1;
}

/* A graph of two kernels: one record where graphs are told as a whole, as CUPTI does it. */
void fake_graph(int stream, uint64_t duration_ns)
{
    uint64_t own;
    uint32_t mine = begin_call(GRAPH_LAUNCH, &own);
    pthread_mutex_lock(&lock);
    for (int node = 0; node < (enabled[GRAPH] ? 1 : 2); node++) {
        uint8_t *made = record(enabled[GRAPH] ? GRAPH : KERNEL);
        place(stream, made, duration_ns);
        if (enabled[GRAPH]) {
            uint64_t start = *(uint64_t *)(made + 16);
            PUT(made, uint64_t, 8, start), PUT(made, uint64_t, 16, start + 2 * duration_ns), PUT(made, uint32_t, 4, mine);
            PUT(made, uint32_t, 24, 0), PUT(made, uint32_t, 28, 3), PUT(made, uint32_t, 32, CONTEXT_ID), PUT(made, uint32_t, 36, stream);
            continue;
        }
        PUT(made, uint32_t, 44, CONTEXT_ID), PUT(made, uint32_t, 48, stream), PUT(made, uint32_t, 92, mine);
        PUT(made, uint64_t, 144, node + 1), PUT(made, uint32_t, 156, 3), PUT(made, const char *, 104, "node");
    }
    pthread_mutex_unlock(&lock);
    end_call(GRAPH_LAUNCH, &own, mine);
}

void fake_upload(int stream, uint64_t target, uint64_t bytes, uint64_t duration_ns)
{
    static char source[1 << 12];
    const void *given[] = {(void *)target, source, (void *)bytes, (void *)(uintptr_t)stream};
    void fake_copy(int, uint64_t, uint64_t);
    parameters = given;
    fake_copy(stream, bytes, duration_ns);
}

void fake_copy(int stream, uint64_t bytes, uint64_t duration_ns)
{
    uint64_t own;
    uint32_t mine = begin_call(COPY, &own);
    pthread_mutex_lock(&lock);
    uint8_t *made = record(MEMCPY);
    uint64_t size = bytes;
    place(stream, made, duration_ns);
    made[4] = 1, made[5] = 2, made[6] = 3; /* to the device, from pinned memory */
    PUT(made, uint64_t, 8, size), PUT(made, uint32_t, 36, CONTEXT_ID), PUT(made, uint32_t, 40, stream), PUT(made, uint32_t, 44, mine);
    pthread_mutex_unlock(&lock);
    end_call(COPY, &own, mine);
}

void fake_wait(int waiting, int stream, int event)
{
    uint64_t own;
    uint32_t mine = __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    uint8_t *made = record(EVENT);
    PUT(made, uint32_t, 4, mine), PUT(made, uint32_t, 8, CONTEXT_ID), PUT(made, uint32_t, 12, stream), PUT(made, uint32_t, 16, event);
    pthread_mutex_unlock(&lock);
    mine = begin_call(WAIT, &own);
    pthread_mutex_lock(&lock);
    made = record(SYNC);
    PUT(made, uint32_t, 4, 2), PUT(made, uint32_t, 24, mine), PUT(made, uint32_t, 28, CONTEXT_ID), PUT(made, uint32_t, 32, waiting);
    PUT(made, uint32_t, 36, event);
    if (ends_ns[stream % STREAMS] > ends_ns[waiting % STREAMS])
        ends_ns[waiting % STREAMS] = ends_ns[stream % STREAMS];
    pthread_mutex_unlock(&lock);
    end_call(WAIT, &own, mine);
}

void fake_synchronize(int stream)
{
    uint64_t own, until = ends_ns[stream % STREAMS], now;
    uint32_t mine = begin_call(SYNCHRONIZE, &own);
    while ((now = now_ns()) < until)
        nanosleep(&(struct timespec){.tv_nsec = (until - now) % 1000000000u}, NULL);
    end_call(SYNCHRONIZE, &own, mine);
}

void fake_mark(uint32_t id, const char *text)
{
    pthread_mutex_lock(&lock);
    uint8_t *made = record(MARKER);
    PUT(made, uint32_t, 4, text ? 2 : 4), PUT(made, uint64_t, 8, now_ns()), PUT(made, uint32_t, 16, id);
    PUT(made, uint32_t, 28, (uint32_t)(uintptr_t)pthread_self()), PUT(made, const char *, 40, text ? strdup(text) : NULL); /* CUPTI keeps what it was given */
    pthread_mutex_unlock(&lock);
}

void fake_reset(void)
{
    uint64_t own;
    uint32_t mine = begin_call(RESET, &own);
    pthread_mutex_lock(&lock);
    used = 0; /* what CUPTI held of the context is gone */
    pthread_mutex_unlock(&lock);
    end_call(RESET, &own, mine);
}

int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char *name, int most, int device) { return (void)device, strncpy(name, "Fake GPU", most), 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return (void)device, *bytes = 1 << 30, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 40 ? 3 : attribute == 106 ? 32 : attribute == 39 ? 2048 : 0;
    return 0;
}

int cuptiGetVersion(uint32_t *version) { return *version = 130001, 0; }
int cuptiGetTimestamp(uint64_t *now) { return *now = now_ns(), 0; }
int cuptiActivityEnable(int kind) { return enabled[kind] = sizes[kind] > 0, sizes[kind] ? 0 : 1; }
int cuptiActivityRegisterCallbacks(void *first, void *second) { return request = first, complete = second, 0; }
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) { return (void)context, (void)stream, *count = 0, 0; }
int cuptiGetResultString(int code, const char **text) { return *text = code ? "CUPTI_ERROR_OF_THE_TEST" : "CUPTI_SUCCESS", 0; }
int cuptiSubscribe(void **subscriber, void *function, void *data)
{
    (void)data;
    if (getenv("FAKE_SUBSCRIBED"))
        return 39;
    return *subscriber = function, callback = function, 0;
}
int cuptiEnableCallback(uint32_t is_on, void *subscriber, int domain, uint32_t function)
{
    (void)subscriber, (void)domain;
    return followed[function] = is_on, 0;
}
int cuptiGetCallbackName(int domain, uint32_t function, const char **name)
{
    *name = domain == 1 && function < FUNCTIONS ? names[function] : NULL;
    return *name ? 0 : 1;
}
int cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    pthread_mutex_lock(&lock);
    if (buffer)
        hand_over();
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuptiActivityGetNextRecord(uint8_t *data, size_t valid, uint8_t **one)
{
    uint8_t *next = *one ? *one + sizes[**one] : data;
    if (next >= data + valid || !sizes[*next])
        return 12;
    return *one = next, 0;
}
