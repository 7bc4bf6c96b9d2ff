/* What CUPTI calls for an empty buffer and with a full one, without Python and its lock.
 *
 * CUPTI may hold a lock of its own while it calls, and a thread of Python may enter CUDA with the interpreter's lock held: callbacks
 * that wait for the interpreter then wait for ever. scripts/cupti_callbacks.py puts the compiled bytes into
 * gpustreamlab/backends/cuda/cupti/_native_callbacks.py, which maps them. `state` lies 64 KiB (a page, on any machine) behind the code.
 *
 * Each buffer is in one place at a time: in the list of free ones, lent to CUPTI, in the list of full ones, or with Python. Lists
 * are links inside `buffers`, one link a buffer, so no list can overflow and nothing is allocated. A buffer gets into the list of
 * full ones only where its `is_lent` goes from 1 to 0: once for each time that it was lent, and never where it is another's.
 *
 * A link is an index + 1; 0 ends a list. The head of the free list carries a count of its changes above the link: a thread that
 * saw buffer A before B, and slept while A was taken and came back before C, finds another count and looks again. Taking from the
 * list of full ones means taking all of it, where that cannot happen.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_MASK 0xFFFFu
#define ONE_CHANGE 0x10000u

struct buffer {
    _Atomic uint32_t next;
    _Atomic uint32_t is_lent;
    _Atomic uint64_t valid_bytes;
    _Atomic uint64_t thread; /* pointer of the thread that asked for it: CUPTI keeps buffers of threads apart */
    uint64_t unused; /* so that an index becomes an address by a shift */
};

struct {
    _Atomic uint64_t free;
    _Atomic uint64_t full;
    _Atomic uint64_t refused_count;
    _Atomic uint64_t completed_count;
    uint64_t first_address; /* this and what follows up to `buffers` is set before anything is called */
    uint64_t stride_bytes;
    uint64_t buffer_bytes;
    uint64_t buffer_count;
    struct buffer buffers[LINK_MASK];
} state;

_Static_assert(offsetof(__typeof__(state), buffers) == 64 && sizeof(struct buffer) == 32, "Python knows this layout");

/* Give CUPTI a buffer, or none. */
void request_buffer(uint8_t **address, size_t *size, size_t *most_records)
{
    uint64_t head = atomic_load_explicit(&state.free, memory_order_acquire);
    uint64_t rest;
    *most_records = 0; /* as many as fit */
    do {
        if (!(head & LINK_MASK)) {
            atomic_fetch_add_explicit(&state.refused_count, 1, memory_order_relaxed);
            *address = NULL;
            *size = 0;
            return;
        }
        /* May be out of date by now; the head has another count then. */
        rest = atomic_load_explicit(&state.buffers[(head & LINK_MASK) - 1].next, memory_order_relaxed);
        rest |= (head & ~(uint64_t)LINK_MASK) + ONE_CHANGE;
    } while (!atomic_compare_exchange_weak_explicit(&state.free, &head, rest, memory_order_acquire, memory_order_acquire));
    uint64_t index = (head & LINK_MASK) - 1;
    atomic_store_explicit(&state.buffers[index].thread, (uint64_t)__builtin_thread_pointer(), memory_order_relaxed);
    atomic_store_explicit(&state.buffers[index].is_lent, 1, memory_order_relaxed);
    *address = (uint8_t *)(state.first_address + index * state.stride_bytes);
    *size = state.buffer_bytes;
}

/* Take a buffer back from CUPTI. */
void complete_buffer(void *context, uint32_t stream, uint8_t *address, size_t size, size_t valid_bytes)
{
    (void)context, (void)stream, (void)size;
    uint64_t offset = (uint64_t)address - state.first_address; /* of a lower address: too large */
    uint64_t index = offset / state.stride_bytes;
    if (index >= state.buffer_count || offset % state.stride_bytes)
        return; /* another client's */
    struct buffer *buffer = &state.buffers[index];
    if (!atomic_exchange_explicit(&buffer->is_lent, 0, memory_order_acq_rel))
        return;
    atomic_store_explicit(&buffer->valid_bytes, valid_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&state.completed_count, 1, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&state.full, memory_order_relaxed);
    do
        atomic_store_explicit(&buffer->next, (uint32_t)head, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&state.full, &head, index + 1, memory_order_release, memory_order_relaxed));
}

/* For Python: take all full buffers; returns the link to the last one that was completed. */
uint64_t take_full(void)
{
    return atomic_exchange_explicit(&state.full, 0, memory_order_acquire);
}

/* For Python: let a buffer that was taken, or is new, be lent. */
void free_buffer(uint64_t index)
{
    uint64_t head = atomic_load_explicit(&state.free, memory_order_relaxed);
    uint64_t new_head;
    do {
        atomic_store_explicit(&state.buffers[index].next, (uint32_t)(head & LINK_MASK), memory_order_relaxed);
        new_head = (head & ~(uint64_t)LINK_MASK) + ONE_CHANGE + index + 1;
    } while (!atomic_compare_exchange_weak_explicit(&state.free, &head, new_head, memory_order_release, memory_order_relaxed));
}

/* For Python: how this thread is written into buffers. pthread_self() is as far from it in every thread. */
uint64_t thread_pointer(void)
{
    return (uint64_t)__builtin_thread_pointer();
}
