/* Records a program that knows nothing of it: the driver loads this library where CUDA_INJECTION64_PATH names it, and calls
 * InitializeInjection before the first call of CUDA returns. No Python is in here: any program can be recorded.
 *
 * What CUPTI tells goes into a file as it is, chunk by chunk, while the program goes on; _stored.py reads it. Texts that
 * records point to are written beside them, once a segment, and the pointer becomes the text's number. A file has a bound: it
 * is a row of segments, each readable alone, and the oldest are punched out of it, so that its end is what is kept.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Of callbacks.c */
int set_up(size_t bytes, uint64_t count), set_up_calls(void), refuse_nobody(void);
void request_buffer(uint8_t **address, size_t *size, size_t *most_records);
void complete_buffer(void *context, uint32_t stream, uint8_t *address, size_t size, size_t valid_bytes);
void note_call(void *unused, int domain, uint32_t function, const void *data);
uint8_t *take_full(uint64_t *valid_bytes);
void give_back(uint8_t *address);
uint64_t take_calls(void *calls, uint64_t most, uint64_t *words, uint64_t most_words);
uint64_t take_lost_calls(void), take_spilt_bytes(void), function_name(uint64_t function, char *into, uint64_t most);
struct shape {
    uint8_t kind, others[7];
};
void set_shape(uint32_t function, struct shape shape), set_driver(const void *questions);

enum { BUFFER_BYTES = 1 << 20, BUFFERS = 256, CALL_BYTES = 56, MOST_CALLS = 1 << 13, MOST_WORDS = 7 * MOST_CALLS, FUNCTIONS = 2048, SEGMENTS = 8 };
enum { LOOK_MS = 20, FLUSH_MS = 250, DRIVER_API = 1, ENTER = 0, FORCED = 1 };
enum { LAUNCH = 5, LAUNCH_EX, UNLOAD = 11 }; /* kinds of shapes */
enum { FIRST_THAT_MAY_REFUSE = 27, KERNEL_BYTES = 208 };
static const uint64_t SAME_CLOCK_NS = 10000000000u;

/* Kinds of CUPTI's records, and where those point to texts: the same in all versions (_layouts.py). */
enum { CONTEXT = 9, KERNEL = 10, MARKER = 12, STREAM = 37, GREEN_CONTEXT = 59 };
enum { KERNEL_NAME = 104, MARKER_NAME = 40, MARKER_DOMAIN = 48 };

/* The file: a head, and chunks. `begin` is where the oldest segment stands. */
enum state { GOES_ON, ENDED, IS_FULL, NOT_WRITTEN };
static struct head {
    char magic[8];
    uint64_t begin, pid, dropped;
    uint32_t cupti_version, state;
} head = {.magic = "GSLSTORE"};

enum chunk_kind { RECORDS = 1, CALLS, TEXT, FUNCTION, CLOCK, DEVICE, PROBLEM, WORDS /* of the next calls */, LAUNCHED };
struct chunk {
    char mark[4];
    uint32_t kind;
    uint64_t bytes; /* behind this; the next chunk begins at a multiple of 8 */
};

static struct {
    int (*version)(uint32_t *), (*timestamp)(uint64_t *), (*set_clock)(uint64_t (*)(void));
    int (*register_buffers)(void *, void *), (*enable)(int), (*flush)(uint32_t);
    int (*next)(uint8_t *, size_t, uint8_t **), (*dropped)(void *, uint32_t, size_t *);
    int (*subscribe)(void **, void *, void *), (*follow)(uint32_t, void *, int, uint32_t);
    int (*callback_name)(int, uint32_t, const char **), (*explain)(int, const char **);
} cupti;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static int file = -1;
static uint64_t place, limit_bytes, last_ns, segment_begins[SEGMENTS], segment_count, segment_ns, flushed_ns;
static uint8_t calls[MOST_CALLS * CALL_BYTES], ends[FUNCTIONS], is_followed[FUNCTIONS], kinds[FUNCTIONS];
static uint64_t words[MOST_WORDS];
static uint8_t kept[1 << 20]; /* records of contexts and streams: each segment has all */
static size_t kept_bytes;
static char problem[256];
static _Atomic int is_over;
static int has_begun, knows_devices;

static uint64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

