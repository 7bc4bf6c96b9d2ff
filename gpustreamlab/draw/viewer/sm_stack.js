// SMs in use over time, as steps. What a step has is the set of partitions that are busy; each set that occurs is kept once,
// with the SMs of each band in it: so a step is a time and a number.

const SUM_STEPS = 64

class SmStack {
  constructor(shape, slots, tables) {
    this.shape = shape
    this.smCount = tables.sm_count
    this.bandCount = tables.bands.length
    const sizes = new Map(slots.map((slot, code) => [slot, { slot, ...tables.partitions[code] }]))
    this.sizes = [...sizes.values()].filter(({ band }) => band >= 0)
    this.sets = [[]]
    this.setNumbers = new Map([["", 0]])
    this.heights = new Float64Array(this.bandCount * 64)
    // From a set and what becomes busy or idle to the next set.
    this.moves = new Map()
    this.time = new Float64Array(64)
    this.set = new Uint32Array(64)
    this.length = 0
    this.sums = new Float64Array(this.bandCount)
    this.summed = 0
  }

  /** Build the steps anew from t on. */
  update(t, unions) {
    const toggles = mergeToggles(this.sizes.map(({ slot }, number) => togglesFrom(unions.get(slot), t, number)))
    this.truncate(lowerBound(this.time, t, 0, this.length))
    const size = this.length + toggles.length
    this.time = roomy(this.time, size, this.length)
    this.set = roomy(this.set, size, this.length)
    let set = this.length ? this.set[this.length - 1] : 0
    for (let index = 0; index < toggles.length; index++) {
      set = this.moved(set, toggles.number[index])
      if (toggles.time[index + 1] === toggles.time[index]) continue
      this.time[this.length] = toggles.time[index]
      this.set[this.length++] = set
    }
    return this
  }

  /** Add the integral of each band over each column. */
  addIntegrals(x0, x1, bands) {
    this.sumUp()
    const n = bands[0].length
    let at = upperBound(this.time, x0, 0, this.length) - 1
    for (let column = 0; column < n; column++) {
      const from = columnEdge(column, x0, x1, n), to = columnEdge(column + 1, x0, x1, n)
      const last = gallop(this.time, to, Math.max(0, at), this.length) - 1
      if (last <= at) this.addStep(at, to - from, column, bands)
      else {
        this.addStep(at, this.time[at + 1] - from, column, bands)
        this.addWhole(at + 1, last, column, bands)
        this.addStep(last, to - this.time[last], column, bands)
        at = last
      }
    }
  }

  /** Forget the steps from a place on. */
  truncate(length) {
    this.length = length
    // A block's sum holds the length of its last step, up to the next one.
    this.summed = Math.min(this.summed, Math.floor(Math.max(0, length - 1) / SUM_STEPS) * SUM_STEPS)
  }

  moved(set, number) {
    const key = set * this.sizes.length + number
    let next = this.moves.get(key)
    if (next === undefined) {
      const busy = this.sets[set]
      next = this.numberOf(busy.includes(number) ? busy.filter(one => one !== number) : [...busy, number].sort((a, b) => a - b))
      this.moves.set(key, next)
    }
    return next
  }

  numberOf(busy) {
    const name = busy.join()
    let number = this.setNumbers.get(name)
    if (number === undefined) {
      number = this.sets.push(busy) - 1
      this.setNumbers.set(name, number)
      this.heights = roomy(this.heights, (number + 1) * this.bandCount, number * this.bandCount)
      this.stackUp(busy, number * this.bandCount)
    }
    return number
  }

  /** From the bottom band up, each gets at most what is left of the card. */
  stackUp(busy, at) {
    let left = this.smCount
    for (const { band, sms } of busy.map(number => this.sizes[number]).sort((one, other) => one.band - other.band)) {
      this.heights[at + band] += Math.min(sms, left)
      left -= Math.min(sms, left)
    }
  }

  addStep(index, width, column, bands) {
    if (index < 0) return
    const at = this.set[index] * this.bandCount
    for (let band = 0; band < bands.length; band++) bands[band][column] += this.heights[at + band] * width
  }

  /** Add whole steps: by blocks where there are any between. */
  addWhole(from, to, column, bands) {
    const first = Math.ceil(from / SUM_STEPS), last = Math.min(Math.floor(to / SUM_STEPS), this.summed / SUM_STEPS)
    if (last <= first) {
      for (let index = from; index < to; index++) this.addStep(index, this.time[index + 1] - this.time[index], column, bands)
      return
    }
    this.addWhole(from, first * SUM_STEPS, column, bands)
    const { bandCount, sums } = this
    for (let band = 0; band < bandCount; band++) bands[band][column] += sums[last * bandCount + band] - sums[first * bandCount + band]
    this.addWhole(last * SUM_STEPS, to, column, bands)
  }

  /** Sums before every 64th step, by band. */
  sumUp() {
    const { bandCount } = this, blocks = Math.floor(Math.max(0, this.length - 1) / SUM_STEPS)
    let block = this.summed / SUM_STEPS
    if (block >= blocks) return
    this.sums = roomy(this.sums, (blocks + 1) * bandCount, (block + 1) * bandCount)
    for (; block < blocks; block++) this.sumBlock(block)
    this.summed = blocks * SUM_STEPS
  }

  sumBlock(block) {
    const { bandCount, sums, time, heights } = this, at = block * bandCount, next = at + bandCount
    sums.copyWithin(next, at, next)
    for (let index = block * SUM_STEPS; index < (block + 1) * SUM_STEPS; index++) {
      const width = time[index + 1] - time[index], low = this.set[index] * bandCount
      for (let band = 0; band < bandCount; band++) sums[next + band] += heights[low + band] * width
    }
  }
}

/** Times from t on at which a partition becomes busy or idle, with its number. */
function togglesFrom(union, t, number) {
  if (!union) return { time: new Float64Array(0), number: new Uint16Array(0), length: 0 }
  const first = lowerBound(union.end, t, 0, union.length), time = new Float64Array(2 * (union.length - first))
  let length = 0
  for (let index = first; index < union.length; index++) {
    if (union.start[index] >= t) time[length++] = union.start[index]
    time[length++] = union.end[index]
  }
  return { time: time.subarray(0, length), number: new Uint16Array(length).fill(number), length }
}

/** Merge lists of toggles by pairs, in order of time. */
function mergeToggles(lists) {
  while (lists.length > 1) {
    const pairs = []
    for (let index = 0; index < lists.length; index += 2) {
      pairs.push(index + 1 < lists.length ? mergeTwo(lists[index], lists[index + 1]) : lists[index])
    }
    lists = pairs
  }
  return lists[0] ?? togglesFrom(null)
}

function mergeTwo(one, other) {
  const length = one.length + other.length, time = new Float64Array(length), number = new Uint16Array(length)
  const { time: times, number: numbers } = one, { time: otherTimes, number: otherNumbers } = other
  let i = 0, j = 0, index = 0
  while (i < one.length && j < other.length) {
    const isOne = times[i] <= otherTimes[j]
    time[index] = isOne ? times[i] : otherTimes[j]
    number[index++] = isOne ? numbers[i++] : otherNumbers[j++]
  }
  time.set(times.subarray(i, one.length), index)
  number.set(numbers.subarray(i, one.length), index)
  time.set(otherTimes.subarray(j, other.length), index + one.length - i)
  number.set(otherNumbers.subarray(j, other.length), index + one.length - i)
  return { time, number, length }
}
