"""Programs that a machine can mend, with what a good engineer makes of them; and some that look alike, where that is wrong."""

from __future__ import annotations

import numpy as np

from gpustreamlab.workloads import spin

MENDED, KEPT = {}, {}
"""Programs by their names. Of those in `KEPT` with the text that has to stay in the source."""
SIDE = 320


def mended(program):
    MENDED[program.__name__] = program
    return program


def kept(*texts):
    def add(program):
        KEPT[program.__name__] = program, texts
        return program

    return add


def data(lab, count=6, side=SIDE, seed=3):
    """Return page-locked input, page-locked output, weights."""
    source = lab.memory.pinned_empty((count, side, side), "f4")
    source[...] = np.random.default_rng(seed).integers(0, 4, source.shape)
    sink = lab.memory.pinned_empty((count, side, side), "f4")
    sink[...] = 0
    for name in ("load", "work", "store"):
        lab.stream(name)
    return source, sink, lab.xp.asarray(source[0])


@mended
def images_in_ordinary_memory(lab, which):
    """Copy from an array that NumPy made."""
    _, _, kernel = data(lab)
    images = np.random.default_rng(5).integers(0, 9, (6, SIDE, SIDE)).astype("f4")
    if which == "good":
        other = lab.memory.pinned_empty(images.shape, images.dtype)
        other[...] = images
        images = other
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in images]

    def process():
        out = []
        for number, frame in enumerate(frames):
            with lab.on("load"):
                frame.set(images[number])
            lab.stream("work").wait("load")
            with lab.on("work"):
                out.append(frame @ kernel)
        return out

    return process


@mended
def waits_by_events_of_the_host(lab, which):
    """Wait for a stream on the host where the next stream could."""
    source, sink, kernel = data(lab)
    load, work, store = (lab.streams[name] for name in ("load", "work", "store"))
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in source]

    def process():
        n, out = 0, []
        while n < len(frames):
            with lab.on(load, "in"):
                frames[n].set(source[n])
            if which == "bad":
                lab.synchronize()
            else:
                work.wait(load)
            with lab.on(work, "mm"):
                out.append(frames[n] @ kernel)
                out.append(out[-1] @ kernel)
            if which == "bad":
                work.synchronize()
            else:
                store.wait(work)
            with lab.on(store, "out"):
                out[-1].get(out=sink[n], blocking=False)
            n += 1
        return out

    return process


@mended
def three_loops(lab, which):
    """Do one thing with all items, then the next with all."""
    source, sink, kernel = data(lab)
    load, work, store = (lab.streams[name] for name in ("load", "work", "store"))
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in source]

    def process():
        products = []
        if which == "good":
            for n in range(6):
                with lab.on("load"):
                    frames[n].set(source[n])
                work.wait(load)
                with lab.on("work"):
                    products.append(frames[n] @ kernel)
                store.wait(work)
                with lab.on("store"):
                    products[n].get(out=sink[n], blocking=False)
            return products
        for n in range(6):
            with lab.on("load"):
                frames[n].set(source[n])
        work.wait(load)
        for k in range(6):
            with lab.on("work"):
                products.append(frames[k] @ kernel)
        store.wait(work)
        with lab.on("store"):
            for n in range(6):
                products[n].get(out=sink[n], blocking=False)
        return products

    return process


@mended
def one_array_for_all(lab, which):
    """Fill the same array in each turn, behind the event of the turn before."""
    source, _, kernel = data(lab)
    load, work = lab.streams["load"], lab.streams["work"]
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in range(2)]
    frame = frames[0]

    def process():
        out, done = [], [None, None]
        if which == "good":
            for n in range(6):
                if done[n % 2] is not None:
                    load.wait(done[n % 2])
                with lab.on(load):
                    frames[n % 2].set(source[n])
                work.wait(load)
                with lab.on(work):
                    out.append(frames[n % 2] @ kernel)
                done[n % 2] = work.record()
            return out
        used = None
        for n in range(6):
            if used is not None:
                load.wait(used)
            with lab.on(load):
                frame.set(source[n])
            work.wait(load)
            with lab.on(work):
                out.append(frame @ kernel)
            used = work.record()
        return out

    return process