/* Write a chunk of two parts; where that does not succeed, as on a full disk, nothing more is written. */
static void write_chunk(enum chunk_kind kind, const void *first, size_t first_bytes, const void *second, size_t second_bytes)
{
    static char none[8];
    size_t bytes = first_bytes + second_bytes, rest = -bytes % 8;
    struct chunk chunk = {.mark = "GSLC", .kind = kind, .bytes = bytes};
    struct iovec parts[] = {{&chunk, sizeof chunk}, {(void *)first, first_bytes}, {(void *)second, second_bytes}, {none, rest}};
    if (head.state != GOES_ON)
        return;
    if (pwritev(file, parts, 4, (off_t)place) == (ssize_t)(sizeof chunk + bytes + rest))
        place += sizeof chunk + bytes + rest;
    else
        head.state = NOT_WRITTEN;
}

static void write_head(void)
{
    (void)!pwrite(file, &head, sizeof head, 0);
}

/* Texts that this segment has, by a hash of 64 bits, which is their number; 0 is none. */
enum { TEXTS = 1 << 16, MOST_OF_TEXT = 1 << 16, PAGE = 4096 };
static uint64_t texts[TEXTS], text_count;
static int memory = -1; /* /proc/self/mem: where a text is gone, reading it is an error, and not the program's end */
static struct {
    const char *text;
    uint64_t number;
} seen[PAGE]; /* in this buffer */

static uint64_t launched[PAGE]; /* functions whose names this segment has */

static size_t read_text(const char *text, char *into)
{
    size_t bytes = 0, length;
    while (bytes < MOST_OF_TEXT) {
        size_t part = PAGE - ((uintptr_t)text + bytes) % PAGE, left = MOST_OF_TEXT - bytes;
        ssize_t got = pread(memory, into + bytes, part < left ? part : left, (off_t)((uintptr_t)text + bytes));
        if (got <= 0)
            break;
        bytes += length = strnlen(into + bytes, (size_t)got);
        if (length < (size_t)got)
            break;
    }
    return bytes;
}

static uint64_t number_of(const char *pointer)
{
    static char text[MOST_OF_TEXT + 8];
    size_t bytes = read_text(pointer, text), slot;
    uint64_t number = bytes, word;
    memset(text + bytes, 0, 8);
    for (size_t at = 0; at < bytes; at += 8) {
        memcpy(&word, text + at, 8);
        number = (number ^ word) * 0x9E3779B97F4A7C15u;
        number ^= number >> 32;
    }
    number += !number;
    for (slot = number % TEXTS; texts[slot]; slot = (slot + 1) % TEXTS)
        if (texts[slot] == number)
            return number;
    if (text_count < TEXTS / 2) /* further ones are written each time */
        texts[slot] = number, text_count++;
    write_chunk(TEXT, &number, sizeof number, text, bytes);
    return number;
}

static void replace_pointer(uint8_t *record, size_t at)
{
    const char *text;
    memcpy(&text, record + at, sizeof text);
    size_t slot = ((uintptr_t)text >> 3) % PAGE;
    if (text && seen[slot].text != text)
        seen[slot].text = text, seen[slot].number = number_of(text);
    memcpy(record + at, text ? &seen[slot].number : &(uint64_t){0}, sizeof text);
}

/* Write the properties of each card as the driver tells them: numbers of attributes are CUDA's. */
static void write_devices(void)
{
    enum { ATTRIBUTES = 160 };
    struct {
        int32_t ordinal, driver, attributes[ATTRIBUTES];
        uint64_t memory;
        char name[256];
    } told = {0};
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return;
    int (*get_count)(int *) = dlsym(library, "cuDeviceGetCount"), (*get_version)(int *) = dlsym(library, "cuDriverGetVersion");
    int (*get_name)(char *, int, int) = dlsym(library, "cuDeviceGetName"), (*get)(int *, int) = dlsym(library, "cuDeviceGet");
    int (*get_memory)(uint64_t *, int) = dlsym(library, "cuDeviceTotalMem_v2");
    int (*ask)(int *, int, int) = dlsym(library, "cuDeviceGetAttribute"), count, device;
    if (!get_count || !get || !get_name || !ask || !get_memory || get_count(&count))
        return;
    knows_devices = 1;
    if (get_version)
        get_version(&told.driver);
    for (told.ordinal = 0; told.ordinal < count; told.ordinal++) {
        if (get(&device, told.ordinal) || get_name(told.name, sizeof told.name, device) || get_memory(&told.memory, device))
            continue;
        for (int i = 0; i < ATTRIBUTES; i++)
            if (ask(told.attributes + i, i, device))
                told.attributes[i] = 0;
        write_chunk(DEVICE, &told, sizeof told, NULL, 0);
    }
}

