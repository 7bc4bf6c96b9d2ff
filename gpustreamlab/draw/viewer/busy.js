// How many lanes, and how many SMs, are busy: exact means over columns of pixels, or exact steps.

/** Mean number of busy lanes in each of n equal columns of [x0, x1]. */
function busyShares(store, tables, x0, x1, n) {
  const lanes = new Float64Array(n), unions = unionsOf(store, tables), steps = unions.laneSteps()
  if (steps) steps.addIntegrals(x0, x1, [lanes])
  else for (const union of unions.lanes()) addCoverage(union, x0, x1, lanes)
  return { lanes: scaled(lanes, n / (x1 - x0)) }
}

/** Mean SMs of each band in each of n equal columns: stacked in the order of `tables.bands`, never more than the card has. */
function smShares(store, tables, x0, x1, n) {
  const bands = tables.bands.map(() => new Float64Array(n))
  if (bands.length) unionsOf(store, tables).smStack().addIntegrals(x0, x1, bands)
  return bands.map(sums => scaled(sums, n / (x1 - x0)))
}

/** Steps of the number of busy lanes in [x0, x1], the first at x0, as {time, count}; null where more than `limit` would be. */
function stepsOf(store, tables, x0, x1, limit = 4000) {
  const unions = unionsOf(store, tables), steps = unions.laneSteps()
  return steps ? cutSteps(steps, x0, x1, limit) : laneChanges(unions.lanes(), x0, x1, limit)
}

function cutSteps(steps, x0, x1, limit) {
  const first = steps.indexAt(x0), last = steps.indexAt(x1)
  if (last - first > limit) return null
  const time = [x0], count = [first < 0 ? 0 : steps.level[first]]
  for (let index = first + 1; index <= last; index++) {
    time.push(steps.time[index])
    count.push(steps.level[index])
  }
  return { time, count }
}

function laneChanges(unions, x0, x1, limit) {
  const changes = []
  let initial = 0
  for (const { start, end, length } of unions) {
    for (let index = upperBound(end, x0, 0, length); index < length && start[index] <= x1; index++) {
      if (start[index] <= x0) initial++
      else changes.push([start[index], 1])
      if (end[index] <= x1) changes.push([end[index], -1])
      if (changes.length > limit) return null
    }
  }
  return addSteps(x0, initial, changes)
}

function addSteps(x0, initial, changes) {
  const time = [x0], count = [initial]
  for (const [at, change] of changes.sort((one, other) => one[0] - other[0])) {
    const last = time.length - 1
    if (time[last] === at) count[last] += change
    else {
      time.push(at)
      count.push(count[last] + change)
    }
  }
  return { time, count }
}

/** Left border of a column of n in [x0, x1]. */
function columnEdge(column, x0, x1, n) {
  return column < n ? x0 + ((x1 - x0) * column) / n : x1
}

function scaled(values, factor) {
  for (let index = 0; index < values.length; index++) values[index] *= factor
  return values
}

/** Add how much of each column of [x0, x1] a union covers, in ns. Few intervals are taken one by one, many by column. */
function addCoverage(union, x0, x1, columns) {
  const first = upperBound(union.end, x0, 0, union.length)
  const last = lowerBound(union.start, x1, first, union.length) - 1
  if (last - first < columns.length) addByInterval(union, first, last, x0, x1, columns)
  else addByColumn(union, first, last, x0, x1, columns)
}

function addByInterval(union, first, last, x0, x1, columns) {
  const { start, end } = union, n = columns.length, scale = n / (x1 - x0)
  for (let index = first; index <= last; index++) {
    const to = Math.min(end[index], x1), density = union.densityAt(index)
    let from = Math.max(start[index], x0)
    for (let column = Math.min(n - 1, Math.floor((from - x0) * scale)); from < to; column++) {
      const border = column < n - 1 ? Math.min(to, columnEdge(column + 1, x0, x1, n)) : to
      if (border <= from) continue
      columns[column] += (border - from) * density
      from = border
    }
  }
}

/** Each column is the difference of what is covered up to its two borders. */
function addByColumn(union, first, last, x0, x1, columns) {
  const { start } = union, n = columns.length
  let next = gallop(start, x0, first, last + 1), before = coveredUntil(union, next, x0)
  let step = 1
  for (let column = 0; column < n; column++) {
    const border = columnEdge(column + 1, x0, x1, n), from = next
    next = gallop(start, border, from, last + 1, step)
    step = Math.max(1, (next - from) >> 1)
    const until = next > from ? coveredUntil(union, next, border) : coveredWithin(union, next, before, columnEdge(column, x0, x1, n), border)
    columns[column] += until - before
    before = until
  }
}

/** Busy time before t; `next` is the first interval that starts at t or later. */
function coveredUntil(union, next, t) {
  const covered = union.busyBefore(next), beyond = next ? union.end[next - 1] - t : 0
  return beyond > 0 ? covered - beyond * union.densityAt(next - 1) : covered
}

/** The same, from what is known of an earlier time between which and t no interval starts. */
function coveredWithin(union, next, before, from, t) {
  if (!next || union.end[next - 1] <= from) return before
  return before + (Math.min(union.end[next - 1], t) - from) * union.densityAt(next - 1)
}

/** How much of [from, to] the intervals first to last cover, all of which touch it. */
function coverage(union, first, last, from, to) {
  if (last < first) return 0
  const before = from - union.start[first], after = union.end[last] - to
  let sum = union.busySum(first, last)
  if (before > 0) sum -= before * union.densityAt(first)
  if (after > 0) sum -= after * union.densityAt(last)
  return sum
}