@mended
def losses_of_each_step(lab, which):
    """Read a loss in each step, to keep it."""
    source, _, kernel = data(lab)
    load, work = lab.streams["load"], lab.streams["work"]
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in source]

    def train():
        losses, sums = [], []
        for n in range(6):
            with lab.on(load):
                frames[n].set(source[n])
            work.wait(load)
            with lab.on("work", "step"):
                loss = (frames[n] @ kernel).sum()
                if which == "bad":
                    losses.append(float(loss))
                else:
                    sums.append(loss)
        with lab.on("work", "step"):
            losses += [float(loss) for loss in sums]
        return losses

    return train


@mended
def results_as_a_list(lab, which):
    """Fetch each result into memory of its own."""
    source, _, kernel = data(lab)
    load, work = lab.streams["load"], lab.streams["work"]
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in source]

    def process():
        results = []
        for n in range(6):
            with lab.on(load):
                frames[n].set(source[n])
            work.wait(load)
            with lab.on(work):
                product = frames[n] @ kernel
            with lab.on(work):
                if which == "bad":
                    results.append(product.get())
                else:
                    results.append(lab.memory.pinned_empty(product.shape, product.dtype))
                    product.get(out=results[-1], blocking=False)
        work.synchronize()
        return results

    return process


@mended
def a_stream_for_each_request(lab, which):
    """Make a stream for each of many small requests."""
    _, _, kernel = data(lab, side=64)
    made = [lab.stream(f"request/{n}") for n in range(24)] if which == "good" else None

    def serve():
        answers = []
        for n in range(24):
            stream = made[n] if made else lab.stream(f"request/{n}")
            with lab.on(stream):
                answers.append(kernel @ kernel)
        return answers

    return serve


@mended
def requests_by_priority_of_arrival(lab, which):
    """Launch all of one stream, then all of the next."""
    streams = [lab.stream(name) for name in "xyz"]
    order = [stream for stream in streams for _ in range(40)] if which == "bad" else streams * 40

    def serve():
        for stream in order:
            spin(lab, 20_000, blocks=8, stream=stream.name)

    return serve


@mended
def a_chain_behind_a_full_card(lab, which):
    """Launch short kernels, one behind the other, beside kernels of which each fills the card several times."""
    lab.stream("bulk")
    if which == "good":
        lab.stream("chain", priority=-1)
    else:
        lab.stream("chain")

    def process():
        for _ in range(6):
            spin(lab, 100_000, blocks=132 * 64, stream="bulk")
        for _ in range(12):
            spin(lab, 50_000, blocks=8, stream="chain")

    return process


@mended
def turns_that_are_not_alike(lab, which):
    """Fill one array again and again where one turn works for long, and two load for long: a second buffer is not enough."""
    source, _, kernel = data(lab, 9)
    load, work = lab.streams["load"], lab.streams["work"]
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in range(3)]
    frame = frames[0]

    def process():
        out, done = [], [None, None, None]
        if which == "good":
            for n in range(9):
                if done[n % 3] is not None:
                    load.wait(done[n % 3])
                with lab.on(load):
                    frames[n % 3].set(source[n])
                work.wait(load)
                with lab.on(work):
                    out.append(frames[n % 3] @ kernel)
                spin(lab, 100_000, blocks=8, stream="load" if n % 3 else "work")
                done[n % 3] = work.record()
            return out
        used = None
        for n in range(9):
            if used is not None:
                load.wait(used)
            with lab.on(load):
                frame.set(source[n])
            work.wait(load)
            with lab.on(work):
                out.append(frame @ kernel)
            spin(lab, 100_000, blocks=8, stream="load" if n % 3 else "work")
            used = work.record()
        return out

    return process


# Where the change would be wrong


@kept("load.synchronize()")
def the_host_fills_what_is_copied(lab):
    _, _, kernel = data(lab)
    load, work = lab.streams["load"], lab.streams["work"]
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in range(4)]
    staging = lab.memory.pinned_empty((SIDE, SIDE), "f4")

    def process():
        out = []
        for n in range(4):
            staging.fill(n)
            with lab.on("load"):
                frames[n].set(staging)
            load.synchronize()
            with lab.on("work"):
                out.append(frames[n] @ kernel)
            work.wait(load)
        return out

    return process


@kept("store.synchronize()")
def the_host_reads_what_was_fetched(lab):
    source, sink, kernel = data(lab)
    load, work, store = (lab.streams[name] for name in ("load", "work", "store"))
    frames = [lab.xp.empty((SIDE, SIDE), "f4") for _ in source]

    def process():
        best = 0.0
        for n in range(6):
            with lab.on(load):
                frames[n].set(source[n])
            work.wait(load)
            with lab.on(work):
                y = frames[n] @ kernel
            store.wait(work)
            with lab.on(store):
                y.get(out=sink[n], blocking=False)
            store.synchronize()
            best = max(best, float(np.max(sink[n])))
        return best

    return process