static void write_clock(void)
{
    uint64_t now[4] = {0, read_clock(CLOCK_REALTIME), read_clock(CLOCK_MONOTONIC)};
    cupti.timestamp(now);
    now[3] = read_clock(CLOCK_REALTIME); /* how long that took */
    write_chunk(CLOCK, now, sizeof now, NULL, 0);
}

/* Begin a segment where what comes next may be more than the last one's share; let go of the oldest of too many. */
static void begin_segment(void)
{
    uint64_t now = read_clock(CLOCK_MONOTONIC);
    uint64_t taken = segment_count ? place - segment_begins[(segment_count - 1) % SEGMENTS] : 0;
    if (head.state != GOES_ON)
        return;
    if (segment_count && taken + BUFFER_BYTES + sizeof calls + sizeof words <= limit_bytes / SEGMENTS &&
        (!last_ns || now - segment_ns < last_ns / (SEGMENTS - 1)))
        return;
    if (segment_count >= SEGMENTS) {
        uint64_t oldest = segment_begins[segment_count % SEGMENTS], begin = segment_begins[(segment_count + 1) % SEGMENTS];
        head.begin = begin;
        write_head(); /* first: who reads meanwhile looks whether it has changed */
        if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)oldest, (off_t)(begin - oldest))) {
            head.begin = oldest, head.state = IS_FULL; /* this file system makes no holes: what is there is kept */
            return;
        }
    }
    segment_begins[segment_count++ % SEGMENTS] = place, segment_ns = now;
    memset(texts, 0, sizeof texts), text_count = 0, memset(launched, 0, sizeof launched);
    for (uint32_t i = 1; i < FUNCTIONS; i++) {
        const char *name = NULL;
        uint64_t number = i;
        if (is_followed[i] && !cupti.callback_name(DRIVER_API, i, &name) && name)
            write_chunk(FUNCTION, &number, sizeof number, name, strlen(name));
    }
    if (problem[0])
        write_chunk(PROBLEM, problem, strlen(problem), NULL, 0);
    write_clock();
    if (knows_devices)
        write_devices();
    if (kept_bytes)
        write_chunk(RECORDS, kept, kept_bytes, NULL, 0);
}

static void keep(const uint8_t *record, size_t bytes)
{
    if (bytes <= sizeof kept - kept_bytes)
        memcpy(kept + kept_bytes, record, bytes), kept_bytes += bytes;
}

static void write_buffer(uint8_t *buffer, uint64_t bytes)
{
    uint8_t *record = NULL, *before = NULL;
    memset(seen, 0, sizeof seen);
    for (int is_last = 0; !is_last; before = record) {
        is_last = cupti.next(buffer, bytes, &record);
        if (before && (*before == CONTEXT || *before == STREAM || *before == GREEN_CONTEXT))
            keep(before, (size_t)((is_last ? buffer + bytes : record) - before));
        if (is_last)
            break;
        if (*record == KERNEL)
            replace_pointer(record, KERNEL_NAME);
        else if (*record == MARKER)
            replace_pointer(record, MARKER_NAME), replace_pointer(record, MARKER_DOMAIN);
    }
    write_chunk(RECORDS, buffer, bytes, NULL, 0);
}

/* Write calls behind the words that they bring, and behind the names of functions that they launch first in this segment. */
static void write_calls(uint64_t count)
{
    static char name[1 << 12];
    uint64_t word_count = 0, handle;
    uint16_t function, more;
    for (const uint8_t *call = calls; call < calls + count * CALL_BYTES; call += CALL_BYTES, word_count += more) {
        memcpy(&function, call + 24, sizeof function), memcpy(&more, call + 26, sizeof more);
        memcpy(&handle, call + 40, sizeof handle);
        if (kinds[function] == UNLOAD)
            memset(launched, 0, sizeof launched); /* a handle may be another function's afterwards */
        uint64_t *slot = launched + (handle >> 4) % PAGE;
        if ((kinds[function] == LAUNCH || kinds[function] == LAUNCH_EX) && *slot != handle) {
            write_chunk(LAUNCHED, &handle, sizeof handle, name, function_name(handle, name, sizeof name));
            *slot = handle;
        }
    }
    if (word_count)
        write_chunk(WORDS, words, word_count * sizeof *words, NULL, 0);
    write_chunk(CALLS, calls, count * CALL_BYTES, NULL, 0);
}

