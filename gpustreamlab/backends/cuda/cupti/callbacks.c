/* What CUPTI calls: for an empty buffer, with a full one, and at each call of the driver that is followed; without Python.
 *
 * CUPTI may hold a lock of its own while it calls, and a thread of Python may enter CUDA with the interpreter's lock held: callbacks
 * that wait for the interpreter then wait for ever. The lock in here is held for nanoseconds, and nothing waits for Python in it.
 * _buffers.py compiles this and calls it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

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
 * for each other, and activity records of calls cost more than all the rest (docs/explanations/decisions/0036). A slot is taken by
 * moving `call_head`, and can be read once its `ticket` says so: a thread that is interrupted in between holds up the reader, and
 * nobody who writes.
 */
enum { CALLS = 1 << 20, ENTER = 0 };

/* The first fields of CUpti_CallbackData. */
struct callback_data {
    int site; /* where the call is: at its begin, or about to return */
    const char *function_name;
    const void *parameters;
    void *return_value;
    const char *symbol_name;
    void *context;
    uint32_t context_number;
    uint64_t *own; /* kept from the begin of a call to its end */
    uint32_t number;
};

struct call {
    uint64_t start_ns, end_ns;
    uint32_t thread, number, function;
    uint32_t padding;
};

struct slot {
    _Atomic uint64_t ticket; /* which turn has been written, counted from 1 */
    struct call call;
};

static struct slot *ring;
static _Atomic uint64_t call_head, call_tail, calls_lost;

/* Make the ring, once; return 0 if that has worked. Only what is written takes memory. */
int set_up_calls(void)
{
    if (ring)
        return 0;
    void *memory = mmap(NULL, CALLS * sizeof *ring, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    ring = memory;
    return 0;
}

/* The wall clock, by which CUPTI tells all its times. */
static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* CUpti_CallbackFunc: note when a call of the driver began and ended. */
void note_call(void *unused, int domain, uint32_t function, const struct callback_data *data)
{
    (void)unused, (void)domain;
    if (data->site == ENTER) {
        *data->own = now_ns();
        return;
    }
    struct call call = {.start_ns = *data->own, .end_ns = now_ns(), .number = data->number, .function = function};
    call.thread = (uint32_t)(uintptr_t)pthread_self(); /* as CUPTI's records have it */
    uint64_t ticket = atomic_load_explicit(&call_head, memory_order_relaxed);
    do {
        if (ticket - atomic_load_explicit(&call_tail, memory_order_acquire) >= CALLS) {
            atomic_fetch_add_explicit(&calls_lost, 1, memory_order_relaxed);
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&call_head, &ticket, ticket + 1, memory_order_relaxed, memory_order_relaxed));
    struct slot *slot = ring + ticket % CALLS;
    slot->call = call;
    atomic_store_explicit(&slot->ticket, ticket + 1, memory_order_release);
}

/* For Python: move the oldest calls out of the ring; return how many. One thread at a time. */
uint64_t take_calls(struct call *into, uint64_t most)
{
    uint64_t tail = atomic_load_explicit(&call_tail, memory_order_relaxed), count = 0;
    while (count < most) {
        struct slot *slot = ring + (tail + count) % CALLS;
        if (atomic_load_explicit(&slot->ticket, memory_order_acquire) != tail + count + 1)
            break;
        into[count++] = slot->call;
    }
    atomic_store_explicit(&call_tail, tail + count, memory_order_release);
    return count;
}

/* For Python: how many calls wait in the ring. */
uint64_t count_calls(void)
{
    return atomic_load(&call_head) - atomic_load(&call_tail);
}

/* For Python: how many calls found the ring full since this was asked last. */
uint64_t take_lost_calls(void)
{
    return atomic_exchange(&calls_lost, 0);
}