@kept("store.synchronize()")
def a_function_reads_what_was_fetched(lab):
    source, sink, kernel = data(lab)
    store = lab.streams["store"]
    found = []

    def note(n):
        found.append(sink[n].copy())

    def process():
        for n in range(6):
            with lab.on("store"):
                y = lab.xp.asarray(source[n]) @ kernel
                y.get(out=sink[n], blocking=False)
            store.synchronize()
            note(n)
        return found

    return process


@kept("store.synchronize()")
def a_method_reads_what_was_fetched(lab):
    source, sink, kernel = data(lab)
    store = lab.streams["store"]

    class Meter:
        best = 0.0

        def note(self, n):
            self.best = max(self.best, self.top_of(n))

        @staticmethod
        def top_of(n):
            return float(sink[n].max())

    meter = Meter()

    def process():
        for n in range(6):
            with lab.on("store"):
                y = lab.xp.asarray(source[n]) @ kernel
                y.get(out=sink[n], blocking=False)
            store.synchronize()
            meter.note(n)
        return meter.best

    return process


@kept('with lab.on("work", "out")')
def a_function_waits_for_the_one_stream(lab):
    """What is fetched on another stream would not have arrived."""
    source, sink, kernel = data(lab)
    frame, y, work = lab.xp.empty((SIDE, SIDE), "f4"), lab.xp.empty((SIDE, SIDE), "f4"), lab.streams["work"]

    def finish(stream):
        stream.synchronize()

    def process():
        best = 0.0
        for n in range(6):
            with lab.on("work"):
                frame.set(source[n])
            with lab.on("work"):
                y[...] = frame @ kernel
            with lab.on("work", "out"):
                y.get(out=sink[n], blocking=False)
            finish(work)
            best = max(best, float(sink[n].max()))
        return best

    return process


@kept('with lab.on("work", "out")')
def a_value_waits_for_what_was_fetched_before_it(lab):
    source, sink, kernel = data(lab)
    frames, keep = [lab.xp.empty((SIDE, SIDE), "f4") for _ in source], []

    def process():
        found = []
        for n in range(6):
            with lab.on("work"):
                frames[n].set(source[n])
            with lab.on("work"):
                y = frames[n] @ kernel
                keep.append(y)
            with lab.on("work", "out"):
                y.get(out=sink[n], blocking=False)
            with lab.on("work"):
                top = float(y.max())
            found.append(top - float(sink[n].max()))
        return found

    return process


@kept("load.synchronize()")
def a_return_stands_in_a_block(lab):
    """A wait behind that block would never be reached."""
    source, _, kernel = data(lab)
    frame, load = lab.xp.empty((SIDE, SIDE), "f4"), lab.streams["load"]

    def process():
        with lab.on(load):
            frame.set(source[0])
        load.synchronize()
        spin(lab, 100_000, blocks=8, stream="store")
        with lab.on("work"):
            return frame @ kernel

    return process


@kept("frame.set(picture)")
def the_array_is_read_behind_a_loop_over_any_number_of_items(lab):
    source, _, kernel = data(lab)
    frame, load, work = lab.xp.empty((SIDE, SIDE), "f4"), lab.streams["load"], lab.streams["work"]

    def process():
        out, used = [], None
        for picture in source:
            if used is not None:
                load.wait(used)
            with lab.on(load):
                frame.set(picture)
            work.wait(load)
            with lab.on(work):
                out.append(frame @ kernel)
            used = work.record()
        with lab.on(work):
            out.append(frame + 1)
        return out

    return process


@kept("if float(loss) > limit")
def a_value_decides(lab):
    source, _, kernel = data(lab)
    limit = 1e7

    def train():
        steps = 0
        for n in range(6):
            with lab.on("work"):
                loss = (lab.xp.asarray(source[n]) @ kernel).sum()
                if float(loss) > limit:
                    break
            steps += 1
        return steps

    return train


@kept("print(float(loss))")
def prints_of_two_kinds(lab):
    source, _, kernel = data(lab)

    def train():
        for n in range(4):
            print("step", n)
            with lab.on("work"):
                loss = (lab.xp.asarray(source[n]) @ kernel).sum()
                print(float(loss))

    return train