/* Write what has come, calls beside records: what makes room is the oldest of both. The lock is held. */
static void drain(void)
{
    uint64_t bytes, count;
    size_t dropped = 0;
    uint8_t *buffer;
    do {
        begin_segment();
        if ((buffer = take_full(&bytes))) {
            if (!knows_devices)
                write_devices();
            write_buffer(buffer, bytes);
            give_back(buffer);
        }
        if ((count = take_calls(calls, MOST_CALLS, words, MOST_WORDS)))
            has_begun = 1, write_calls(count);
    } while (buffer || count);
    if (!cupti.dropped || cupti.dropped(NULL, 0, &dropped))
        dropped = 0;
    head.dropped += dropped + take_lost_calls() + (take_spilt_bytes() + KERNEL_BYTES - 1) / KERNEL_BYTES;
}

static void flush(void)
{
    cupti.flush(0); /* what is complete: what runs is waited for by nobody */
    flushed_ns = read_clock(CLOCK_MONOTONIC);
    write_clock();
}

static void *write_on(void *unused)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
    for (;;) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
        if (is_over)
            break;
        /* Not while the driver is still being initialised: nothing is there, and the two might wait for each other. */
        if ((has_begun || problem[0]) && read_clock(CLOCK_MONOTONIC) - flushed_ns > FLUSH_MS * 1000000u)
            flush(), drain(), write_head();
        else
            drain();
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

/* The program ends by itself. */
static void finish(void)
{
    if (is_over || head.pid != (uint64_t)getpid())
        return; /* a forked child, whose file this is not */
    cupti.flush(FORCED);
    pthread_mutex_lock(&lock);
    if (!is_over) {
        drain();
        is_over = 1;
        head.state = head.state == GOES_ON ? ENDED : head.state;
        write_head();
    }
    pthread_mutex_unlock(&lock);
}

static void leave_to_parent(void)
{
    is_over = 1;
}

/* CUpti_CallbackFunc: before a context goes, its records are asked for, as CUPTI drops them with it. */
static void follow(void *unused, int domain, uint32_t function, const void *data)
{
    if (function < FUNCTIONS && ends[function] && *(const int *)data == ENTER && !is_over)
        cupti.flush(FORCED);
    if (function < FUNCTIONS && is_followed[function])
        note_call(unused, domain, function, data);
}

static int find_cupti(struct dl_phdr_info *one, size_t size, void *into)
{
    (void)size;
    if (!one->dlpi_name || !strstr(one->dlpi_name, "/libcupti.so"))
        return 0;
    *(const char **)into = one->dlpi_name;
    return 1;
}

/* Load libcupti: the one that is in this process already, as torch brings one, else the one that is named. */
static int load_cupti(void)
{
    const char *path = NULL;
    dl_iterate_phdr(find_cupti, &path);
    path = path ? path : getenv("GPUSTREAMLAB_RECORD_CUPTI");
    void *library = path ? dlopen(path, RTLD_LAZY | RTLD_LOCAL) : NULL;
    if (!library)
        return -1;
    cupti.version = dlsym(library, "cuptiGetVersion"), cupti.timestamp = dlsym(library, "cuptiGetTimestamp");
    cupti.set_clock = dlsym(library, "cuptiActivityRegisterTimestampCallback");
    cupti.register_buffers = dlsym(library, "cuptiActivityRegisterCallbacks");
    cupti.enable = dlsym(library, "cuptiActivityEnable"), cupti.flush = dlsym(library, "cuptiActivityFlushAll");
    cupti.next = dlsym(library, "cuptiActivityGetNextRecord");
    cupti.dropped = dlsym(library, "cuptiActivityGetNumDroppedRecords");
    cupti.subscribe = dlsym(library, "cuptiSubscribe"), cupti.follow = dlsym(library, "cuptiEnableCallback");
    cupti.callback_name = dlsym(library, "cuptiGetCallbackName"), cupti.explain = dlsym(library, "cuptiGetResultString");
    int has_all = cupti.version && cupti.timestamp && cupti.register_buffers && cupti.enable && cupti.flush && cupti.next &&
                  cupti.subscribe && cupti.follow && cupti.callback_name;
    return has_all && !cupti.version(&head.cupti_version) ? 0 : -1;
}

/* Yield the numbers that a variable lists, one a call. */
static int next_number(const char **text)
{
    char *end;
    long number = *text ? strtol(*text, &end, 10) : 0;
    if (!*text || end == *text)
        return 0;
    *text = *end ? end + 1 : end;
    return (int)number;
}

