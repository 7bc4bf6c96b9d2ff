const place = Math.round(value)
const d = spans.data
const start = d.left[place], end = d.right[place]
switch (format) {
  case "name": return names[d.name[place]]
  case "stream": return streams[row_lane[d.row[place]]]
  case "partition": return partitions[d.partition[place]]
  case "kind": return kinds[d.kind[place]]
  case "start": return time(start) + (Math.abs(start) >= 1e3 ? " (" + start.toLocaleString("en-US") + " ns)" : "")
  case "duration": return time(end - start) + (end - start >= 1e3 ? " (" + (end - start).toLocaleString("en-US") + " ns)" : "")
  case "queueing": return time(d.queueing[place]) + " from enqueue to start"
  case "thread": return d.thread[place] < 0 ? "unknown" : threads[d.thread[place]]
}
return ""
