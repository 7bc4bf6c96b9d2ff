/* What CUPTI calls: for an empty buffer, with a full one, and at each call of the driver that is followed; without Python.
 *
 * CUPTI may hold a lock of its own while it calls, and a thread of Python may enter CUDA with the interpreter's lock held: callbacks
 * that wait for the interpreter then wait for ever. The lock in here is held for nanoseconds, and nothing waits for Python in it.
 * _buffers.py compiles this and calls it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum place { FREE, LENT, FULL, TAKEN };

struct buffer {
    enum place place;
    uint64_t valid_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *arena; /* all buffers, one behind the other; never unmapped, as CUPTI calls until the process ends */
static size_t stride_bytes, buffer_bytes;
static uint64_t buffer_count, free_count, first_full, full_count;
static struct buffer *buffers;
static uint64_t *free_ones; /* a stack: what was used last is lent first */
static uint64_t *full_ones; /* a ring: `full_count` of them from `first_full` on */
static uint8_t *spill;      /* lent where no buffer is free, to any number of askers; nobody reads it. None: they get nothing */
static uint64_t spilt_bytes;

/* Return the index of the buffer that begins at an address, or `buffer_count`. */
static uint64_t index_of(uint8_t *address)
{
    uint64_t offset = (uintptr_t)address - (uintptr_t)arena; /* of a lower address: too large */
    uint64_t index = offset / stride_bytes;
    return offset % stride_bytes == 0 && index < buffer_count ? index : buffer_count;
}

