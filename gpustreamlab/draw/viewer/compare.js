// Two timelines of one page over the same stretch of time.

/** Let each view follow the other's range; returns a function that stops. Both count their time from their own first span. */
export function linkRanges(first, second) {
  let isFollowing = false
  const follow = (leader, follower) => leader.on("range", () => {
    // What the follower says of its own move is no new move: one that it had to narrow would narrow the leader as well.
    if (isFollowing) return
    isFollowing = true
    try { follower.setRange(leader.x0, leader.x1) } finally { isFollowing = false }
  })
  const offs = [follow(first, second), follow(second, first)]
  second.setRange(first.x0, first.x1)
  return () => offs.forEach(off => off())
}