@kept("total.append(float(value))")
def what_is_read_changes_in_the_next_turn(lab):
    _, _, kernel = data(lab)
    value = lab.xp.zeros((), "f4")

    def count():
        total = []
        for _ in range(4):
            with lab.on("work"):
                value[...] = value + kernel.sum()
                total.append(float(value))
        return total

    return count


@kept("frame.set(source[n])")
def an_array_is_added_to(lab):
    """Each turn reads what the one before left in the same array."""
    source, _, kernel = data(lab)
    load, work = lab.streams["load"], lab.streams["work"]
    frame = lab.xp.zeros((SIDE, SIDE), "f4")

    def process():
        out, used = [], None
        for n in range(5):
            if used is not None:
                load.wait(used)
            with lab.on(load):
                out.append(frame + 1)
                frame.set(source[n])
            work.wait(load)
            with lab.on(work):
                out.append(frame @ kernel)
            used = work.record()
        return out

    return process


@kept("work.wait(load)")
def each_item_needs_the_one_behind_it(lab):
    source, _, _ = data(lab)
    load, work = lab.streams["load"], lab.streams["work"]
    frames = [lab.xp.zeros((SIDE, SIDE), "f4") for _ in source]

    def process():
        out = []
        for n in range(6):
            with lab.on(load):
                frames[n].set(source[n])
        work.wait(load)
        for n in range(6):
            with lab.on(work):
                out.append(frames[n] @ frames[(n + 1) % 6])
        return out

    return process


@kept("results.append(product.get())")
def results_are_looked_at(lab):
    source, _, kernel = data(lab)

    def process():
        results, largest = [], 0.0
        for n in range(4):
            with lab.on("work"):
                product = lab.xp.asarray(source[n]) @ kernel
                results.append(product.get())
            largest = max(largest, float(results[-1].max()))
        return results, largest

    return process


@kept('lab.stream("first")', 'lab.stream("second")')
def streams_that_fill_the_card_alike(lab):
    """None of two streams waits for long: one that goes before the other gains nothing in all."""
    lab.stream("first")
    lab.stream("second")

    def process():
        for _ in range(6):
            spin(lab, 100_000, blocks=132 * 64, stream="first")
            spin(lab, 100_000, blocks=132 * 64, stream="second")

    return process


@kept("total[...] = total + frames[n]", "load.synchronize()")
def a_branch_that_is_seldom_taken_uses_what_is_loaded(lab):
    source, _, kernel = data(lab)
    load, work, store = (lab.streams[name] for name in ("load", "work", "store"))
    frames, total = [lab.xp.empty((SIDE, SIDE), "f4") for _ in source], lab.xp.zeros((SIDE, SIDE), "f4")
    flags = np.zeros(6, bool)

    def process():
        out = []
        for n in range(6):
            with lab.on(load):
                frames[n].set(source[n])
            load.synchronize()
            if flags[n]:
                with lab.on(store):
                    total[...] = total + frames[n]
            with lab.on(work):
                out.append(frames[n] @ kernel)
        return out, total

    return process


@kept("store.wait(work)")
def the_host_waits_for_a_stream_by_another(lab):
    """The wait of a stream on which nothing runs orders what the host reads behind the program."""
    source, _, kernel = data(lab)
    work, store = lab.streams["work"], lab.streams["store"]

    def process():
        out = []
        for n in range(6):
            with lab.on(work):
                out.append(lab.xp.asarray(source[n]) @ kernel)
            store.wait(work)
            store.synchronize()
        return out

    return process


@kept("frame_2", "frame_now, frame_next = frame_next, frame_now")
def a_third_buffer_gains_no_more_than_a_second(lab):
    return MENDED["one_array_for_all"](lab, "bad")


def process_of(lab, side=128, count=6):
    """Return ordinary data, page-locked memory of one item, arrays and weights."""
    photos = np.random.default_rng(1).random((count, side, side), "float32")
    pinned = lab.memory.pinned_empty((side, side), "float32")
    for name in ("load", "work"):
        lab.stream(name)
    return photos, pinned, [lab.xp.asarray(one) for one in photos], lab.xp.ones((side, side), "float32")