static void tell(const char *what, int code)
{
    const char *why = NULL;
    if (code && !problem[0]) {
        if (!cupti.explain || cupti.explain(code, &why) || !why)
            why = "an unknown error";
        snprintf(problem, sizeof problem, "%s: CUPTI said %s (%d)", what, why, code);
    }
}

static void switch_on(void)
{
    uint64_t now = 0, wall = wall_ns();
    const char *text = getenv("GPUSTREAMLAB_RECORD_KINDS");
    void *subscriber = NULL;
    if (!cupti.timestamp(&now) && (now > wall ? now - wall : wall - now) > SAME_CLOCK_NS && cupti.set_clock)
        cupti.set_clock(wall_ns); /* calls are told by the wall clock */
    int code = cupti.register_buffers(request_buffer, complete_buffer), number;
    tell("kernels could not be recorded", code);
    while (!code && (number = next_number(&text))) {
        int refused = cupti.enable(number);
        if (number == KERNEL) /* others may be unknown to a version */
            tell("kernels could not be recorded", refused);
    }
    code = cupti.subscribe(&subscriber, follow, NULL);
    tell("calls of CUDA could not be recorded", code);
    for (uint32_t i = 1; !code && i < FUNCTIONS; i++)
        if (is_followed[i] || ends[i])
            cupti.follow(1, subscriber, DRIVER_API, i);
}

static void read_numbers(const char *name, uint8_t *into)
{
    const char *text = getenv(name);
    for (int number; (number = next_number(&text));)
        if (number > 0 && number < FUNCTIONS)
            into[number] = 1;
}

/* Say what is noted of calls, and what may be asked of the driver about functions and streams. */
static void read_shapes(void)
{
    const char *text = getenv("GPUSTREAMLAB_RECORD_SHAPES"), *asked = getenv("GPUSTREAMLAB_RECORD_QUESTIONS");
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *questions[16] = {NULL};
    char names[512], *rest = names, *one;
    snprintf(names, sizeof names, "%s", asked ? asked : "");
    for (int i = 0; library && i < 16 && (one = strsep(&rest, ",")); i++)
        questions[i] = dlsym(library, one);
    set_driver(questions);
    for (char *end; text && *text; text = *end ? end + 1 : end) {
        uint32_t function = (uint32_t)strtoul(text, &end, 10);
        uint64_t packed = strtoull(*end ? end + 1 : end, &end, 16);
        struct shape shape;
        memcpy(&shape, &packed, sizeof shape);
        if (function < FUNCTIONS)
            set_shape(function, shape), kinds[function] = shape.kind;
    }
}

static int open_file(const char *stem)
{
    char name[4096];
    memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    for (int i = 1; file < 0 && i < 100; i++) { /* a process that became another program has one already */
        int length = snprintf(name, sizeof name, i > 1 ? "%s-%d-%d.gsl" : "%s-%d.gsl", stem, (int)getpid(), i);
        if (length >= (int)sizeof name)
            return -1;
        file = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST)
            return -1;
    }
    return file < 0 || memory < 0 ? -1 : 0;
}

/* The driver calls this, once in a process, in the thread of the first call of CUDA. */
int InitializeInjection(void)
{
    const char *stem = getenv("GPUSTREAMLAB_RECORD"), *limit = getenv("GPUSTREAMLAB_RECORD_LIMIT");
    const char *last = getenv("GPUSTREAMLAB_RECORD_LAST");
    sigset_t all, before;
    pthread_t writer;
    if (!stem || load_cupti() || set_up(BUFFER_BYTES, BUFFERS) || set_up_calls() || open_file(stem))
        return 1; /* the program goes on without us */
    if (head.cupti_version < FIRST_THAT_MAY_REFUSE)
        refuse_nobody();
    limit_bytes = limit ? strtoull(limit, NULL, 10) : 0;
    limit_bytes = limit_bytes ? limit_bytes : 1u << 30;
    last_ns = last ? strtoull(last, NULL, 10) * 1000000u : 0;
    head.pid = (uint64_t)getpid(), head.begin = place = (sizeof head + 7) / 8 * 8;
    write_head();
    read_numbers("GPUSTREAMLAB_RECORD_CALLS", is_followed);
    read_numbers("GPUSTREAMLAB_RECORD_ENDS", ends);
    read_shapes();
    switch_on();
    flushed_ns = read_clock(CLOCK_MONOTONIC);
    begin_segment();
    pthread_atfork(NULL, NULL, leave_to_parent);
    atexit(finish);
    sigfillset(&all); /* the program's signals are its own threads' */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&writer, NULL, write_on, NULL))
        pthread_detach(writer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return 1;
}