/* Make the buffers, once; return 0 if that has worked. Only what CUPTI writes takes memory. */
int set_up(size_t bytes, uint64_t count)
{
    if (buffers)
        return -1;
    stride_bytes = (bytes + 63) / 64 * 64; /* CUPTI wants them aligned */
    buffer_bytes = bytes;
    void *memory = mmap(NULL, stride_bytes * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    free_ones = calloc(count, sizeof *free_ones);
    full_ones = calloc(count, sizeof *full_ones);
    buffers = calloc(count, sizeof *buffers);
    if (memory == MAP_FAILED || !free_ones || !full_ones || !buffers)
        return -1;
    arena = memory;
    while (free_count < count) {
        free_ones[free_count] = count - 1 - free_count;
        free_count++;
    }
    buffer_count = count;
    return 0;
}

/* Let no asker go without a buffer: CUPTI before 12.9 crashes there (pytorch/kineto#1275). Return 0 if that has worked. */
int refuse_nobody(void)
{
    void *memory = mmap(NULL, buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    spill = memory;
    return 0;
}

/* CUpti_BuffersCallbackRequestFunc: give CUPTI a buffer, or none. */
void request_buffer(uint8_t **address, size_t *size, size_t *most_records)
{
    *address = NULL;
    *size = 0;
    *most_records = 0; /* as many as fit */
    pthread_mutex_lock(&lock);
    if (free_count) {
        uint64_t index = free_ones[--free_count];
        buffers[index].place = LENT;
        *address = arena + index * stride_bytes;
        *size = buffer_bytes;
    } else if (spill) {
        *address = spill;
        *size = buffer_bytes;
    }
    pthread_mutex_unlock(&lock);
}

/* CUpti_BuffersCallbackCompleteFunc: take a buffer back from CUPTI; not another client's, and none twice. */
void complete_buffer(void *context, uint32_t stream, uint8_t *address, size_t size, size_t valid_bytes)
{
    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&lock);
    uint64_t index = index_of(address);
    if (index < buffer_count && buffers[index].place == LENT) {
        buffers[index].place = FULL;
        buffers[index].valid_bytes = valid_bytes < buffer_bytes ? valid_bytes : buffer_bytes;
        full_ones[(first_full + full_count++) % buffer_count] = index;
    } else if (spill && address == spill) {
        spilt_bytes += valid_bytes < buffer_bytes ? valid_bytes : buffer_bytes;
    }
    pthread_mutex_unlock(&lock);
}

/* For Python: take the full buffer that was completed first; return its address, or NULL if there is none. */
uint8_t *take_full(uint64_t *valid_bytes)
{
    uint8_t *address = NULL;
    pthread_mutex_lock(&lock);
    if (full_count) {
        uint64_t index = full_ones[first_full];
        first_full = (first_full + 1) % buffer_count;
        full_count--;
        buffers[index].place = TAKEN;
        *valid_bytes = buffers[index].valid_bytes;
        address = arena + index * stride_bytes;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

/* For Python: let a buffer that was taken be lent again; nothing to do for any other. */
void give_back(uint8_t *address)
{
    pthread_mutex_lock(&lock);
    uint64_t index = index_of(address);
    if (index < buffer_count && buffers[index].place == TAKEN) {
        buffers[index].place = FREE;
        free_ones[free_count++] = index;
    }
    pthread_mutex_unlock(&lock);
}

/* For Python: how many buffers wait to be taken. */
uint64_t count_full(void)
{
    pthread_mutex_lock(&lock);
    uint64_t full = full_count;
    pthread_mutex_unlock(&lock);
    return full;
}

/* For Python: how many bytes of records found no buffer since this was asked last. */
uint64_t take_spilt_bytes(void)
{
    pthread_mutex_lock(&lock);
    uint64_t bytes = spilt_bytes;
    spilt_bytes = 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* Calls of the driver, in a ring that any thread writes and one reads. It has no lock: threads that launch at once must not wait
 * for each other, and activity records of calls cost more than all the rest (docs/explanations/decisions/0036). Slots are taken by
 * moving `call_head`, and can be read once the first one's `ticket` says so: a thread that is interrupted in between holds up the
 * reader, and nobody who writes. A call takes one slot, and one more for each `WORDS` words that it brings.
 */
enum { CALLS = 1 << 20, WORDS = 7, MOST_WORDS = 512, ENTER = 0 };

/* The first fields of CUpti_CallbackData. */
struct callback_data {
    int site; /* where the call is: at its begin, or about to return */
    const char *function_name;
    const void *parameters;
    const int *return_value;
    const char *symbol_name;
    void *context;
    uint32_t context_number;
    uint64_t *own; /* kept from the begin of a call to its end */
    uint32_t number;
};

struct call {
    uint64_t start_ns, end_ns;
    uint32_t thread, number;
    uint16_t function, word_count;
    uint32_t flags; /* see `enum flag` */
    uint64_t stream, object, size; /* what the call's shape says; of a launch the function, and what stands for its numbers */
};

enum flag { FAILED = 1, OPAQUE = 2, NON_BLOCKING = 4, BLOCKING = 8, PER_THREAD = 16, POINTERS = 32 };

struct slot {
    _Atomic uint64_t ticket; /* which turn has been written, counted from 1; 0 where it holds words of the call before it */
    union {
        struct call call;
        uint64_t words[WORDS];
    };
};

static struct slot *ring;
static _Atomic uint64_t call_head, call_tail, calls_lost;

/* What of a call's parameters is noted. Python tells it by the functions' numbers (_arguments.py): kind, and where in words of 8
 * bytes, counted from 1, the stream, the object, the size and one more stand; 0 for nowhere. `scale` is bytes of an element.
 */
enum kind { PLAIN, MADE, PLACED, PITCHED, ASKED, LAUNCH, LAUNCH_EX, COPY, COPY_2D, COPY_3D, FILL_2D, UNLOAD, DESTROY, NAMED };

struct shape {
    uint8_t kind, stream, object, size, other, scale, per_thread, from_host;
};

enum { FUNCTIONS = 2048 };
static struct shape shapes[FUNCTIONS];

void set_shape(uint32_t function, struct shape shape)
{
    if (function < FUNCTIONS)
        shapes[function] = shape;
}

/* Which memory there is, by pages of 2 MiB: what was ever allocated, and what the reader found to be no memory. A word of a
 * parameter is noted unless it is known to be no address; which allocation it lies in, the reader finds, who has all in order.
 */
enum { PAGE_BITS = 21, ADDRESS_BITS = 48 };
enum page { UNSEEN, HELD, EMPTY };
static _Atomic uint8_t *pages;

static void hold(uint64_t address, uint64_t bytes)
{
    if (!pages || !address || address >> ADDRESS_BITS || !bytes || bytes > ((uint64_t)1 << ADDRESS_BITS) - address)
        return;
    for (uint64_t page = address >> PAGE_BITS; page <= (address + bytes - 1) >> PAGE_BITS; page++)
        if (atomic_load_explicit(pages + page, memory_order_relaxed) != HELD)
            atomic_store_explicit(pages + page, HELD, memory_order_relaxed);
}

/* For Python: there is memory here, or `bytes` is 0: at this address there is none. */
void tell_memory(uint64_t address, uint64_t bytes)
{
    uint8_t unseen = UNSEEN;
    if (bytes)
        hold(address, bytes);
    else if (pages && !(address >> ADDRESS_BITS))
        atomic_compare_exchange_strong(pages + (address >> PAGE_BITS), &unseen, EMPTY);
}

static int may_be_address(uint64_t word)
{
    if (word >> ADDRESS_BITS || !(word >> PAGE_BITS))
        return 0;
    uint8_t page = atomic_load_explicit(pages + (word >> PAGE_BITS), memory_order_relaxed);
    return page == HELD || (page == UNSEEN && word >> 32);
}

/* The driver's questions; each may be missing. */
typedef int (*parameter_info)(void *, size_t, size_t *, size_t *);
typedef int (*name_info)(const char **, void *);
static struct driver {
    parameter_info function_parameter, kernel_parameter;
    int (*kernel_function)(void **, void *);
    name_info function_name, kernel_name;
    int (*stream_flags)(void *, unsigned *);
    int (*is_capturing)(void *, int *);
} driver;

void set_driver(const struct driver *given)
{
    driver = *given;
}

/* Parameters by function, each found once. Where code is unloaded, a function's handle may be
 * another one's afterwards, so what is known is of a `generation`. Layouts lie behind each other in `layouts` and never move.
 */
struct parameter {
    uint16_t index, offset, size;
};

struct layout {
    uint64_t generation;
    uint32_t count, name_bytes; /* `UNKNOWN` of them where the driver does not tell; the name stands behind them */
    struct parameter parameters[];
};

struct known {
    _Atomic uint64_t handle;
    struct layout *_Atomic layout;
};

enum { KNOWN = 1 << 15, PROBES = 64, LAYOUT_BYTES = 1 << 25, MOST_PARAMETERS = 1024, MOST_OF_NAME = 4096 };
static const uint32_t UNKNOWN = UINT32_MAX;
static struct known *known;
static uint8_t *layouts;
static _Atomic uint64_t layout_bytes, generation = 1;

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Make the ring and the tables, once; return 0 if that has worked. Only what is written takes memory. */
int set_up_calls(void)
{
    if (ring)
        return 0;
    ring = map(CALLS * sizeof *ring);
    layouts = map(LAYOUT_BYTES); /* without these three, arguments are not known */
    pages = map((size_t)1 << (ADDRESS_BITS - PAGE_BITS));
    if (layouts && pages)
        known = map(KNOWN * sizeof *known);
    return ring ? 0 : -1;
}

static uint64_t hash(uint64_t handle)
{
    return (handle >> 4) * 0x9E3779B97F4A7C15u >> 40;
}

/* Return where a function is in the table, or may be put; NULL where there is no room. */
static struct known *find_known(uint64_t handle)
{
    for (uint64_t probe = 0, place = hash(handle); probe < PROBES; probe++, place++) {
        struct known *one = known + place % KNOWN;
        uint64_t there = atomic_load_explicit(&one->handle, memory_order_acquire);
        if (!there && atomic_compare_exchange_strong(&one->handle, &there, handle))
            return one;
        if (there == handle)
            return one;
    }
    return NULL;
}

/* Ask the driver for a function's parameters. One that was launched by the runtime may be a CUkernel. */
static struct layout *ask_layout(void *function, uint64_t now)
{
    struct parameter found[MOST_PARAMETERS];
    uint32_t count = 0;
    size_t offset, size, index = 0;
    void *of_kernel;
    const char *name = NULL;
    parameter_info ask = driver.function_parameter;
    name_info ask_name = driver.function_name;
    int code = ask ? ask(function, 0, &offset, &size) : -1;
    int is_function = ask && !code;
    if (!is_function && driver.kernel_parameter && driver.kernel_function && !driver.kernel_function(&of_kernel, function)) {
        ask = driver.kernel_parameter, ask_name = driver.kernel_name;
        code = ask(function, 0, &offset, &size);
        is_function = 1;
    }
    for (; !code; code = ask(function, ++index, &offset, &size)) {
        if (count == MOST_PARAMETERS || offset + size > UINT16_MAX || index > UINT16_MAX) {
            is_function = 0, count = 0;
            break;
        }
        found[count++] = (struct parameter){index, offset, size};
    }
    /* Without any parameter the answer is as for a wrong handle: a function of which only the name is known. */
    if (ask_name && ask_name(&name, function))
        name = NULL;
    is_function = is_function || name;
    size_t name_bytes = name ? strnlen(name, MOST_OF_NAME) : 0;
    size_t bytes = sizeof(struct layout) + count * sizeof *found + name_bytes;
    bytes = (bytes + 7) / 8 * 8;
    uint64_t begin = atomic_fetch_add(&layout_bytes, bytes);
    if (begin + bytes > LAYOUT_BYTES)
        return NULL;
    struct layout *layout = (struct layout *)(layouts + begin);
    *layout = (struct layout){.generation = now, .count = is_function ? count : UNKNOWN, .name_bytes = name_bytes};
    memcpy(layout->parameters, found, count * sizeof *found);
    if (name)
        memcpy(layout->parameters + count, name, name_bytes);
    return layout;
}

static struct layout *find_layout(void *function)
{
    struct known *place = known ? find_known((uintptr_t)function) : NULL;
    if (!place)
        return NULL;
    uint64_t now = atomic_load_explicit(&generation, memory_order_acquire);
    struct layout *layout = atomic_load_explicit(&place->layout, memory_order_acquire);
    if (!layout || layout->generation != now) {
        layout = ask_layout(function, now);
        if (layout)
            atomic_store_explicit(&place->layout, layout, memory_order_release);
    }
    return layout;
}

/* For Python: copy the name of a function that was launched; return its length, 0 where it is not known. */
uint64_t function_name(uint64_t function, char *into, uint64_t most)
{
    for (uint64_t probe = 0, place = hash(function); known && probe < PROBES; probe++, place++) {
        struct known *one = known + place % KNOWN;
        if (atomic_load(&one->handle) != function)
            continue;
        struct layout *layout = atomic_load(&one->layout);
        if (!layout)
            return 0;
        uint64_t bytes = layout->name_bytes < most ? layout->name_bytes : most;
        memcpy(into, layout->parameters + (layout->count == UNKNOWN ? 0 : layout->count), bytes);
        return bytes;
    }
    return 0;
}

/* The parameters as one buffer, as `extra` gives them: a list of markers and values. */
static const uint8_t *packed_parameters(void *const *extra, size_t *bytes)
{
    const uint8_t *buffer = NULL;
    *bytes = 0;
    for (int i = 0; extra && extra[i] && i < 8; i += 2) {
        if ((uintptr_t)extra[i] == 1)
            buffer = extra[i + 1];
        else if ((uintptr_t)extra[i] == 2)
            *bytes = *(const size_t *)extra[i + 1];
    }
    return buffer;
}

/* Find the words of a launch's parameters that may be addresses, each with its place among them in the upper bits. All else
 * goes into one number: launches that differ in it may use different parts of the same memory.
 */
static void read_arguments(struct call *call, void *const *given, void *const *extra, uint64_t *words)
{
    struct layout *layout = find_layout((void *)(uintptr_t)call->object);
    size_t packed_bytes = 0;
    const uint8_t *packed = given ? NULL : packed_parameters(extra, &packed_bytes);
    if (!layout || layout->count == UNKNOWN || (layout->count && !given && !packed)) {
        call->flags |= OPAQUE;
        return;
    }
    for (uint32_t i = 0; i < layout->count; i++) {
        struct parameter one = layout->parameters[i];
        if (!given && (size_t)one.offset + one.size > packed_bytes)
            break;
        const uint8_t *bytes = given ? given[one.index] : packed + one.offset;
        uint32_t place = 0;
        for (uint32_t left; (left = one.size - place); place += left < 8 ? left : 8) {
            uint64_t word = 0;
            memcpy(&word, bytes + place, left < 8 ? left : 8);
            if (left < 8 || (one.offset + place) % 8 || !may_be_address(word))
                call->size = (call->size ^ word) * 0x9E3779B97F4A7C15u, call->size ^= call->size >> 29;
            else if (call->word_count < MOST_WORDS)
                words[call->word_count++] = word | (uint64_t)((one.offset + place) / 8) << ADDRESS_BITS;
            else
                call->flags |= OPAQUE;
        }
    }
}

/* Whether streams wait for the legacy default stream, asked once for each. */
enum { STREAMS = 1 << 12, STREAM_PROBES = 8 };
static _Atomic uint64_t streams[STREAMS]; /* handle and flag */

static uint32_t stream_flag(uint64_t stream)
{
    if (stream <= 2)
        return 0;
    _Atomic uint64_t *room = streams + hash(stream) % STREAMS;
    for (int probe = 0; probe < STREAM_PROBES; probe++) {
        _Atomic uint64_t *place = streams + (hash(stream) + probe) % STREAMS;
        uint64_t there = atomic_load_explicit(place, memory_order_relaxed);
        if (there >> 8 == stream)
            return there & 0xFF;
        if (!there)
            room = place;
    }
    unsigned flags;
    int capture = 0;
    /* Asked in the midst of a capture into a graph, it breaks the capture (H200, driver 580.159). */
    if (!driver.stream_flags || !driver.is_capturing || driver.is_capturing((void *)(uintptr_t)stream, &capture) || capture)
        return 0;
    if (driver.stream_flags((void *)(uintptr_t)stream, &flags))
        return 0;
    uint32_t flag = flags & 1 ? NON_BLOCKING : BLOCKING;
    atomic_store_explicit(room, stream << 8 | flag, memory_order_relaxed);
    return flag;
}

/* For Python: recording begins; what was done before it was not seen. */
void begin_calls(void)
{
    atomic_fetch_add(&generation, 1);
    for (int i = 0; i < STREAMS; i++)
        atomic_store_explicit(streams + i, 0, memory_order_relaxed);
    if (pages)
        madvise(pages, (size_t)1 << (ADDRESS_BITS - PAGE_BITS), MADV_DONTNEED);
}

static void forget_stream(uint64_t stream)
{
    for (int probe = 0; probe < STREAM_PROBES; probe++) {
        _Atomic uint64_t *place = streams + (hash(stream) + probe) % STREAMS;
        if (atomic_load_explicit(place, memory_order_relaxed) >> 8 == stream)
            atomic_store_explicit(place, 0, memory_order_relaxed);
    }
}

/* The ends of a rectangular or a box-shaped copy: CUDA_MEMCPY2D and CUDA_MEMCPY3D, in words; an array has no address. */
static void read_end(const uint64_t *end, int dimensions, const uint64_t *lengths, uint64_t *address, uint64_t *bytes)
{
    const uint64_t *from = end + dimensions + (dimensions == 3); /* behind x, y (and z, and the level) */
    uint32_t memory = (uint32_t)from[0];
    uint64_t pitch = dimensions == 2 ? from[4] : from[5], rows = dimensions == 2 ? 0 : from[6];
    uint64_t depth = dimensions == 3 ? lengths[2] : 1, z = dimensions == 3 ? end[2] : 0;
    *address = memory == 1 ? from[1] : memory == 2 || memory == 4 ? from[2] : 0;
    *bytes = 0;
    if (*address && lengths[0] && lengths[1] && depth) {
        *address += (z * rows + end[1]) * pitch + end[0];
        *bytes = ((depth - 1) * rows + lengths[1] - 1) * pitch + lengths[0];
    }
}

/* Whether there is an address of memory among the few words that a copy takes from the host. The system is asked for them, as the
 * source may be no memory of the host after all. Of a page that nobody looked at yet an address counts only where CUDA puts its
 * memory: lower words are more often two small numbers.
 */
enum { UNIFIED_BITS = 44, UNIFIED = 7 }; /* 0x7... of 47 bits */
static int holds_addresses(uint64_t source, uint64_t bytes)
{
    uint64_t data[MOST_WORDS];
    struct iovec here = {data, bytes / sizeof *data * sizeof *data}, there = {(void *)(uintptr_t)source, here.iov_len};
    int code = errno;
    if (!pages || !here.iov_len || bytes > sizeof data || process_vm_readv(getpid(), &here, 1, &there, 1, 0) < 0) {
        errno = code;
        return 0;
    }
    for (uint64_t i = 0; i < here.iov_len / sizeof *data; i++) {
        if (data[i] >> ADDRESS_BITS)
            continue;
        uint8_t page = atomic_load_explicit(pages + (data[i] >> PAGE_BITS), memory_order_relaxed);
        if (page == HELD || (page == UNSEEN && data[i] >> UNIFIED_BITS == UNIFIED))
            return 1;
    }
    return 0;
}

static uint64_t at(const void *parameters, unsigned place)
{
    return place && parameters ? ((const uint64_t *)parameters)[place - 1] : 0;
}

/* Note what a call is about. `words` has room for `MOST_WORDS`. */
static void read_call(struct call *call, struct shape shape, const void *parameters, uint64_t *words)
{
    call->stream = at(parameters, shape.stream);
    call->object = at(parameters, shape.object);
    call->size = at(parameters, shape.size) * (shape.scale ? shape.scale : 1);
    call->flags |= shape.per_thread ? PER_THREAD : 0;
    const uint64_t *structure;
    switch (shape.kind) {
    case MADE:
        call->object = call->object ? *(const uint64_t *)(uintptr_t)call->object : 0;
        hold(call->object, call->size);
        break;
    case NAMED:
        call->object = call->object ? *(const uint64_t *)(uintptr_t)call->object : 0;
        break;
    case PLACED:
        hold(call->object, call->size);
        break;
    case PITCHED: /* the pitch is an output, and the rows are the size */
        call->object = *(const uint64_t *)(uintptr_t)call->object;
        call->size *= *(const uint64_t *)(uintptr_t)at(parameters, shape.other);
        hold(call->object, call->size);
        break;
    case LAUNCH_EX:
        call->stream = ((const uint64_t *)(uintptr_t)call->stream)[4]; /* of CUlaunchConfig */
        /* fall through */
    case LAUNCH: /* the size is where the arguments are */
        structure = (const uint64_t *)(uintptr_t)call->size;
        call->size = 0;
        read_arguments(call, (void *const *)structure, (void *const *)(uintptr_t)at(parameters, shape.other), words);
        break;
    case COPY:
        words[call->word_count++] = at(parameters, shape.other);
        words[call->word_count++] = call->size;
        if (shape.from_host && holds_addresses(words[0], call->size))
            call->flags |= POINTERS;
        break;
    case COPY_2D:
    case COPY_3D:
        structure = (const uint64_t *)(uintptr_t)call->object;
        int dimensions = shape.kind == COPY_2D ? 2 : 3;
        int half = dimensions == 2 ? 7 : 11;
        read_end(structure + half, dimensions, structure + 2 * half, &call->object, &call->size);
        read_end(structure, dimensions, structure + 2 * half, words, words + 1);
        call->word_count = 2;
        break;
    case FILL_2D: /* the size is the width; the pitch and the height stand before and behind */
        if (call->size)
            call->size += (at(parameters, shape.size + 1) - 1) * at(parameters, shape.other);
        break;
    default:
        break;
    }
    if (call->stream && shape.kind != DESTROY)
        call->flags |= stream_flag(call->stream);
}

/* The wall clock, by which CUPTI tells all its times. */
static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void write_call(const struct call *call, const uint64_t *words)
{
    uint64_t more = (call->word_count + WORDS - 1) / WORDS, ticket = atomic_load_explicit(&call_head, memory_order_relaxed);
    do {
        if (ticket + 1 + more - atomic_load_explicit(&call_tail, memory_order_acquire) > CALLS) {
            atomic_fetch_add_explicit(&calls_lost, 1, memory_order_relaxed);
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&call_head, &ticket, ticket + 1 + more, memory_order_relaxed,
                                                    memory_order_relaxed));
    for (uint64_t i = 0; i < more; i++) {
        struct slot *slot = ring + (ticket + 1 + i) % CALLS;
        uint64_t left = call->word_count - i * WORDS;
        atomic_store_explicit(&slot->ticket, 0, memory_order_relaxed);
        memcpy(slot->words, words + i * WORDS, (left < WORDS ? left : WORDS) * sizeof *words);
    }
    struct slot *slot = ring + ticket % CALLS;
    slot->call = *call;
    atomic_store_explicit(&slot->ticket, ticket + 1, memory_order_release);
}

/* CUpti_CallbackFunc: note when a call of the driver began and ended, and what it was about. */
void note_call(void *unused, int domain, uint32_t function, const struct callback_data *data)
{
    (void)unused, (void)domain;
    struct shape shape = function < FUNCTIONS ? shapes[function] : (struct shape){0};
    if (shape.kind == UNLOAD)
        atomic_fetch_add(&generation, 1);
    if (data->site == ENTER) {
        *data->own = now_ns();
        if (shape.kind == DESTROY)
            forget_stream(at(data->parameters, shape.stream));
        return;
    }
    struct call call = {.start_ns = *data->own, .end_ns = now_ns(), .number = data->number, .function = (uint16_t)function};
    uint64_t words[MOST_WORDS];
    call.thread = (uint32_t)(uintptr_t)pthread_self(); /* as CUPTI's records have it */
    if (data->return_value && *data->return_value) {
        if (shape.kind == ASKED)
            return;
        call.flags = FAILED;
    } else if (data->parameters)
        read_call(&call, shape, data->parameters, words);
    write_call(&call, words);
}

/* For Python: move the oldest calls out of the ring, and their words behind each other; return how many calls. One thread at a
 * time.
 */
uint64_t take_calls(struct call *into, uint64_t most, uint64_t *words, uint64_t most_words)
{
    uint64_t tail = atomic_load_explicit(&call_tail, memory_order_relaxed), count = 0;
    while (count < most) {
        struct slot *slot = ring + tail % CALLS;
        if (atomic_load_explicit(&slot->ticket, memory_order_acquire) != tail + 1 || slot->call.word_count > most_words)
            break;
        into[count] = slot->call;
        most_words -= slot->call.word_count;
        tail++;
        for (uint64_t left = into[count].word_count; left; tail++) {
            uint64_t here = left < WORDS ? left : WORDS;
            memcpy(words, ring[tail % CALLS].words, here * sizeof *words);
            words += here, left -= here;
        }
        count++;
    }
    atomic_store_explicit(&call_tail, tail, memory_order_release);
    return count;
}

/* For Python: how many slots of the ring are taken. */
uint64_t count_calls(void)
{
    return atomic_load(&call_head) - atomic_load(&call_tail);
}

/* For Python: how many calls found the ring full since this was asked last. */
uint64_t take_lost_calls(void)
{
    return atomic_exchange(&calls_lost, 0);
}

/* Records of CUPTI, read without Python's lock: each begins with its kind, and behind one whose size is not known nobody can read. */
enum { KINDS = 256, UNIT = 8, AHEAD = 16 /* records, as most are like the one before */ };

struct stretch {
    const uint8_t *data;
    uint64_t bytes;
};

struct field {
    uint64_t kind, offset, bytes;
    uint8_t *into;
};

/* For Python: count the records of each kind, and cut each buffer behind the last one that is whole. */
void count_records(struct stretch *buffers, uint64_t buffer_total, const uint64_t *sizes, uint64_t *counts)
{
    for (uint64_t i = 0; i < buffer_total; i++) {
        uint64_t place = 0, end = buffers[i].bytes / UNIT * UNIT, size;
        while (place < end && (size = sizes[buffers[i].data[place]]) && size <= end - place) {
            __builtin_prefetch(buffers[i].data + place + AHEAD * size);
            counts[buffers[i].data[place]]++;
            place += size;
        }
        buffers[i].bytes = place;
    }
}

/* For Python: copy the fields, given by kind, of buffers that were counted. */
void split_records(const struct stretch *buffers, uint64_t buffer_total, const uint64_t *sizes, struct field *fields, uint64_t field_total)
{
    uint64_t first[KINDS + 1] = {0};
    for (uint64_t i = 0; i < field_total; i++)
        first[fields[i].kind + 1] = i + 1;
    for (int kind = 0; kind < KINDS; kind++)
        if (first[kind + 1] < first[kind])
            first[kind + 1] = first[kind];
    for (uint64_t i = 0; i < buffer_total; i++) {
        const uint8_t *record = buffers[i].data, *end = record + buffers[i].bytes;
        for (uint8_t kind; record < end; record += sizes[kind]) {
            kind = *record;
            __builtin_prefetch(record + AHEAD * sizes[kind]);
            for (struct field *field = fields + first[kind]; field < fields + first[kind + 1]; field++) {
                if (field->bytes == 4)
                    memcpy(field->into, record + field->offset, 4);
                else if (field->bytes == 8)
                    memcpy(field->into, record + field->offset, 8);
                else
                    memcpy(field->into, record + field->offset, field->bytes);
                field->into += field->bytes;
            }
        }
    }
}

/* Which memory calls touched, read in their order without Python's lock: _accesses.py holds all that is known, and goes on where
 * this one stops. The numbers of roles are those of _arguments.py.
 */
enum role { IDLE, IS_LAUNCH, IS_COPY, IS_FILL, IS_UNKNOWN, ALLOCATES, ALLOCATES_HOST, FREES, FREES_ASYNC = 17, ALLOCATES_ASYNC, PASSED = 255 };
enum stop { DONE, ASK_MEMORY, ASK_FUNCTION, GROW, OTHER };
enum { ROLES = 1 << 16, SLOTS = 1 << 17, PLACES = 4096, NOWHERE = 8192, GRAIN_BITS = 8, COLUMNS = 5, WAS_WRITTEN = -1 };
enum of_access { WRITES = 1, OF_HOST = 2, SURELY_WRITES = 16 /* for steps alone */ };
enum of_function { SPINS = 1, HIDES = 2 };
static const uint64_t ADDRESS = ((uint64_t)1 << ADDRESS_BITS) - 1, SEGMENT = (1 << 21) - 1;

struct block {
    uint64_t start, end;
    int64_t number, born; /* how much work of which nothing is known there was before it, or WAS_WRITTEN */
    int64_t made_ns;      /* when the call that made it returned */
    uint64_t stream, flags, is_pool, written_by, has_pointers;
};

struct table { /* of blocks that do not overlap, by address */
    struct block *blocks;
    uint64_t count, room;
};

struct function {
    uint64_t flags, output_count, outputs[PLACES / 64]; /* places among its arguments that are written */
};

struct change { /* of what a library's pool gave out; 0 bytes: took back */
    int64_t wall_ns;
    uint64_t start, bytes, stream;
};

enum what { GONE, IS_MADE, WAITED }; /* a block went, or was made; or the call waits for the device, as it frees memory */
enum cause { BY_CALL = -1, BY_ASKING = -2 };

struct event {
    int64_t call, what, cause; /* the cause may be the index of a change, too */
    struct block block;
};

struct reader {
    struct table memory, parts;
    uint64_t *handles; /* of functions; those of `functions` in the same places */
    uint32_t *places;
    struct function *functions;
    uint64_t function_count, *nowhere, nowhere_count;
    const int64_t *numbers; /* for the next blocks */
    int64_t opaque_count, known, learned, unknown;
    uint64_t has_unseen_pool, is_followed, marks_writes, launch_count;
    /* What is read, and how far */
    const struct call *calls;
    const uint64_t *words;
    const uint8_t *roles;
    const struct change *changes;
    uint64_t call_count, change_count, call, word, change;
    int64_t *rows; /* COLUMNS of them, one `row_room` behind the other */
    uint64_t row_room, row_count, asked;
    struct event *events;
    uint64_t event_count, event_room;
};

/* Return how many blocks of a table begin at an address or before it. */
static uint64_t begun_by(const struct table *table, uint64_t address)
{
    uint64_t low = 0, high = table->count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (table->blocks[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct block *block_at(const struct table *table, uint64_t address)
{
    uint64_t at = begun_by(table, address);
    return at && address < table->blocks[at - 1].end ? table->blocks + at - 1 : NULL;
}

static void tell(struct reader *reader, enum what what, const struct block *block, int64_t cause)
{
    if (reader->is_followed)
        reader->events[reader->event_count++] = (struct event){(int64_t)reader->call, what, cause, *block};
}

static void take_blocks(struct reader *reader, struct table *table, uint64_t start, uint64_t end, int64_t cause)
{
    uint64_t first = begun_by(table, start), last = begun_by(table, end - 1);
    if (first && table->blocks[first - 1].end > start)
        first--;
    if (first >= last)
        return;
    for (uint64_t i = first; i < last; i++)
        tell(reader, GONE, table->blocks + i, cause);
    memmove(table->blocks + first, table->blocks + last, (table->count - last) * sizeof *table->blocks);
    table->count -= last - first;
}

/* For Python, too: put a block in the place of what was there; a table has room for one. */
void put_block(struct reader *reader, struct table *table, const struct block *block, int64_t cause)
{
    take_blocks(reader, table, block->start, block->end, cause);
    uint64_t at = begun_by(table, block->start);
    memmove(table->blocks + at + 1, table->blocks + at, (table->count - at) * sizeof *block);
    table->blocks[at] = *block;
    table->count++;
    if (cause == BY_CALL) /* what a pool had there has gone too */
        take_blocks(reader, &reader->parts, block->start, block->end, cause);
    tell(reader, IS_MADE, block, cause);
}

/* Take what a pool did. */
static void take_change(struct reader *reader)
{
    struct block *block;
    int64_t cause = (int64_t)reader->change++;
    const struct change *change = reader->changes + cause;
    if (!change->bytes) {
        block = block_at(&reader->parts, change->start);
        if (block && block->start == change->start)
            take_blocks(reader, &reader->parts, block->start, block->end, cause);
        return;
    }
    if ((block = block_at(&reader->memory, change->start)))
        block->is_pool = 1;
    struct block made = {.start = change->start, .end = change->start + change->bytes, .number = *reader->numbers++};
    made.born = reader->opaque_count, made.made_ns = change->wall_ns, made.stream = change->stream;
    put_block(reader, &reader->parts, &made, cause);
}

/* Find the memory that an address is in: what a pool gave out, else what the driver did. Return whether Python has to ask. */
static int must_ask(struct reader *reader, uint64_t address, struct block **found)
{
    *found = block_at(&reader->parts, address);
    if (!*found)
        *found = block_at(&reader->memory, address);
    if (*found)
        return 0;
    uint64_t grain = (address >> GRAIN_BITS) + 1;
    for (uint64_t at = grain * 0x9E3779B97F4A7C15u >> 40; reader->nowhere_count; at++) {
        if (reader->nowhere[at % NOWHERE] == grain)
            return 0;
        if (!reader->nowhere[at % NOWHERE])
            break;
    }
    reader->asked = address;
    return 1;
}

static void forget_nowhere(struct reader *reader)
{
    if (reader->nowhere_count)
        memset(reader->nowhere, 0, NOWHERE * sizeof *reader->nowhere);
    reader->nowhere_count = 0;
}

/* For Python: no memory was found at an address; so until some is made. */
void note_nowhere(struct reader *reader, uint64_t address)
{
    if (reader->nowhere_count >= NOWHERE / 2)
        forget_nowhere(reader);
    uint64_t grain = (address >> GRAIN_BITS) + 1, at = grain * 0x9E3779B97F4A7C15u >> 40;
    while (reader->nowhere[at % NOWHERE])
        at++;
    reader->nowhere[at % NOWHERE] = grain;
    reader->nowhere_count++;
}

/* Return what is known of a function; of one that is new only where `flags` say what it is. There is room for it. */
struct function *find_function(struct reader *reader, uint64_t handle, int64_t flags)
{
    uint64_t at = hash(handle) % SLOTS;
    while (reader->places[at] && reader->handles[at] != handle)
        at = (at + 1) % SLOTS;
    if (!reader->places[at]) {
        if (flags < 0)
            return NULL;
        reader->handles[at] = handle;
        reader->functions[reader->function_count].flags = (uint64_t)flags;
        reader->places[at] = (uint32_t)++reader->function_count;
    }
    return reader->functions + reader->places[at] - 1;
}

static void write_row(struct reader *reader, int64_t buffer, uint64_t begin, uint64_t end, uint64_t flags)
{
    int64_t row[COLUMNS] = {reader->calls[reader->call].number, buffer, (int64_t)begin, (int64_t)end, (int64_t)flags};
    for (int column = 0; column < COLUMNS; column++)
        reader->rows[column * reader->row_room + reader->row_count] = row[column];
    reader->row_count++;
}

static int is_output(const struct function *function, uint64_t word)
{
    uint64_t place = (word >> ADDRESS_BITS) % PLACES;
    return function->outputs[place / 64] >> place % 64 & 1;
}

static enum stop read_launch(struct reader *reader, const struct call *call, const uint64_t *words)
{
    struct function *function = find_function(reader, call->object, -1);
    struct block *found[MOST_WORDS];
    uint64_t word[MOST_WORDS], count = 0;
    int is_opaque = (call->flags & OPAQUE) != 0, is_alone = 1, hides = is_opaque;
    if (!function)
        return ASK_FUNCTION;
    for (uint64_t i = 0; i < call->word_count && count < MOST_WORDS; i++) {
        if (must_ask(reader, words[i] & ADDRESS, found + count))
            return ASK_MEMORY;
        if (found[count] && !found[count]->is_pool)
            word[count++] = words[i];
    }
    if (!count && function->flags & SPINS && !is_opaque) {
        write_row(reader, 0, 0, 0, reader->known); /* it is known to touch nothing */
        return DONE;
    }
    hides |= (function->flags & HIDES) != 0;
    for (uint64_t i = 0; i < count; i++)
        hides |= found[i]->has_pointers != 0;
    if (!count || hides)
        reader->opaque_count++; /* it may have written anything */
    for (uint64_t i = 0; i < count; i++) {
        is_alone &= found[i]->number == found[0]->number;
        if (found[i]->born == reader->opaque_count && !is_output(function, word[i])) {
            uint64_t place = (word[i] >> ADDRESS_BITS) % PLACES; /* it was given memory that nobody had written */
            function->outputs[place / 64] |= (uint64_t)1 << place % 64;
            function->output_count++;
        }
    }
    /* One that is given a single piece of memory writes it: what else should it be for. */
    int writes_all = !function->output_count && is_alone, is_learned = function->output_count || (writes_all && count);
    reader->launch_count++;
    for (uint64_t i = 0; i < count; i++)
        if (writes_all || is_output(function, word[i]))
            found[i]->written_by = reader->launch_count;
    for (uint64_t i = 0, before; i < count; i++) {
        struct block *block = found[i];
        uint64_t address = word[i] & ADDRESS;
        int writes = block->written_by == reader->launch_count;
        if (writes || !function->output_count)
            block->born = WAS_WRITTEN;
        for (before = 0; before < i && (word[before] & ADDRESS) != address; before++)
            ;
        if (before < i)
            continue; /* each address once */
        int is_shared = reader->has_unseen_pool && !((block->end - block->start) & SEGMENT); /* by arrays that nobody tells of */
        uint64_t flags = block->flags | (is_learned && !is_shared ? reader->learned : reader->unknown);
        write_row(reader, block->number, address - block->start, block->end - block->start,
                  flags | (writes || !is_learned ? WRITES : 0) | (writes && reader->marks_writes ? SURELY_WRITES : 0));
    }
    if (count && hides)
        write_row(reader, 0, 0, 0, WRITES | reader->unknown);
    return DONE;
}

/* Read a copy or a fill: what it writes, and of a copy where that comes from. */
static enum stop read_exact(struct reader *reader, const struct call *call, const uint64_t *words)
{
    uint64_t address[2] = {call->object, call->word_count > 1 ? words[0] : 0}, size[2] = {call->size, call->word_count > 1 ? words[1] : 0};
    struct block *found[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        if (address[i] && size[i] && must_ask(reader, address[i], found + i))
            return ASK_MEMORY;
    for (int i = 0; i < 2; i++) {
        struct block *block = found[i];
        if (!block || block->is_pool)
            continue;
        if (i == 0)
            block->born = WAS_WRITTEN;
        uint64_t end = size[i] < block->end - address[i] ? address[i] + size[i] : block->end;
        if (i == 0 && (call->flags & POINTERS || (address[i] == block->start && end == block->end)))
            block->has_pointers = call->flags & POINTERS;
        write_row(reader, block->number, address[i] - block->start, end - block->start,
                  block->flags | reader->known | (i ? 0 : reader->marks_writes ? WRITES | SURELY_WRITES : WRITES));
    }
    return DONE;
}

static void allocate(struct reader *reader, const struct call *call, int is_host)
{
    if (!call->object || !call->size || call->object > ADDRESS || call->size > ADDRESS - call->object)
        return;
    forget_nowhere(reader);
    struct block block = {.start = call->object, .end = call->object + call->size, .number = *reader->numbers++};
    block.born = is_host ? WAS_WRITTEN : reader->opaque_count, block.made_ns = (int64_t)call->end_ns;
    block.stream = call->stream, block.flags = is_host ? OF_HOST : 0;
    put_block(reader, &reader->memory, &block, BY_CALL);
}

static void release(struct reader *reader, const struct call *call, int waits)
{
    struct block *block = block_at(&reader->memory, call->object);
    int is_whole = block && block->start == call->object;
    if (is_whole && block->made_ns > (int64_t)call->start_ns)
        return; /* it has been handed out anew before this call returned */
    uint64_t end = call->object + (call->size ? call->size : is_whole ? block->end - block->start : 1);
    if (waits)
        tell(reader, WAITED, &(struct block){0}, BY_CALL);
    take_blocks(reader, &reader->memory, call->object, end, BY_CALL);
    take_blocks(reader, &reader->parts, call->object, end, BY_CALL);
}

/* For Python: read calls up to the last one, or to one before which something has to be asked, or done otherwise. */
enum stop read_accesses(struct reader *reader)
{
    for (; reader->call < reader->call_count; reader->call++) {
        const struct call *call = reader->calls + reader->call;
        const uint64_t *words = reader->words + reader->word;
        enum role role = call->flags & FAILED ? IDLE : (enum role)reader->roles[call->function];
        enum stop stop = DONE;
        uint64_t rest = reader->memory.count + reader->parts.count;
        if (role == IDLE) {
            reader->word += call->word_count;
            continue;
        }
        if (reader->memory.count == reader->memory.room || reader->parts.count == reader->parts.room ||
            (reader->is_followed && reader->event_count + rest + 3 > reader->event_room))
            return GROW;
        if (reader->change < reader->change_count && reader->changes[reader->change].wall_ns <= (int64_t)call->start_ns) {
            take_change(reader);
            reader->call--; /* there may be more, and room is to be looked at */
            continue;
        }
        switch (role) {
        case IS_LAUNCH:
            stop = read_launch(reader, call, words);
            break;
        case IS_COPY:
        case IS_FILL:
            stop = read_exact(reader, call, words);
            break;
        case ALLOCATES:
        case ALLOCATES_HOST:
        case ALLOCATES_ASYNC:
            allocate(reader, call, role == ALLOCATES_HOST);
            break;
        case PASSED:
            break;
        case FREES:
        case FREES_ASYNC:
            release(reader, call, role == FREES);
            break;
        default:
            stop = OTHER;
        }
        if (stop)
            return stop;
        reader->word += call->word_count;
    }
    return DONE;
}