@kept("                losses.append(float((frames[n] @ kernel).sum()))")
def a_value_keeps_the_host_from_writing_over_what_is_copied(lab):
    photos, pinned, frames, kernel = process_of(lab)

    def process():
        losses = []
        for n in range(6):
            pinned[...] = photos[n]
            with lab.on("work"):
                frames[n].set(pinned)
                losses.append(float((frames[n] @ kernel).sum()))
        return losses

    return process


@kept("                float(total)")
def an_unread_value_keeps_the_host_from_writing_over_what_is_copied(lab):
    photos, pinned, frames, kernel = process_of(lab)

    def process():
        out = []
        for n in range(6):
            pinned[...] = photos[n]
            with lab.on("work"):
                frames[n].set(pinned)
                total = (frames[n] @ kernel).sum()
                out.append(total)
                float(total)
        return out

    return process


@kept("out.append(product.get())")
def a_result_keeps_the_host_from_writing_over_what_is_copied(lab):
    photos, pinned, frames, kernel = process_of(lab)

    def process():
        out = []
        for n in range(6):
            pinned[...] = photos[n]
            with lab.on("work"):
                frames[n].set(pinned)
                product = frames[n] @ kernel
                out.append(product.get())
        return out

    return process


@kept("out.append(product.get())")
def results_are_looked_at_by_another_name(lab):
    _, _, frames, kernel = process_of(lab)

    def process():
        out, top = [], 0.0
        same = out
        for n in range(6):
            with lab.on("work"):
                product = frames[n] @ kernel
                out.append(product.get())
            top = max(top, float(same[-1].max()))
        return out, top

    return process


@kept("losses.append(float(total))")
def a_function_looks_at_values(lab):
    _, _, frames, kernel = process_of(lab)
    losses = []

    def is_enough():
        return losses[-1] < 1

    def process():
        for n in range(6):
            with lab.on("work"):
                total = (frames[n] @ kernel).sum()
                losses.append(float(total))
            if is_enough():
                break
        return losses

    return process


@kept('            lab.streams["load"].synchronize()')
def a_branch_that_is_seldom_taken_writes_over_what_is_copied(lab):
    photos, _, frames, kernel = process_of(lab)
    source = lab.memory.pinned_empty(photos.shape, photos.dtype)
    source[...] = photos
    flags, work = np.zeros(6, bool), lab.streams["work"]

    def process():
        out = []
        for n in range(6):
            with lab.on("load"):
                frames[n].set(source[n])
            lab.streams["load"].synchronize()
            work.wait("load")
            with lab.on("work"):
                out.append(frames[n] @ kernel)
            if flags[n]:
                source[n] = 0
        return out

    return process


@kept('    staging = np.zeros((128, 128), "float32")\n    work')
def ordinary_memory_is_filled_again(lab):
    photos, _, frames, kernel = process_of(lab)
    staging = np.zeros((128, 128), "float32")
    work = lab.streams["work"]

    def process():
        out = []
        for n in range(6):
            staging[...] = photos[n]
            with lab.on("load"):
                frames[n].set(staging)
            work.wait("load")
            with lab.on("work"):
                out.append(frames[n] @ kernel)
        return out

    return process


@kept("load.wait(used)", "frame.set(source[n])")
def a_buffer_has_another_name_and_all_items_are_alike(lab):
    source, _, kernel = data(lab)
    source[...] = 1
    frame = lab.xp.ones((SIDE, SIDE), "f4")
    view, load, work = frame[:], lab.streams["load"], lab.streams["work"]

    def process():
        out, used = [], None
        for n in range(6):
            if used is not None:
                load.wait(used)
            with lab.on(load):
                frame.set(source[n])
            work.wait(load)
            with lab.on(work):
                out.append(view @ kernel)
            used = work.record()
        return out

    return process


@kept("history.append(float(loss))\n            trainer.tick()")
def an_object_of_the_users_is_changed_by_another(lab):
    """What stands behind the loop would find the last epoch."""
    source, _, kernel = data(lab)

    class History:
        epoch = 0

        def __init__(self):
            self.rows = []

        def append(self, loss):
            self.rows.append((self.epoch, loss))

    class Trainer:
        def __init__(self, history):
            self.history = history

        def tick(self):
            self.history.epoch += 1

    history = History()
    trainer = Trainer(history)

    def train():
        for n in range(6):
            with lab.on("work"):
                loss = (lab.xp.asarray(source[n]) @ kernel).sum()
                history.append(float(loss))
            trainer.tick()

    return train
