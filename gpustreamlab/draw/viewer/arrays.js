// Typed arrays that grow, and searches in sorted ones.

/** Room for `length` values and half as many more, so that appending one by one is linear. */
export function roomFor(length) {
  return Math.max(64, Math.ceil(length * 1.5))
}

/** A larger copy that keeps the first `kept` values. */
export function grown(values, size, kept, kind = values.constructor) {
  const larger = new kind(size)
  if (kept) larger.set(values.subarray(0, kept))
  return larger
}

/** The same array if it is long enough, or a larger copy. */
export function roomy(values, size, kept) {
  return values.length >= size ? values : grown(values, roomFor(size), kept)
}

export function sumBetween(values, from, to) {
  let sum = 0
  for (let index = from; index < to; index++) sum += values[index]
  return sum
}

/** First of the sorted values between two places that is at least t. */
export function lowerBound(values, t, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1
    if (values[middle] < t) from = middle + 1
    else to = middle
  }
  return from
}

/** First of the sorted values between two places that is more than t. */
export function upperBound(values, t, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1
    if (values[middle] <= t) from = middle + 1
    else to = middle
  }
  return from
}

/** The same as lowerBound by steps that double from `step` on: cheap where the answer is near. */
export function gallop(values, t, from, to, step = 1) {
  let ahead = from + step - 1
  while (ahead < to && values[ahead] < t) {
    from = ahead + 1
    ahead += step
    step *= 2
  }
  return lowerBound(values, t, from, Math.min(ahead, to))
}
