// Made by scripts/bundle_viewer.py. 06c691b5e0dc99691107aa74a4d1ecb73fb33c6d04e6cc6c3e74fe58513c9e9e
"use strict";
var gpustreamlab = (() => {
  var __defProp = Object.defineProperty;
  var __getOwnPropDesc = Object.getOwnPropertyDescriptor;
  var __getOwnPropNames = Object.getOwnPropertyNames;
  var __hasOwnProp = Object.prototype.hasOwnProperty;
  var __export = (target, all) => {
    for (var name in all)
      __defProp(target, name, { get: all[name], enumerable: true });
  };
  var __copyProps = (to, from, except, desc) => {
    if (from && typeof from === "object" || typeof from === "function") {
      for (let key of __getOwnPropNames(from))
        if (!__hasOwnProp.call(to, key) && key !== except)
          __defProp(to, key, { get: () => from[key], enumerable: !(desc = __getOwnPropDesc(from, key)) || desc.enumerable });
    }
    return to;
  };
  var __toCommonJS = (mod) => __copyProps(__defProp({}, "__esModule", { value: true }), mod);

  // index.js
  var index_exports = {};
  __export(index_exports, {
    Row: () => Row,
    SpanBatch: () => SpanBatch,
    SpanStore: () => SpanStore,
    View: () => View,
    Viewer: () => Viewer,
    binWidth: () => binWidth,
    boxOf: () => boxOf2,
    busyAround: () => busyAround,
    cardLayers: () => cardLayers,
    endOfHit: () => endOfHit,
    followTheme: () => followTheme,
    formatCount: () => formatCount,
    formatNs: () => formatNs,
    formatSpeed: () => formatSpeed,
    formatTicks: () => formatTicks,
    headTime: () => headTime,
    linkRanges: () => linkRanges,
    paintEdges: () => paintEdges,
    paintOwnEdges: () => paintOwnEdges,
    paintOwnLaunches: () => paintOwnLaunches,
    readBatch: () => readBatch,
    readKept: () => readKept,
    signAt: () => signAt,
    stackLayers: () => stackLayers,
    timesOf: () => timesOf,
    unpackColumns: () => unpackColumns,
    workWord: () => workWord,
    writeKept: () => writeKept
  });

  // arrays.js
  var roomFor = (length) => Math.max(64, Math.ceil(length * 1.5));
  function grown(values, size, kept, kind = values.constructor) {
    const larger = new kind(size);
    if (kept) larger.set(values.subarray(0, kept));
    return larger;
  }
  var roomy = (values, size, kept) => values.length >= size ? values : grown(values, roomFor(size), kept);
  function sumBetween(values, from, to) {
    let sum = 0;
    for (let index = from; index < to; index++) sum += values[index];
    return sum;
  }
  function lowerBound(values, t, from, to) {
    while (from < to) {
      const middle = from + to >>> 1;
      if (values[middle] < t) from = middle + 1;
      else to = middle;
    }
    return from;
  }
  function upperBound(values, t, from, to) {
    while (from < to) {
      const middle = from + to >>> 1;
      if (values[middle] <= t) from = middle + 1;
      else to = middle;
    }
    return from;
  }
  function gallop(values, t, from, to, step = 1) {
    let ahead = from + step - 1;
    while (ahead < to && values[ahead] < t) {
      from = ahead + 1;
      ahead += step;
      step *= 2;
    }
    return lowerBound(values, t, from, Math.min(ahead, to));
  }
  function byPairs(lists, merge) {
    if (lists.length < 2) return lists[0];
    const middle = lists.length >> 1;
    return merge(byPairs(lists.slice(0, middle), merge), byPairs(lists.slice(middle), merge));
  }
  function mergeTimed(one, other) {
    const length = one.time.length + other.time.length;
    const time = new Float64Array(length), number = new one.number.constructor(length);
    const { time: times, number: numbers } = one, { time: otherTimes, number: otherNumbers } = other;
    for (let at = 0, i = 0, j = 0; at < length; at++) {
      const isOne2 = j >= otherTimes.length || i < times.length && times[i] <= otherTimes[j];
      time[at] = isOne2 ? times[i] : otherTimes[j];
      number[at] = isOne2 ? numbers[i++] : otherNumbers[j++];
    }
    return { time, number };
  }
  var BlockSums = class {
    /** `add(from, to)` sums up the places from `from` to before `to`. */
    constructor(size, add) {
      this.size = size;
      this.add = add;
      this.sums = new Float64Array(1);
      this.blocks = 0;
    }
    /** What is summed up from a place on is out of date. */
    forget(from = 0) {
      this.blocks = Math.min(this.blocks, Math.floor(Math.max(0, from) / this.size));
    }
    /** The sum from i to before j, of `length` places. */
    between(i, j, length) {
      return j - i <= this.size ? this.add(i, j) : this.before(j, length) - this.before(i, length);
    }
    before(place, length) {
      this.sumUp(length);
      const block = Math.floor(place / this.size);
      return this.sums[block] + this.add(block * this.size, place);
    }
    sumUp(length) {
      const blocks = Math.floor(length / this.size);
      if (this.blocks >= blocks) return;
      this.sums = roomy(this.sums, blocks + 1, this.blocks + 1);
      for (let block = this.blocks; block < blocks; block++) {
        this.sums[block + 1] = this.sums[block] + this.add(block * this.size, (block + 1) * this.size);
      }
      this.blocks = blocks;
    }
  };
  var SUM_SPANS = 8;

  // columns.js
  var SIGNED_COLUMNS = /* @__PURE__ */ new Set(["thread", "queueing", "detail", "ownerName", "ownerLane", "workLead", "workTail", "waitedName"]);
  var WORK_DEFAULTS = { detail: -1, size: 0, ownerName: -1, ownerLane: -1, workLead: 0, workTail: 0, workCount: 0, waitedName: -2 };
  var WORK_COLUMNS = Object.keys(WORK_DEFAULTS);
  var TWO_TO_32 = 4294967296;
  var FROM_INDEX = 0;
  var FROM_RANK = 2;
  async function readBatch(manifest, bytes) {
    if (!manifest.deflated) return unpackColumns(manifest, bytes);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return unpackColumns(manifest, new Uint8Array(await new Response(stream).arrayBuffer()));
  }
  var SpanBatch = class {
    constructor(runs, columns) {
      this.length = columns.start.length;
      this.hasWork = Boolean(columns.detail);
      Object.assign(this, { runs, count: null, busy: null, edges: null }, columns);
    }
  };
  function unpackColumns(manifest, bytes) {
    const reader = new ColumnReader(manifest, bytes);
    let end = 0;
    const runs = manifest.runs.map(([row, count]) => [row, end, end += count]);
    const columns = readTimes(reader, runs);
    for (const name of ["name", "kind", "thread", "partition", "queueing"]) columns[name] = reader.column(name);
    if (manifest.columns.detail !== void 0) for (const name of WORK_COLUMNS) columns[name] = reader.column(name);
    columns.place = readPlaces(reader, columns.start, runs);
    if (manifest.columns.count !== 1) columns.count = reader.column("count");
    if (manifest.columns.busy !== null) columns.busy = reader.floats("busy");
    columns.edges = readEdges(manifest, bytes);
    return new SpanBatch(runs, columns);
  }
  function readTimes(reader, runs) {
    const start = reader.floats("gap"), end = reader.floats("duration");
    for (const [, from, to] of runs) {
      let time = 0;
      for (let index = from; index < to; index++) {
        start[index] = time += start[index];
        end[index] = time += end[index];
      }
    }
    return { start, end };
  }
  function readPlaces(reader, start, runs) {
    const { placeFrom, placeMost } = reader.columns, places = reader.floats("place");
    if (placeFrom === FROM_INDEX) for (let index = 0; index < places.length; index++) places[index] = index;
    else if (placeFrom === FROM_RANK) addRanks(places, start, runs);
    else {
      for (const [, from, to] of runs) {
        for (let index = from, place = 0; index < to; index++) places[index] = place += places[index];
      }
    }
    return placeMost < TWO_TO_32 ? new Uint32Array(places) : places;
  }
  function addRanks(places, start, runs) {
    const indices = new Uint32Array(start.length).map((_, index) => index);
    const lists = runs.map(([, from, to]) => ({ time: start.subarray(from, to), number: indices.subarray(from, to) }));
    byPairs(lists, mergeTimed)?.number.forEach((index, rank) => {
      places[index] += rank;
    });
  }
  function readEdges(manifest, bytes) {
    const reader = new ColumnReader({ ...manifest, ...manifest.edges }, bytes);
    const x0 = reader.floats("step"), x1 = reader.floats("width");
    const place0 = reader.floats("sourcePlace"), place1 = reader.floats("targetPlace");
    for (let index = 0, time = 0, place = -1; index < reader.n; index++) {
      x0[index] = time += x0[index];
      x1[index] += time;
      place0[index] = place += place0[index];
      place1[index] += place;
    }
    return { x0, row0: reader.column("source"), x1, row1: reader.column("target"), place0, place1, told: Uint8Array.from(reader.column("told")), kind: reader.column("kind"), length: reader.n };
  }
  var ColumnReader = class {
    constructor(manifest, bytes) {
      Object.assign(this, { bytes, n: manifest.n, columns: manifest.columns, isShuffled: manifest.deflated });
    }
    /** A column in the smallest typed array that holds it. */
    column(name) {
      const spec = this.columns[name], isConstant = typeof spec === "number", [least, most] = isConstant ? [spec, spec] : [spec.least, spec.most];
      const kind = smallestArray(least, most, SIGNED_COLUMNS.has(name) || least < 0);
      if (isConstant) return new kind(this.n).fill(spec);
      if (spec.bytes === 1 && !spec.bias && !spec.exceptions) return new kind(this.bytes.subarray(spec.at, spec.at + this.n));
      return kind === Float64Array ? this.floats(name) : new kind(this.floats(name));
    }
    /** The same as float64, whatever the values are. */
    floats(name) {
      const spec = this.columns[name];
      if (typeof spec === "number") return new Float64Array(this.n).fill(spec);
      const { bias, bytes: width } = spec, values = this.integers(spec.at, width, this.n), sign = 2 ** (8 * width) - 1;
      if (!spec.exceptions && !bias) return values;
      const odd = spec.exceptions ? this.integers(spec.exceptionsAt, 8, spec.exceptions) : [];
      for (let index = 0, next = 0; index < values.length; index++) values[index] = values[index] === sign ? odd[next++] : values[index] + bias;
      return values;
    }
    /** The `count` integers of so many bytes at a place: unsigned ones, but of 8 bytes signed ones. */
    integers(at, width, count) {
      const { bytes } = this, [step, plane] = this.isShuffled ? [1, count] : [width, 1], values = new Float64Array(count), isHalf = width === 2;
      for (let index = 0, first = at; index < count; index++, first += step) {
        if (isHalf) values[index] = bytes[first] | bytes[first + plane] << 8;
        else {
          let value = width === 8 ? bytes[first + 7 * plane] << 24 >> 24 : 0;
          for (let place = Math.min(width, 7) - 1; place >= 0; place--) value = value * 256 + bytes[first + place * plane];
          values[index] = value;
        }
      }
      return values;
    }
  };
  var smallestArray = (least, most, isSigned) => (isSigned ? [Int8Array, Int16Array, Int32Array] : [Uint8Array, Uint16Array, Uint32Array]).find(({ BYTES_PER_ELEMENT: size }) => most < 2 ** (8 * size - Number(isSigned)) && least >= (isSigned ? -(2 ** (8 * size - 1)) : 0)) ?? Float64Array;

  // rows.js
  var ROW_COLUMNS = ["start", "end", "name", "kind", "thread", "partition", "queueing", "place"];
  var SUMMED_COLUMNS = ["count", "busy"];
  var MATCH_SPANS = 64;
  var Row = class {
    constructor(code) {
      this.code = code;
      this.length = 0;
      this.start = new Float64Array(0);
      this.end = new Float64Array(0);
      this.lane = -1;
      this.isPale = false;
      this.overlaps = false;
      this.slack = 0;
      this.edits = 0;
      this.seen = { filter: 0, kinds: 0 };
      for (const name of ROW_COLUMNS) this[name] ??= new Uint8Array(0);
      this.hasWork = false;
      this.count = null;
      this.busy = null;
      this.busySums = new BlockSums(SUM_SPANS, (from, to) => this.addBusy(from, to));
      this.countSums = new BlockSums(SUM_SPANS, (i, j) => sumBetween(this.count, i, j));
      this.reaches = new Float64Array(0);
      this.reached = 0;
      this.matches = null;
      this.matchSums = new BlockSums(MATCH_SPANS, (i, j) => this.addMatches(i, j));
    }
    /** Busy time of the spans i to j, both included. */
    busySum(i, j) {
      return this.busySums.between(i, j + 1, this.length);
    }
    busyAt(index) {
      return this.busy ? this.busy[index] : this.end[index] - this.start[index];
    }
    /** How much of a ns of a span is busy: less than 1 where it stands for several. */
    densityAt(index) {
      return this.busy ? this.busy[index] / (this.end[index] - this.start[index] || 1) : 1;
    }
    addBusy(from, to) {
      if (this.busy) return sumBetween(this.busy, from, to);
      let sum = 0;
      for (let index = from; index < to; index++) sum += this.end[index] - this.start[index];
      return sum;
    }
    countAt(index) {
      return this.count ? this.count[index] : 1;
    }
    /** Last span that starts at t or before, or -1. */
    indexAt(t) {
      return upperBound(this.start, t, 0, this.length) - 1;
    }
    /** First span that starts at t or later, of those before `limit`. */
    firstFrom(t, limit = this.length) {
      return lowerBound(this.start, t, 0, limit);
    }
    /** First span that starts at t exactly and of which `isIt` holds, given its index; or -1. */
    findStart(t, isIt) {
      for (let index = this.firstFrom(t); index < this.length && this.start[index] === t; index++) if (isIt(index)) return index;
      return -1;
    }
    /** First span that ends at t or later: none before it does. */
    firstEndingFrom(t) {
      return lowerBound(this.overlaps ? this.reach() : this.end, t, 0, this.length);
    }
    lastEnd() {
      return (this.overlaps ? this.reach() : this.end)[this.length - 1];
    }
    /** How many spans those from i to j stand for. */
    countSum(i, j) {
      return this.count ? this.countSums.between(i, j + 1, this.length) : j - i + 1;
    }
    append(batch, from, to) {
      if (batch.count || this.count) [this, batch].forEach(storeSums);
      if (batch.hasWork && !this.hasWork) this.storeWork();
      const at = this.placeOf(batch, from);
      if (at < this.length) this.mergeIn(batch, from, to, at);
      else this.copyIn(batch, from, to);
      this.watchShape(at);
    }
    /** Drop the spans before `index`. What is left of the arrays is not copied. */
    dropBefore(index) {
      for (const name of this.stored()) this[name] = this[name].subarray(index);
      this.changeFrom(0, this.length - index);
    }
    /** Keep only the spans of these indices, which are in order. */
    keep(indices) {
      Object.assign(this, takeColumns(this, 0, indices));
      this.changeFrom(0, indices.length);
    }
    /** Where a span of a batch belongs: behind all that come before it. */
    placeOf(batch, from) {
      let at = this.length;
      if (!at || compareSpans(this, at - 1, batch, from) <= 0) return at;
      at = this.firstFrom(batch.start[from]);
      while (at < this.length && compareSpans(this, at, batch, from) <= 0) at++;
      return at;
    }
    /** The spans before `index` stay; now there are `length`. */
    changeFrom(index, length) {
      this.length = length;
      this.edits++;
      for (const sums of [this.busySums, this.countSums, this.matchSums]) sums.forget(index);
      this.reached = Math.min(this.reached, index);
      for (const reader of Object.keys(this.seen)) this.seen[reader] = Math.min(this.seen[reader], index);
    }
    /** What is known of a span's device work; a default where nothing is. */
    work(name, index) {
      return this.hasWork ? this[name][index] : WORK_DEFAULTS[name];
    }
    stored() {
      return [...ROW_COLUMNS, ...this.hasWork ? WORK_COLUMNS : [], ...this.count ? SUMMED_COLUMNS : []];
    }
    copyIn(batch, from, to) {
      const length = this.length + to - from;
      for (const name of this.stored()) {
        const fresh = batch[name] ?? defaultsOf(name, to);
        this[name] = this.length ? joined(this[name], this.length, fresh, from, to) : fresh.subarray(from, to);
      }
      this.length = length;
    }
    /** Late spans: what follows them is taken out and merged with them. */
    mergeIn(batch, from, to, at) {
      const columns = this.stored().map((name) => [name, this[name].slice(at, this.length)]);
      const tail = new SpanBatch([], Object.fromEntries(columns));
      this.changeFrom(at, at);
      let next = 0;
      while (from < to && next < tail.length) {
        const isLate = compareSpans(batch, from, tail, next) < 0;
        const [spans, begin, end] = isLate ? [batch, from, to] : [tail, next, tail.length];
        const [others, other] = isLate ? [tail, next] : [batch, from];
        let index = begin + 1;
        while (index < end && (compareSpans(spans, index, others, other) || (isLate ? 1 : -1)) < 0) index++;
        this.copyIn(spans, begin, index);
        if (isLate) from = index;
        else next = index;
      }
      if (from < to) this.copyIn(batch, from, to);
      if (next < tail.length) this.copyIn(tail, next, tail.length);
    }
    storeWork() {
      for (const name of WORK_COLUMNS) this[name] = defaultsOf(name, this.length);
      this.hasWork = true;
    }
    watchShape(from) {
      const { start, end, length } = this;
      for (let index = Math.max(1, from); index < length; index++) {
        const over = end[index - 1] - start[index];
        if (over <= 0) continue;
        if (over > this.slack) this.slack = over;
        if (end[index] < end[index - 1]) this.overlaps = true;
      }
    }
    reach() {
      if (this.reached === this.length) return this.reaches;
      this.reaches = roomy(this.reaches, this.length, this.reached);
      let latest = this.reached ? this.reaches[this.reached - 1] : -Infinity;
      for (let index = this.reached; index < this.length; index++) this.reaches[index] = latest = Math.max(latest, this.end[index]);
      this.reached = this.length;
      return this.reaches;
    }
    // Searches: an array by name code, not 0 where the name matches; what else is asked is its function `also(row, index)`.
    isMatch(index, matches) {
      return Boolean(matches[this.name[index]]) && (!matches.also || matches.also(this, index));
    }
    /** How many of the spans i to j match. */
    matchCount(i, j, matches) {
      this.matches = matches;
      return this.matchSums.between(i, j + 1, this.length);
    }
    /** The next matching span from `index` on, in direction 1 or -1; where there is none, the length or -1. */
    nextMatch(index, matches, way = 1) {
      this.matches = matches;
      this.matchSums.sumUp(this.length);
      const { blocks, sums } = this.matchSums;
      let at = index;
      while (at >= 0 && at < this.length) {
        const block = Math.floor(at / MATCH_SPANS);
        if (block < blocks && sums[block + 1] === sums[block]) at = way > 0 ? (block + 1) * MATCH_SPANS : block * MATCH_SPANS - 1;
        else if (this.isMatch(at, matches)) return at;
        else at += way;
      }
      return at;
    }
    addMatches(from, to) {
      const { name, matches } = this;
      let sum = 0;
      for (let index = from; index < to; index++) {
        if (matches[name[index]] && (!matches.also || matches.also(this, index))) sum += this.countAt(index);
      }
      return sum;
    }
  };
  function endOfHit(row, first, last) {
    let latest = row.end[last];
    if (row.overlaps) {
      for (let index = first; index < last; index++) if (row.end[index] > latest) latest = row.end[index];
    }
    return latest;
  }
  function compareSpans(spans, index, others, other) {
    return spans.start[index] - others.start[other] || spans.end[index] - others.end[other] || spans.place[index] - others.place[other];
  }
  function takeColumns(row, from, indices) {
    return Object.fromEntries(row.stored().map((name) => {
      const column = row[name].subarray(from, row.length), kind = column.constructor;
      const wide = kind === Float64Array ? column : new Float64Array(column), taken = new Float64Array(indices.length);
      for (let index = 0; index < indices.length; index++) taken[index] = wide[indices[index]];
      return [name, kind === Float64Array ? taken : new kind(taken)];
    }));
  }
  function storeSums(spans) {
    const { start, end, length } = spans;
    spans.count ??= new Uint8Array(length).fill(1);
    spans.busy ??= Float64Array.from({ length }, (_, index) => end[index] - start[index]);
  }
  var defaultsOf = (name, length) => new (SIGNED_COLUMNS.has(name) ? Int8Array : Uint8Array)(length).fill(WORK_DEFAULTS[name]);
  function joined(values, length, fresh, from, to) {
    const size = length + to - from;
    const kind = values.BYTES_PER_ELEMENT < fresh.BYTES_PER_ELEMENT ? fresh.constructor : values.constructor;
    const isLonger = values.length < size;
    const target = isLonger || kind !== values.constructor ? grown(values, isLonger ? roomFor(size) : values.length, length, kind) : values;
    target.set(fresh.subarray(from, to), length);
    return target;
  }
  function isStray(row, index) {
    if (!row.hasWork) return false;
    const owner = row.ownerLane[index];
    return owner >= 0 && owner !== row.lane;
  }
  var isBlocked = (row, index) => row.work("waitedName", index) > WORK_DEFAULTS.waitedName;

  // theme.js
  var THEME_DEFAULTS = { ink: "#1b1f24", soft: "#57606a", grid: "#d0d7de", paper: "#ffffff", warn: "#8a4b00", accent: "#0550ae", stray: "#c40d2e", rim: "#7d8792" };
  var FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif";
  var HATCH_MEDIA = ["(prefers-contrast: more)", "(forced-colors: active)", "print"];
  var THEME_DELAYS_MS = [60, 300, 1e3];
  var onePixel = null;
  function parseColour(text) {
    if (/^#[0-9a-f]{6}$/i.test(text)) return [...[1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16)), 1];
    onePixel ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    onePixel.clearRect(0, 0, 1, 1);
    onePixel.fillStyle = "#000000";
    onePixel.fillStyle = text;
    onePixel.fillRect(0, 0, 1, 1);
    const [r, g, b, alpha] = onePixel.getImageData(0, 0, 1, 1).data;
    return [r, g, b, alpha / 255];
  }
  var isDarkColour = (text) => {
    const [r, g, b] = parseColour(text);
    return 0.299 * r + 0.587 * g + 0.114 * b < 128;
  };
  function isDarkAround(element) {
    const { jpThemeLight } = element.ownerDocument.body.dataset;
    if (jpThemeLight) return jpThemeLight === "false";
    for (let at = element; at; at = at.parentElement ?? at.getRootNode().host) {
      const ground = getComputedStyle(at).backgroundColor;
      if (parseColour(ground)[3] > 0.5) return isDarkColour(ground);
    }
    return !isDarkColour(getComputedStyle(element).color);
  }
  function followTheme(root, around, signal) {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const apply = () => {
      const theme = (around ? isDarkAround(around) : system.matches) ? "dark" : "light";
      if (root.dataset.theme === theme) return;
      root.dataset.theme = root.style.colorScheme = theme;
    };
    apply();
    watchTheme(apply, signal, around?.ownerDocument);
  }
  function blend(over, under, alpha) {
    const a = parseColour(over), b = parseColour(under);
    return "#" + [0, 1, 2].map((i) => Math.round(a[i] * alpha + b[i] * (1 - alpha)).toString(16).padStart(2, "0")).join("");
  }
  function readTheme(element) {
    const probe = element.appendChild(document.createElement("i")), style = getComputedStyle(probe), theme = {};
    probe.style.forcedColorAdjust = "none";
    for (const [name, value] of Object.entries(THEME_DEFAULTS)) {
      probe.style.color = `var(--gsl-${name})`;
      const [r, g, b, alpha] = parseColour(style.color || value);
      theme[name] = alpha < 0.05 ? value : blend(`rgb(${r},${g},${b})`, "#ffffff", 1);
    }
    probe.remove();
    theme.isDark = isDarkColour(theme.paper);
    theme.shade = theme.isDark ? "rgba(160,170,180,0.09)" : "rgba(100,110,120,0.08)";
    theme.busy = theme.isDark ? "#5b9dbf" : "#7aa9c2";
    theme.memory = theme.isDark ? "#4f8f7a" : "#8cc9b4";
    theme.needsHatches = HATCH_MEDIA.some((media) => matchMedia(media).matches);
    theme.key = JSON.stringify(theme);
    return theme;
  }
  function watchTheme(callback, signal, page = document) {
    const queries = ["(prefers-color-scheme: dark)", ...HATCH_MEDIA].map((media) => matchMedia(media));
    let timers = [];
    const changed = () => {
      timers.forEach(clearTimeout);
      timers = THEME_DELAYS_MS.map((delay) => setTimeout(callback, delay));
      callback();
    };
    const observer = new MutationObserver(changed);
    const attributes = { attributes: true, attributeFilter: ["class", "style", "data-theme", "data-jp-theme-light", "data-jp-theme-name"] };
    for (const node of [page.documentElement, page.body]) observer.observe(node, attributes);
    for (const query of queries) query.addEventListener("change", changed, { signal });
    signal.addEventListener("abort", () => {
      timers.forEach(clearTimeout);
      observer.disconnect();
    });
  }
  function themePlot(plot, theme) {
    const alpha = matchMedia("(forced-colors: active)").matches ? 0.25 : 0.7;
    for (const axis of plot.above)
      axis.setv({ major_label_text_color: theme.ink, axis_line_color: theme.grid, major_tick_line_color: theme.grid });
    for (const part of plot.center)
      if (/Grid$/.test(part.type)) part.setv({ grid_line_color: theme.grid, grid_line_alpha: alpha });
  }

  // brush.js
  var BAND_PX = 26;
  var TINT = 0.3;
  var HATCH_PX = 8;
  var HATCH_LINES = {
    // Lines of each hatch, within a square of 8 by 8.
    "/": "M-2 10L10 -2M-2 2L2 -2M6 10L10 6",
    "\\": "M-2 -2L10 10M6 -2L10 2M-2 6L2 10",
    "-": "M0 4H8",
    "|": "M4 0V8",
    "x": "M0 0L8 8M8 0L0 8",
    "+": "M0 4H8M4 0V8",
    ".": "M3 3h2v2h-2z"
  };
  var BAR_INK = "#101418";
  var Hatches = class {
    constructor() {
      this.made = /* @__PURE__ */ new Map();
      this.masks = /* @__PURE__ */ new Map();
    }
    get(ctx, sign, ratio) {
      const key = `${sign} ${ratio}`;
      if (!this.made.has(key)) this.made.set(key, ctx.createPattern(makeHatch(sign, ratio), "repeat"));
      this.made.get(key).setTransform(this.matrix);
      return this.made.get(key);
    }
    // Which px of a picture lie on the lines of a hatch.
    mask(sign, ratio) {
      const key = `${sign} ${ratio}`;
      if (!this.masks.has(key)) {
        const tile = makeHatch(sign, ratio), size = tile.width, { data } = tile.getContext("2d").getImageData(0, 0, size, size);
        this.masks.set(key, { isDark: (x, y) => data[4 * (y % size * size + x % size) + 3] > 30 });
      }
      return this.masks.get(key);
    }
    // Anchor all of them at a point of the canvas, in device px.
    anchor(x, y) {
      this.matrix = new DOMMatrix([1, 0, 0, 1, Math.round(x), Math.round(y)]);
    }
  };
  function makeHatch(sign, ratio) {
    const tile = document.createElement("canvas"), size = Math.max(4, Math.round(HATCH_PX * ratio));
    tile.width = tile.height = size;
    const pen = tile.getContext("2d");
    pen.scale(size / HATCH_PX, size / HATCH_PX);
    pen.globalAlpha = 0.35;
    pen.stroke(new Path2D(HATCH_LINES[sign]));
    return tile;
  }
  function hatchShape(ctx, { hatches, ratio, hasHatch }, sign, shape) {
    if (!hasHatch(sign)) return;
    const pattern = hatches.get(ctx, sign, ratio);
    pattern.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0]));
    ctx.fillStyle = pattern;
    ctx.fill(shape);
  }
  var Texts = class {
    constructor() {
      this.widths = /* @__PURE__ */ new Map();
    }
    width(ctx, text) {
      const key = ctx.font + text;
      let width = this.widths.get(key);
      if (width === void 0) {
        if (this.widths.size > 2e4) this.widths.clear();
        this.widths.set(key, width = ctx.measureText(text).width);
      }
      return width;
    }
    // The text, or its begin with "…" and, where that tells it from others, its end; or "" where not even that fits.
    fit(ctx, text, roomPx, keepsEnd = false) {
      const width = this.width(ctx, text);
      if (width <= roomPx) return text;
      const cut = (keep2) => {
        const begin = keepsEnd ? keep2 >> 1 : keep2;
        return `${text.slice(0, begin).trimEnd()}…${text.slice(text.length - keep2 + begin).trimStart()}`;
      };
      let keep = Math.min(text.length - 1, Math.floor(text.length * roomPx / width));
      while (keep > 1 && this.width(ctx, cut(keep)) > roomPx) keep--;
      return keep < 2 ? "" : cut(keep);
    }
  };
  function setPen(ctx, ink, px = 12, align = "left", weight = "normal") {
    Object.assign(ctx, { fillStyle: ink, font: `${weight} ${px}px ${FONT}`, textAlign: align, textBaseline: "middle" });
  }
  var TINTS = 4;
  var SOLID = 0;
  var HOLLOW = 1;
  var OPEN = 2;
  var LINE = 0.55;
  var Looks = class {
    constructor(view, theme) {
      const { tables } = view;
      Object.assign(this, { tables, by: colourBy(view) });
      this.fills = tables.palette.flat();
      this.shades = this.fills.map((fill) => shadesOf(fill, theme.paper));
      this.lines = this.fills.map((fill) => blend(fill, theme.ink, LINE));
      this.callHue = hueCount(tables) + 1;
      this.blocked = tables.call_styles.findIndex(([label]) => label === "synchronise");
    }
    // The class of a call of the host, or -1. Those that blocked the host look as those do that are made to wait.
    call(row, index) {
      if (isBlocked(row, index)) return this.blocked;
      return Math.max(-1, (this.tables.name_styles[row.name[index]]?.[0] ?? 0) - this.callHue);
    }
    // The colour of a span.
    code(row, index) {
      const call = this.call(row, index);
      if (call >= 0) return (this.callHue + call) * TINTS;
      const [hue, tint2] = this.tables.name_styles[row.name[index]] ?? [this.callHue - 1, 0];
      return (this.by === "name" ? hue : spanHue(this.tables, this.by, row, index)) * TINTS + tint2;
    }
    // The calm colour of many spans: of no name.
    load(row, index) {
      return spanHue(this.tables, this.by, row, index) * TINTS;
    }
    shape(row, index) {
      const { kinds, lanes, capture, call_styles: calls } = this.tables, kind = kinds[row.kind[index]];
      const isCaptured = () => row.isPale && (!capture?.shown || capture.windows.some(([from, to]) => row.start[index] >= from && row.end[index] <= to));
      if (kind === "range" && !lanes[row.lane].host) return isCaptured() ? HOLLOW : OPEN;
      return row.isPale || kind === "wait" || calls[this.call(row, index)]?.[2] ? HOLLOW : SOLID;
    }
    hatch(row, index) {
      const { call_styles: calls, kind_hatches: kinds, name_styles: names } = this.tables;
      return calls[this.call(row, index)]?.[1] ?? (kinds[row.kind[index]] || names[row.name[index]]?.[2]);
    }
  };
  var hueCount = ({ palette, call_styles: calls }) => palette.length - 1 - calls.length;
  function colourBy({ colour, planned }) {
    const isSplit = hasPartitions(planned);
    return colour && (colour !== "partition" || isSplit) ? colour : isSplit ? "partition" : "stream";
  }
  var hasPartitions = ({ groups }) => groups.some(({ letter }) => letter);
  function spanHue(tables, by, row, index) {
    const band = by === "partition" ? tables.bands[tables.partitions[row.partition[index]]?.band] : null, { host, has_own_hue: isOwn } = tables.lanes[row.lane];
    return host || isOwn || !band ? laneHue(tables, by, row.lane) : band.hue;
  }
  function laneHue(tables, by, lane) {
    const grey = hueCount(tables), { host, hue, place } = tables.lanes[lane];
    if (host || by === "name") return grey;
    return by === "stream" ? place % grey : hue ?? grey;
  }
  var SHADES = 16;
  var DIM_SHADE = 3;
  var openShade = ({ isDark }) => isDark ? 6 : 3;
  var OPEN_STRIP = 0.4;
  var shadesOf = (fill, paper) => Array.from({ length: SHADES + 1 }, (_, i) => blend(fill, paper, i / SHADES));
  function clipTo(ctx, left, top, right, bottom, paint) {
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, right - left, bottom - top);
    ctx.clip();
    paint();
    ctx.restore();
  }
  var clipLanes = (ctx, view, left, paint) => clipTo(ctx, left, view.lanesTop(), view.frame.right, view.lanesBottom(), paint);

  // nodes.js
  var CLICK_PX = 4;
  var HATCH_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="6" height="6" viewBox="0 0 8 8"><path d="*" stroke="#101418" stroke-opacity=".5" fill="none"/></svg>';
  function makeNode(tag, facts = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(facts)) {
      if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value != null) element.setAttribute(name, value);
    }
    if (element.matches("button, input, textarea, [tabindex]")) element.dataset.lmSuppressShortcuts = "true";
    element.append(...children.filter((child) => child != null));
    return element;
  }
  function makeButton(text, { label = text, key = "", ...facts } = {}) {
    const title = key ? `${label} (${key})` : label;
    return makeNode("button", { type: "button", title, "aria-label": label, "aria-keyshortcuts": key || null, text, ...facts });
  }
  function makeSwatch({ fill, hatch, letter = "", shape = "" }) {
    const swatch = makeNode("i", { class: "gsl-swatch", "aria-hidden": "true", text: letter, "data-shape": shape });
    swatch.style.setProperty("--gsl-fill", fill);
    if (HATCH_LINES[hatch]) swatch.style.setProperty("--gsl-hatch", `url("data:image/svg+xml,${encodeURIComponent(HATCH_SVG.replace("*", HATCH_LINES[hatch]))}")`);
    return swatch;
  }
  function listen(element, heard, options = true) {
    for (const [type, listener] of Object.entries(heard)) element.addEventListener(type, listener, options);
  }
  function onClick({ figureElement: figure }, listener) {
    let down = null;
    const pointerdown = (event) => {
      down = event.button ? null : event;
    };
    const pointerup = (up) => {
      if (down && !up.button && Math.hypot(up.clientX - down.clientX, up.clientY - down.clientY) <= CLICK_PX) listener(up);
      down = null;
    };
    listen(figure, { pointerdown, pointerup });
  }
  function throttled(viewer, action, everyMs) {
    let timer = 0, last = -Infinity;
    const call = () => {
      timer ||= setTimeout(() => {
        timer = 0;
        last = performance.now();
        action();
      }, Math.max(0, last + everyMs - performance.now()));
    };
    viewer.atEnd(() => clearTimeout(timer));
    return call;
  }
  var Sheet = class {
    constructor(viewer, name, label, { keys = ["Escape"], back = () => viewer.element } = {}) {
      const facts = { role: "dialog", "aria-label": label, tabindex: "-1", popover: "auto" };
      Object.assign(this, { viewer, back, element: makeNode("section", { class: `gsl-sheet gsl-${name}`, ...facts }) });
      this.element.addEventListener("keydown", (event) => {
        if (event.isComposing || !keys.includes(event.key)) return;
        event.preventDefault();
        event.stopPropagation();
        this.shut();
      });
      viewer.element.append(this.element);
    }
    /** Put a heading, a button that shuts it, and nodes into it. */
    fill(title, ...nodes) {
      const close = makeButton("Close", { key: "Escape", onclick: () => this.shut() });
      this.element.replaceChildren(makeNode("header", {}, makeNode("h3", { text: title, dir: "auto" }), close), ...nodes);
    }
    get isOpen() {
      return this.element.matches(":popover-open");
    }
    /** Open it in the middle of the window, or at a place of it: within, also when the window becomes smaller. */
    open({ top, left, right } = {}) {
      const { element, viewer } = this;
      viewer.commands.hideTip();
      element.togglePopover(true);
      if (top !== void 0) {
        const within = (px, side, size) => `max(4px, min(${px}px, ${side} - ${size + 4}px))`;
        const x = within(left ?? right - element.offsetWidth, "100vw", element.offsetWidth);
        Object.assign(element.style, { inset: "auto", margin: "0", left: x, top: within(top, "100vh", element.offsetHeight) });
      }
      element.focus({ preventScroll: true });
    }
    shut() {
      this.element.hidePopover();
      this.back()?.focus({ preventScroll: true });
    }
  };
  async function copyText(text, button, place) {
    const says = button.textContent;
    const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false) || copyByCommand(text, place);
    if (!isCopied) return;
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = says;
    }, 1500);
  }
  function copyByCommand(text, place) {
    const focused = document.activeElement, area = makeNode("textarea", { readonly: true, rows: "3", "aria-label": "Text to copy" });
    const offer = makeNode("div", { class: "gsl-offer" }, makeNode("p", { text: "This page may not use the clipboard. Press Ctrl+C:" }), area);
    area.value = text;
    place.querySelector(".gsl-offer")?.remove();
    place.append(offer);
    area.focus();
    area.select();
    let isCopied = false;
    try {
      isCopied = document.execCommand("copy");
    } catch {
    }
    if (isCopied) {
      offer.remove();
      focused?.focus?.({ preventScroll: true });
    }
    return isCopied;
  }

  // units.js
  var FIRST_MINUTE_NS = 12e10;
  var toFixedEven = (value, digits) => {
    const scale = 10 ** digits, low = Math.floor(value * scale);
    const isTie = (low + 0.5) / scale === value;
    return (isTie && low % 2 === 0 ? low / scale : value).toFixed(digits);
  };
  var grouped = (text) => text.replace(/\B(?<!\..*)(?=(\d{3})+(\.|$))/g, ",");
  var threeDigits = (value) => grouped(toFixedEven(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2));
  function formatNs(ns) {
    if (ns < 0) return "-" + formatNs(-ns);
    if (!(ns < Infinity)) return "-";
    if (ns < 999.5) return Number(ns.toPrecision(3)) + " ns";
    if (ns < 999500) return threeDigits(ns / 1e3) + " µs";
    if (ns < 9995e5) return threeDigits(ns / 1e6) + " ms";
    return ns < FIRST_MINUTE_NS * 0.9995 ? threeDigits(ns / 1e9) + " s" : threeDigits(ns / 6e10) + " min";
  }
  var formatCount = (count) => grouped(String(Math.round(count)));
  var TICK_UNITS = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9], ["min", 6e10]];
  var tickUnit = (widthNs) => TICK_UNITS[widthNs > FIRST_MINUTE_NS ? 4 : widthNs >= 1e9 ? 3 : widthNs >= 1e6 ? 2 : widthNs >= 1e3 ? 1 : 0];
  function tickBase(startNs, widthNs) {
    if (!(widthNs > 0) || Math.abs(startNs) < 2e3 * widthNs) return 0;
    const step = 10 ** Math.ceil(Math.log10(widthNs));
    return Math.floor(startNs / step) * step;
  }
  function formatTicks(ticks, startNs, widthNs) {
    const [unit, scale] = tickUnit(widthNs), base = tickBase(startNs, widthNs);
    const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) / scale : 1;
    const wanted = unit === "min" ? step % 1 > 1e-9 ? 1 : 0 : Math.ceil(-Math.log10(step) - 1e-9);
    const digits = Math.min(9, Math.max(0, wanted || 0));
    return ticks.map((tick) => {
      const text = grouped(Math.abs((tick - base) / scale).toFixed(digits));
      const sign = tick < base && /[1-9]/.test(text) ? "-" : base ? "+" : "";
      return `${sign}${text} ${unit}`;
    });
  }
  function formatBase(baseNs) {
    const [whole, part] = (Math.abs(baseNs) / 1e9).toFixed(9).replace(/\.?0+$/, "").split(".");
    return `${baseNs < 0 ? "-" : ""}${grouped(whole)}${part ? "." + part.replace(/\d{3}(?=\d)/g, "$& ") : ""} s`;
  }
  var BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  function formatBytes(bytes) {
    let place = 0;
    while (Math.abs(bytes) >= 1023.5 && place < BYTE_UNITS.length - 1) {
      bytes /= 1024;
      place += 1;
    }
    return `${bytes.toFixed(place === 0 || Math.abs(bytes) >= 100 ? 0 : Math.abs(bytes) >= 10 ? 1 : 2)} ${BYTE_UNITS[place]}`;
  }
  var SPEED_UNITS = ["GB/s", "MB/s", "kB/s"];
  function formatSpeed(bytesPerNs) {
    let place = 0;
    while (bytesPerNs < 0.9995 && place < SPEED_UNITS.length - 1) {
      bytesPerNs *= 1e3;
      place += 1;
    }
    return `${threeDigits(bytesPerNs)} ${SPEED_UNITS[place]}`;
  }

  // facts.js
  var TOP_NAMES = 5;
  var WORK_KINDS = /* @__PURE__ */ new Set(["kernel", "copy", "fill"]);
  function exactTime(ns) {
    const short = formatNs(ns), exact = `${formatCount(ns)} ns`;
    return short === exact ? exact : `${short} (${exact})`;
  }
  var hitFacts = (view, hit) => isSpan(hit) ? spanFacts(view, hit) : mergedFacts(view, hit);
  function spanFacts(view, { row: code, index }) {
    const { store, tables } = view;
    const row = store.row(code);
    const count = row.countAt(index), lane = laneOf(view, code), onStream = (text) => lane.host ? "" : text;
    const owner = Object.fromEntries(row.hasWork ? ownerFacts(view, row, index) : []);
    const facts = [
      ["stray", owner.stray],
      [lane.host ? "thread" : "stream", laneText(lane)],
      ["partition", onStream(tables.partitions[row.partition[index]]?.text)],
      ["kind", tables.kinds[row.kind[index]]],
      ...callFacts(view, row, index),
      ["start", exactTime(row.start[index])],
      ["duration", exactTime(row.end[index] - row.start[index])],
      ...withinFacts(row, index),
      ["range", owner.range],
      ...launchFacts(view, row, index),
      ["queueing", onStream(exactTime(row.queueing[index]) + (isWork(view, row, index) ? " from launch to start" : ""))],
      ["thread", onStream(tables.threads[row.thread[index]])]
    ];
    if (count > 1) facts.splice(4, 0, ["spans", `${formatCount(count)}, sent as one`], [tables.header.busy_word, exactTime(row.busyAt(index))]);
    return facts.filter(([, text]) => text);
  }
  function mergedFacts(view, hit) {
    const { store, tables } = view;
    const row = store.row(hit.row);
    const [start, end] = timesOf(view, hit), busy = row.busySum(hit.first, hit.last);
    const top = topNames(row, view.tables.names.length, hit.first, hit.last);
    return [
      [laneOf(view, hit.row).host ? "thread" : "stream", laneText(laneOf(view, hit.row))],
      ["start", exactTime(start)],
      ["window", exactTime(end - start)],
      [tables.header.busy_word, `${exactTime(busy)}, ${formatShare(end > start ? Math.min(1, busy / (end - start)) : NaN)}`],
      ["names", [...top.map(([code, count]) => `${nameOf(view, code)} × ${formatCount(count)}`), ...top.more ? [`+ ${formatCount(top.more)} more`] : []].join("\n")]
    ];
  }
  function topNames(row, nameCount, first, last) {
    const counts = new Float64Array(nameCount), times = new Float64Array(nameCount), codes = [];
    const { name } = row;
    for (let i = first; i <= last; i += 1) {
      const code = name[i];
      if (!counts[code]) codes.push(code);
      counts[code] += row.countAt(i);
      times[code] += row.busyAt(i);
    }
    codes.sort((a, b) => times[b] - times[a] || a - b);
    const top = codes.slice(0, TOP_NAMES).map((code) => [code, counts[code]]);
    top.more = Math.max(0, codes.length - TOP_NAMES);
    return top;
  }
  function formatShare(share) {
    if (Number.isNaN(share)) return "-";
    if (share > 0 && share < 5e-3) return "<1%";
    if (share >= 0.995 && share < 1) return ">99%";
    return `${Math.round(100 * share)}%`;
  }
  var isSpan = (hit) => hit.index !== void 0;
  function timesOf(view, { row: code, index, first = index, last = index }) {
    const row = view.store.row(code);
    return [row.start[first], endOfHit(row, first, last)];
  }
  function hitTitle(view, hit) {
    if (isSpan(hit)) return nameOf(view, view.store.row(hit.row).name[hit.index]);
    return `${formatCount(hit.count ?? view.store.row(hit.row).countSum(hit.first, hit.last))} spans`;
  }
  function factList(facts) {
    const list = makeNode("dl", { class: "gsl-facts" });
    for (const [label, text] of facts) list.append(makeNode("div", { "data-fact": label }, makeNode("dt", { text: label }), makeNode("dd", { text, dir: "auto" })));
    return list;
  }
  var isWork = ({ tables }, row, index) => WORK_KINDS.has(tables.kinds[row.kind[index]]);
  function launchFacts(view, row, index) {
    const detail = view.tables.details?.[row.work("detail", index)], size = row.work("size", index);
    const facts = [];
    if (detail) {
      const [fullName, grid, block, registers, staticBytes, dynamicBytes, graph, fit] = detail;
      if (fullName && fullName !== nameOf(view, row.name[index])) facts.push(["in full", fullName]);
      const threads = block.some(Boolean) ? ` × ${sizesText(block)} threads` : "";
      if (grid.some(Boolean)) facts.push(...smsFacts(view, row, index, grid, fit), ["grid", `${sizesText(grid)} blocks${threads}`]);
      if (registers) facts.push(["registers", `${registers} a thread`]);
      if (staticBytes + dynamicBytes) facts.push(["shared", sharedText(staticBytes, dynamicBytes)]);
      if (graph) facts.push(["graph", `launched by CUDA graph ${graph}`]);
    }
    if (size) facts.push(["bytes", sizeText(view, row, index, size)]);
    return facts;
  }
  function smsFacts({ tables }, row, index, grid, fit) {
    const code = row.partition[index], { device } = tables.lanes[row.lane];
    const sms = code ? tables.partitions[code]?.sms : tables.cards.find((card) => tables.cards.length === 1 || card.device === device)?.sms;
    const blocks = grid.reduce((product, size) => product * Math.max(1, size), 1), many = `${formatCount(blocks)} block${blocks === 1 ? "" : "s"}, ${formatCount(fit)} fit on one`;
    return sms ? [["SMs", `${formatCount(Math.min(sms, Math.ceil(blocks / fit)))} of ${formatCount(sms)} (${many})`]] : [];
  }
  function sizesText(sizes) {
    const last = sizes.findLastIndex((size) => size > 1);
    return sizes.slice(0, Math.max(1, last + 1)).map(formatCount).join("×");
  }
  function sharedText(staticBytes, dynamicBytes) {
    const parts = staticBytes && dynamicBytes ? ` (${formatBytes(staticBytes)} static, ${formatBytes(dynamicBytes)} dynamic)` : "";
    return `${formatBytes(staticBytes + dynamicBytes)} a block${parts}`;
  }
  function sizeText(view, row, index, size) {
    const duration = row.end[index] - row.start[index], text = formatBytes(size);
    return isWork(view, row, index) && duration > 0 ? `${text}, ${formatSpeed(size / duration)}` : text;
  }
  function ownerFacts(view, row, index) {
    const lane = row.work("ownerLane", index), code = row.work("ownerName", index);
    if (lane < 0) return [];
    const name = code < 0 ? "a range" : `'${nameOf(view, code)}'`, stream = laneText(view.tables.lanes[lane]);
    if (isStray(row, index)) return [["stray", `range ${name} selected stream ${stream}`]];
    return [["range", name]];
  }
  function withinFacts(row, index) {
    const count = row.work("workCount", index);
    if (!count) return [];
    const first = signedTime(row.work("workLead", index)), last = signedTime(-row.work("workTail", index));
    const kernels = count === 1 ? "1 kernel or copy" : `${formatCount(count)} kernels and copies`;
    return [["work", `first starts ${first}, last ends ${last}, ${kernels}`]];
  }
  var signedTime = (ns) => `${ns < 0 ? "−" : "+"}${formatNs(Math.abs(ns))}`;
  function callFacts(view, row, index) {
    const { tables } = view;
    if (tables.kinds[row.kind[index]] !== "host") return [];
    const label = callLabel(view, row.name[index]), waits = label === "synchronise" || isBlocked(row, index);
    const facts = waits ? [["call", `${label || "copy"}: the host waits for the device`]] : label ? [["call", label]] : [];
    if (!isBlocked(row, index)) return facts;
    const code = row.work("waitedName", index), duration = formatNs(row.end[index] - row.start[index]);
    return [...facts, ["blocked", code < 0 ? duration : `${duration}, for ${nameOf(view, code)}`]];
  }
  var WORK_WORDS = { kernel: "kernels", copy: "copies", fill: "fills" };
  function workWord(view, lane) {
    const { store, tables } = view, kinds = /* @__PURE__ */ new Set();
    for (const code of view.laneRows[lane]) {
      const row = store.ownRow(code);
      const known = row.kindsSeen ??= /* @__PURE__ */ new Set();
      for (; row.seen.kinds < row.length; row.seen.kinds += 1) known.add(row.kind[row.seen.kinds]);
      for (const kind of known) if (WORK_KINDS.has(tables.kinds[kind])) kinds.add(tables.kinds[kind]);
    }
    return kinds.size === 1 ? WORK_WORDS[[...kinds][0]] : "work";
  }
  function pinAnchor(view, hit) {
    const row = view.store.row(hit.row);
    const indices = isSpan(hit) ? [hit.index] : [hit.first, hit.last];
    return { hit, starts: indices.map((i) => row.start[i]), places: indices.map((i) => row.place[i]) };
  }
  function movedPin(view, anchor) {
    const { hit, starts, places } = anchor;
    if (!view.tables.rows[hit.row]) return null;
    const found = places.map((place, k) => view.store.indexOf(hit.row, starts[k], place));
    if (found.includes(-1)) return null;
    if (isSpan(hit)) return found[0] === hit.index ? hit : { row: hit.row, index: found[0] };
    return found[0] === hit.first && found[1] === hit.last ? hit : null;
  }
  function enclosingSpans(view, { row: code, index }) {
    const { store, tables } = view, own = tables.rows[code], row = store.row(code);
    if (isWork(view, row, index) && row.hasWork && row.ownerLane[index] !== row.lane) return [];
    const start = row.start[index], end = row.end[index];
    const found = [];
    tables.rows.forEach((other, otherCode) => {
      if (other.lane !== own.lane || other.top >= own.top) return;
      const above = store.row(otherCode), at = above.indexAt(start);
      if (at >= 0 && above.start[at] <= start && above.end[at] >= end) found.push({ row: otherCode, index: at });
    });
    return found.sort((a, b) => tables.rows[a.row].top - tables.rows[b.row].top);
  }
  var nameOf = (view, code) => view.tables.names[code] ?? "(no name)";
  var laneOf = (view, rowCode) => view.tables.lanes[view.tables.rows[rowCode].lane];
  var laneText = (lane) => lane.label || lane.name;
  function callLabel({ tables }, code) {
    return tables.call_styles[(tables.name_styles[code]?.[0] ?? 0) - hueCount(tables) - 1]?.[0] ?? "";
  }

  // layout.js
  var FOLDED_PX = 16;
  var LAYER_GAP_PX = 1;
  var AWAY_PX = -1e5;
  var firstLayout = () => ({ memory: false, idle: false, folded: /* @__PURE__ */ new Set(), hidden: /* @__PURE__ */ new Set() });
  var laneKey = ({ name, host }) => host ? `host ${name}` : name;
  var groupKey = ({ label }) => `group ${label.split(" · ")[0]}`;
  function layOut(planned, layout, hasSpans) {
    const { head_px: headPx, idle_px: idlePx } = planned;
    const places = placesFromTop(planned), groups = groupLanes(planned, places.keys()), keys = planned.lanes.map(laneKey);
    const isIn = (set) => (code) => layout[set].has(keys[code]), isFolded = isIn("folded");
    const isMemory = ([label]) => label === "memory", isShown = (part) => layout.memory || !isMemory(part);
    const isIdle = (code) => planned.lanes[code].parts.length ? !planned.lanes[code].parts.some(isShown) : !planned.lanes[code].host && !hasSpans(code);
    const isCounted = (code) => planned.lanes[code].counted;
    const isAway = (code) => isCounted(code) || isIn("hidden")(code) || !layout.idle && isIdle(code);
    for (const group of groups) {
      group.isFolded = Boolean(group.label) && layout.folded.has(groupKey(group));
      group.loose = group.lanes.filter((code) => !isAway(code));
      group.shown = group.isFolded ? [] : group.loose;
    }
    const headed = groups.filter((group) => group.label && (group.loose.length || group.letter && group.lanes.every(isIdle)));
    const order = groups.flatMap((group) => group.shown);
    const memoryPx = ({ parts }) => parts.filter(isMemory).reduce((sum, [, top, bottom]) => sum + bottom - top + LAYER_GAP_PX, 0);
    const high = (code) => {
      const lane = planned.lanes[code];
      return isFolded(code) ? FOLDED_PX : Math.max(lane.bottom - lane.top - (layout.memory ? 0 : memoryPx(lane)), FOLDED_PX);
    };
    const lanes = planned.lanes.map((lane, code) => ({ ...lane, place: places.get(code), top: AWAY_PX, bottom: AWAY_PX, parts: [], group: -1 }));
    let y = headPx;
    const put = (code, group) => {
      const lane = lanes[code];
      Object.assign(lane, { group, folded: isFolded(code), top: y, bottom: y += high(code) });
      if (!lane.folded) lane.parts = planned.lanes[code].parts.filter(isShown).map(([label, ...borders]) => [label, ...borders.map((px) => moved(code, px))]);
    };
    const moved = (code, px) => lanes[code].top + px - planned.lanes[code].top;
    const stripIn = ({ lane, ...strip }) => bordersIn(layout.memory ? lanes[lane] : { folded: true }, (px) => moved(lane, px), strip);
    headed.forEach((group, place) => {
      group.place = place;
    });
    const boxes = [];
    for (const group of groups) {
      const top = y;
      if (headed.includes(group)) y += group.head_bottom - group.top;
      const headBottom = y;
      for (const code of group.shown) put(code, group.place ?? -1);
      if (headed.includes(group)) boxes.push(boxOf(group, { top, head_bottom: headBottom, bottom: y }));
    }
    const count = layout.idle ? 0 : [...places.keys()].filter((code) => isIdle(code) && !isCounted(code) && !isIn("hidden")(code)).length;
    const idle = count ? { top: y, bottom: y += idlePx, text: `${count} stream${count === 1 ? "" : "s"} without work` } : null;
    const tables = { ...planned, lanes, groups: boxes, rows: placeRows(planned, lanes, moved), height_px: y, idle };
    if (planned.memory) tables.memory = planned.memory.map((strip) => ({ ...strip, ...stripIn(strip) }));
    return { tables, order };
  }
  function boxOf({ label, detail, fill, hatch, letter, loose, isFolded }, borders) {
    const count = `${loose.length} lane${loose.length === 1 ? "" : "s"} folded`, said = isFolded ? count : loose.length ? "" : "no work";
    return { label, fill, hatch, letter, isFolded, ...borders, detail: [said, detail].filter(Boolean).join(" · ") };
  }
  function placeRows(planned, lanes, moved) {
    const works = new Set(planned.rows.filter((row) => !row.pale && row.bottom > row.top).map((row) => row.lane));
    return planned.rows.map((row) => {
      const lane = lanes[row.lane];
      if (!lane.folded) return { ...row, ...bordersIn(lane, (px) => moved(row.lane, px), row) };
      return row.pale && works.has(row.lane) ? { ...row, top: AWAY_PX, bottom: AWAY_PX } : { ...row, top: lane.top + 2, bottom: lane.bottom - 2 };
    });
  }
  var bordersIn = (lane, moved, { top, bottom }) => lane.top === AWAY_PX || lane.folded ? { top: AWAY_PX, bottom: AWAY_PX } : { top: moved(top), bottom: moved(bottom) };
  var placesFromTop = ({ lanes }) => new Map([...lanes.keys()].sort((a, b) => lanes[a].top - lanes[b].top).map((code, place) => [code, place]));
  function groupLanes(planned, codes) {
    const groups = /* @__PURE__ */ new Map();
    for (const code of codes) {
      const group = planned.groups[planned.lanes[code].group], key = group?.label ?? "";
      if (!groups.has(key)) groups.set(key, { ...group, lanes: [] });
      groups.get(key).lanes.push(code);
    }
    return [...groups.values()];
  }
  var hasDevices = ({ lanes }) => new Set(lanes.filter((lane) => !lane.host).map((lane) => lane.device)).size > 1;

  // view.js
  var LANES_MAX_PX = 520;
  var LANES_MIN_PX = 60;
  var LANES_GAP_PX = 6;
  var CAPTURE_STRIP_PX = 12;
  var NO_HEAD = { card_rows: [], head_px: 0, idle_px: 18 };
  var MIN_WINDOW_NS = 10;
  var EMPTY_WINDOW_NS = 1e6;
  var FOLD_PX = [280, 32];
  var HIT_PX = 3;
  var FILTER_KEYS = /* @__PURE__ */ new Set(["hiddenNames", "hiddenKinds", "hiddenPartitions", "hiddenStreams"]);
  var STATE_KEYS = /* @__PURE__ */ new Set(["isLive", "isFollowing", "isPaused"]);
  function planParts(tables, roomPx) {
    const stripPx = tables.capture?.shown ? LANES_GAP_PX + CAPTURE_STRIP_PX : 0, headPx = tables.head_px;
    const lanesPx = Math.max(headPx + LANES_MIN_PX, Math.min(roomPx - stripPx, Math.round(tables.height_px)));
    const capture = stripPx ? { top: lanesPx + LANES_GAP_PX, bottom: lanesPx + stripPx } : null;
    return { lanesPx, headPx, capture, innerPx: lanesPx + stripPx };
  }
  var View = class {
    constructor(tables, store) {
      this.store = store;
      this.listeners = /* @__PURE__ */ new Map();
      this.frame = { left: 0, top: 0, right: 1, bottom: 1 };
      this.scrollPx = 0;
      this.layout = firstLayout();
      this.roomPx = LANES_MAX_PX;
      this.lane = null;
      for (const group of FILTER_KEYS) this[group] = /* @__PURE__ */ new Set();
      this.matches = this.selection = this.pinned = this.hovered = null;
      this.gap = this.reason = null;
      this.why = tables.why ?? null;
      this.lit = null;
      this.notes = [];
      this.found = null;
      this.strayCount = 0;
      this.showsWaits = true;
      this.colour = null;
      this.isLive = this.isFollowing = this.isPaused = this.hasHatches = false;
      this.nowNs = 0;
      this.openWork = [];
      this.painted = null;
      this.kept = /* @__PURE__ */ new Map();
      this.adoptTables(tables);
      this.fit();
    }
    adoptTables(told) {
      const planned = this.planned = { ...NO_HEAD, ...told };
      this.laneRows = planned.lanes.map(() => []);
      planned.rows.forEach((row, code) => this.laneRows[row.lane].push(code));
      const { tables, order } = layOut(planned, this.layout, (code) => this.hasSpans(code));
      Object.assign(this, { tables, laneOrder: order });
      this.parts = planParts(tables, this.roomPx);
      this.lanesPx = this.parts.lanesPx;
      this.scrollPx = this.clampScroll(this.scrollPx);
    }
    // Lay the lanes out anew, after a change of what was chosen or of the room.
    arrange(changes) {
      Object.assign(this.layout, changes);
      this.adoptTables(this.planned);
      this.emit("data", "tables");
    }
    // Put a key into one of the layout's sets, or take it out.
    setIn(set, key, isIn) {
      const keys = new Set(this.layout[set]);
      keys[isIn ? "add" : "delete"](key);
      this.arrange({ [set]: keys });
    }
    setRoom(roomPx) {
      if (this.roomPx === roomPx) return;
      const { lanesPx, pinned } = this;
      this.roomPx = roomPx;
      this.adoptTables(this.planned);
      if (pinned && this.lanesPx < lanesPx && this.tables.rows[pinned.row].bottom - this.scrollPx > this.lanesPx) this.scrollToRow(pinned.row);
      if (this.lanesPx !== lanesPx) this.emit("data", "tables");
    }
    // Show a lane that is hidden, or whose group is folded.
    reveal(code) {
      const lane = this.planned.lanes[code];
      if (this.layout.hidden.has(laneKey(lane))) this.setIn("hidden", laneKey(lane), false);
      if (!this.laneOrder.includes(code)) for (const group of this.tables.groups.filter((one) => one.isFolded)) this.setIn("folded", groupKey(group), false);
    }
    // Keep a part of the view: `read` returns a JSON value, null where it is as at first; `write` takes what `read` returned.
    keep(key, read, write) {
      this.kept.set(key, { read, write });
    }
    on(event, listener) {
      if (!this.listeners.has(event)) this.listeners.set(event, /* @__PURE__ */ new Set());
      this.listeners.get(event).add(listener);
    }
    emit(event, detail) {
      for (const listener of [...this.listeners.get(event) || []]) listener(detail);
    }
    // From the first start to the last end, with a margin.
    fullRange() {
      const { start, end } = this.extent();
      const width = end - start || EMPTY_WINDOW_NS;
      return { start: start - 0.01 * width, end: start + 1.01 * width };
    }
    extent() {
      const has = this.store.length > 0;
      const start = has ? Math.min(0, this.store.firstNs) : 0;
      return { start, end: Math.max(this.tables.extent_ns, has ? this.store.lastNs : 0, this.nowNs, start) };
    }
    // From the first start to the last end on any stream: what threads of the host called before and after is no work.
    streamExtent() {
      const rows = this.usedStreams().flatMap((lane) => this.laneRows[lane]).map((code) => this.store.ownRow(code)).filter((row) => row.length);
      if (!rows.length) return this.extent();
      return { start: Math.min(...rows.map((row) => row.start[0])), end: Math.max(...rows.map((row) => row.lastEnd())) };
    }
    // Whether anything ran, or has begun, on a lane.
    hasSpans(lane) {
      return this.laneRows[lane].some((code) => this.store.ownRow(code)?.length) || this.openWork.some(([open]) => open === lane);
    }
    // Codes of the streams on which anything ran.
    usedStreams() {
      return this.laneOrder.filter((lane) => !this.tables.lanes[lane].host && this.hasSpans(lane));
    }
    // How far a window may reach.
    bounds() {
      const { start, end } = this.extent(), full = end - start || EMPTY_WINDOW_NS;
      return { low: start - 0.1 * full, high: start + 1.1 * full };
    }
    // A window that is neither too narrow nor outside what there is.
    clampRange(x0, x1) {
      const { low, high } = this.bounds();
      const width = Math.min(high - low, Math.max(MIN_WINDOW_NS, x1 - x0));
      const middle = (x0 + x1) / 2, begin = Math.min(high - width, Math.max(low, width === x1 - x0 ? x0 : middle - width / 2));
      return [begin, begin + width];
    }
    setRange(x0, x1) {
      if (!(x1 > x0) || !Number.isFinite(x1 - x0)) return;
      const [begin, end] = this.clampRange(x0, x1);
      if (begin === this.x0 && end === this.x1) return;
      this.x0 = begin;
      this.x1 = end;
      this.emit("range");
    }
    fit() {
      const { start, end } = this.fullRange();
      this.setRange(start, end);
    }
    // With a rim on both sides.
    fitAround(start, end, share = 0.1) {
      const rim = Math.max((end - start) * share, 2);
      this.setRange(start - rim, end + rim);
    }
    // A factor below 1 zooms in.
    zoomBy(factor, atNs = (this.x0 + this.x1) / 2) {
      const width = Math.max(MIN_WINDOW_NS, (this.x1 - this.x0) * factor), share = (atNs - this.x0) / (this.x1 - this.x0);
      this.setRange(atNs - share * width, atNs + (1 - share) * width);
    }
    panBy(fraction) {
      const step = fraction * (this.x1 - this.x0);
      this.setRange(this.x0 + step, this.x1 + step);
    }
    clampScroll(px) {
      return Math.max(0, Math.min(px, this.tables.height_px - this.lanesPx)) || 0;
    }
    scrollTo(px) {
      const clamped = this.clampScroll(Math.round(px));
      if (clamped !== this.scrollPx) this.set("scrollPx", clamped);
    }
    // Where it is said how many lanes are shown.
    isUnderFold(x, y) {
      return this.canScroll && y > this.lanesBottom() - FOLD_PX[1] && x > this.frame.right - FOLD_PX[0];
    }
    get canScroll() {
      return this.tables.height_px > this.lanesPx + 0.5;
    }
    get nsPerPx() {
      return (this.x1 - this.x0) / Math.max(1, this.frame.right - this.frame.left);
    }
    timeAt(px) {
      return this.x0 + (px - this.frame.left) * this.nsPerPx;
    }
    pxAt(ns) {
      return this.frame.left + (ns - this.x0) / this.nsPerPx;
    }
    lanesTop() {
      return this.frame.top + this.parts.headPx;
    }
    lanesBottom() {
      return this.frame.top + this.lanesPx;
    }
    yAt(lanePx) {
      return this.frame.top + lanePx - this.scrollPx;
    }
    isSeen({ top, bottom }) {
      return bottom > this.scrollPx + this.parts.headPx && top < this.scrollPx + this.lanesPx;
    }
    // Codes of the lanes in view, from the top.
    visibleLanes() {
      return this.laneOrder.filter((code) => this.isSeen(this.tables.lanes[code]));
    }
    // Whether a place of the figure is within its frame, no more than so many px below its top.
    isOver({ x, y }, highPx = this.parts.innerPx) {
      const { left, right, top } = this.frame;
      return x >= left && x <= right && y >= top && y < top + highPx;
    }
    hitAt(px, py) {
      if (!this.painted || px < this.frame.left - HIT_PX || px > this.frame.right + HIT_PX) return null;
      if (py < this.lanesTop() || py >= this.lanesBottom()) return null;
      return nearestItem(this.painted, px, py, this);
    }
    // Bring a span into view, as little as needed, and pin it.
    show(row, index) {
      const columns = this.store.row(row), start = columns.start[index], end = columns.end[index], width = this.x1 - this.x0;
      const px = (end - start) / this.nsPerPx;
      if (end - start > width) this.fitAround(start, end, 0.05);
      else if (px < 4) this.fitAround(start, end, 5.5);
      else if (start < this.x0 || end > this.x1) this.setRange((start + end - width) / 2, (start + end + width) / 2);
      this.reveal(this.tables.rows[row].lane);
      this.scrollToRow(row);
      this.set("pinned", { row, index });
    }
    scrollToRow(row) {
      const { top, bottom } = this.tables.rows[row], headPx = this.parts.headPx + (this.tables.lanes[this.tables.rows[row].lane].group >= 0 ? 20 : 0);
      if (top - this.scrollPx < headPx) this.scrollTo(top - headPx - 8);
      else if (bottom - this.scrollPx > this.lanesPx) this.scrollTo(bottom - this.lanesPx + 12);
    }
    // Set one of the properties that are drawn; the event's detail is its name.
    set(property, value) {
      this[property] = value;
      if (FILTER_KEYS.has(property)) this.applyFilter();
      if (property === "matches") this.store.setMatches(value);
      this.emit(STATE_KEYS.has(property) ? "state" : "look", property);
    }
    applyFilter() {
      const { hiddenNames: names, hiddenKinds: kinds, hiddenPartitions: partitions, hiddenStreams: lanes } = this;
      this.store.setFilter({ names, kinds, partitions, lanes });
      this.hovered = this.pinned = null;
    }
    setTables(tables) {
      this.adoptTables(tables);
      this.store.setRows(tables.rows);
      this.emit("data", "tables");
    }
    appended() {
      if (this.tables.idle && this.planned.lanes.some((_, code) => !this.laneOrder.includes(code) && this.hasSpans(code))) {
        const { laneOrder } = this;
        this.adoptTables(this.planned);
        if (this.laneOrder.length !== laneOrder.length) this.emit("data", "tables");
      }
      this.emit("data", "spans");
    }
  };
  function nearestItem(painted, px, py, view) {
    const { items, segments } = painted, at = view.timeAt(px), slackNs = HIT_PX * view.nsPerPx;
    let best = null, bestCost = Infinity;
    for (const { row: row2, from, to, top, bottom } of segments) {
      if (py < top - 1 || py > bottom + 1) continue;
      for (let i2 = to - 1; i2 >= from; i2--) {
        const offNs = at < items.left[i2] ? items.left[i2] - at : at > items.right[i2] ? at - items.right[i2] : 0;
        if (offNs > slackNs) continue;
        const isMerged2 = items.first[i2] !== items.last[i2];
        const cost = offNs / slackNs + (isMerged2 ? 0.5 : 0);
        if (best && best.row === row2 ? cost < bestCost : cost <= bestCost) {
          bestCost = cost;
          best = { row: row2, i: i2, isMerged: isMerged2 };
        }
      }
    }
    if (!best) return null;
    const { row, i, isMerged } = best;
    return isMerged ? { row, first: items.first[i], last: items.last[i], count: items.count[i] } : { row, index: items.first[i] };
  }
  function linkRanges(first, second) {
    let isFollowing = false;
    const follow = (leader, follower) => leader.on("range", () => {
      if (isFollowing) return;
      isFollowing = true;
      try {
        follower.setRange(leader.x0, leader.x1);
      } finally {
        isFollowing = false;
      }
    });
    follow(first, second);
    follow(second, first);
    second.setRange(first.x0, first.x1);
  }

  // address.js
  var WRITE_EVERY_MS = 300;
  function traceTime({ tables }, ns) {
    const time = BigInt(tables.zero_ns) + BigInt(Math.round(ns)), number = Number(time);
    return Number.isSafeInteger(number) ? number : String(time);
  }
  var viewTime = ({ tables }, time) => Number(BigInt(time) - BigInt(tables.zero_ns));
  function readKept(view) {
    const kept = [...view.kept].map(([key, { read }]) => [key, read()]);
    return Object.fromEntries(kept.filter(([, value]) => value !== null && value !== void 0));
  }
  function writeKept(view, state) {
    for (const [key, { read, write }] of view.kept) {
      const value = state[key] ?? null;
      try {
        if (value !== null || read() !== null) write(value);
      } catch (error) {
        console.info(`Of the view "${key}" is not restored (${error}).`);
      }
    }
  }
  function addAddress(viewer) {
    const { view, address: lead } = viewer;
    keepView(view);
    if (lead === null) return;
    const id = traceId(view), parts = () => [...new URLSearchParams(location.hash.slice(1))];
    const isOwn = ([key]) => key.startsWith(lead) && /^\w+$/.test(key.slice(lead.length));
    const read = () => {
      const state = Object.fromEntries(parts().filter(isOwn).map(([key, text]) => [key.slice(lead.length), valueOf(text)]));
      if (state.of === id) writeKept(view, state);
    };
    const write = () => {
      const kept = Object.entries(readKept(view)), own = kept.length ? [["of", id], ...kept] : [];
      const all = [...parts().filter((part) => !isOwn(part)), ...own.map(([key, value]) => [lead + key, textOf(value)])];
      const hash = all.map(([key, text]) => `${key}=${escapeText(text)}`).join("&");
      if (hash === location.hash.slice(1)) return;
      try {
        history.replaceState(history.state, "", `${location.pathname}${location.search}${hash && "#"}${hash}`);
      } catch {
      }
    };
    const later = throttled(viewer, write, WRITE_EVERY_MS);
    viewer.link = () => {
      write();
      return location.href;
    };
    window.addEventListener("hashchange", read, { signal: viewer.signal });
    for (const event of ["range", "look", "state"]) view.on(event, (property) => {
      if (property !== "hovered") later();
    });
    read();
  }
  var textOf = (value) => typeof value === "string" && valueOf(value) === value ? value : JSON.stringify(value);
  var escapeText = (text) => encodeURIComponent(text).replace(/%(2C|3A|2F|40|5B|5D|7B|7D)/g, decodeURIComponent);
  function valueOf(text) {
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }
  function traceId({ tables, store }) {
    const text = [tables.zero_ns, tables.epoch_unix_ns, tables.extent_ns, store.spanCount, tables.names.length].join();
    let hash = 2166136261;
    for (const sign of text) hash = Math.imul(hash ^ sign.charCodeAt(0), 16777619);
    return `t${(hash >>> 0).toString(36)}`;
  }
  function keepView(view) {
    const times = ({ start, end }) => [start, end].map((ns) => traceTime(view, ns));
    view.keep("hidden", () => view.store.filter ? [...FILTER_KEYS].map((key) => [...view[key]]) : null, (value) => [...FILTER_KEYS].forEach((key, place) => view.set(key, new Set(value?.[place]))));
    view.keep("pin", () => {
      if (view.pinned?.index === void 0) return null;
      const { hit: { row }, starts, places } = pinAnchor(view, view.pinned);
      return [row, traceTime(view, starts[0]), places[0]];
    }, (value) => {
      const index = value && view.tables.rows[value[0]] ? view.store.indexOf(value[0], viewTime(view, value[1]), value[2]) : -1;
      view.set("pinned", index < 0 ? null : { row: value[0], index });
    });
    view.keep("sel", () => view.selection && times(view.selection), (value) => {
      const [start, end] = value ? value.map((time) => viewTime(view, time)) : [];
      view.set("selection", start < end ? { start, end } : null);
    });
    view.keep("sign", () => view.reason && [view.reason.number, view.reason.place], (value) => view.set("reason", value && { number: value[0], place: value[1] }));
    if (view.isLive) view.keep("live", () => view.isFollowing && !view.isPaused ? null : [view.isFollowing, view.isPaused], (value) => {
      view.set("isFollowing", value?.[0] ?? true);
      view.set("isPaused", value?.[1] ?? false);
    });
    view.keep("y", () => view.scrollPx || null, (value) => view.scrollTo(Number(value) || 0));
    view.keep("t", () => {
      const { start, end } = view.fullRange(), isWhole = view.x0 <= start && view.x1 >= end;
      return isWhole || view.isFollowing ? null : times({ start: view.x0, end: view.x1 });
    }, (value) => value ? view.setRange(...value.map((time) => viewTime(view, time))) : view.fit());
  }

  // store.js
  var DEFAULT_CAPACITY = 2e7;
  var EDGE_CAPACITY = 2e5;
  var WAIT_EDGE = 0;
  var LAUNCH_EDGE = 1;
  var EDGE_ARRAYS = {
    // `told`: 1 for one between ranges beside one that joins the work in them.
    x0: Float64Array,
    x1: Float64Array,
    row0: Uint32Array,
    row1: Uint32Array,
    place0: Float64Array,
    place1: Float64Array,
    told: Uint8Array
  };
  var EDGE_COLUMNS = Object.keys(EDGE_ARRAYS);
  var FREED_SHARE = 1 / 8;
  var SpanStore = class {
    constructor({ capacity = DEFAULT_CAPACITY, edgeCapacity = EDGE_CAPACITY } = {}) {
      this.capacity = capacity;
      this.edges = new EdgeList(edgeCapacity);
      this.launches = new EdgeList(edgeCapacity);
      this.rowTable = [];
      this.filter = null;
      this.matches = null;
      this.version = 0;
      this.evictions = 0;
      this.clear();
    }
    /** Forget all spans; rows, filter and matches stay. */
    clear() {
      this.rows = [];
      this.filtered = /* @__PURE__ */ new Map();
      this.length = this.spanCount = this.evictedCount = this.firstNs = this.lastNs = 0;
      this.version++;
      this.evictions++;
      this.edges.clear();
      this.launches.clear();
    }
    /** Take the rows of `tables`: as before, or more. */
    setRows(rowTable) {
      this.rowTable = rowTable;
      for (const row of [...this.rows, ...this.filtered.values()]) this.describe(row);
      this.version++;
    }
    append(batch) {
      this.version++;
      for (const [code, from, to] of batch.runs) if (to > from) this.ownRow(code).append(batch, from, to);
      this.length += batch.length;
      this.spanCount += batch.count ? sumBetween(batch.count, 0, batch.length) : batch.length;
      if (batch.edges) this.appendEdges(batch.edges);
      if (this.length > this.capacity) evictOldest(this, Math.floor(this.capacity * (1 - FREED_SHARE)));
      this.findExtent();
    }
    appendEdges(edges) {
      if (!edges.kind?.some(Boolean)) return this.edges.append(edges);
      this.edges.append(edgesOfKind(edges, WAIT_EDGE));
      this.launches.append(edgesOfKind(edges, LAUNCH_EDGE));
    }
    /** The row as it is shown: without what the filter hides. */
    row(code) {
      return this.filter ? this.filteredRow(code) : this.ownRow(code);
    }
    /** The row with all of its spans. */
    ownRow(code) {
      while (this.rows.length <= code) this.rows.push(this.describe(new Row(this.rows.length)));
      return this.rows[code];
    }
    /** Hide names, kinds, partitions and lanes: sets of codes; null shows all. */
    setFilter(filter) {
      const hidden = ["names", "kinds", "partitions", "lanes"].map((key) => [key, new Set(filter?.[key])]);
      this.filter = hidden.some(([, codes]) => codes.size) ? Object.fromEntries(hidden) : null;
      this.forgetFiltered();
      this.version++;
    }
    /** Say what is searched for: an array by name code, not 0 where the name matches, or null. Names beyond its end do not match.
     * Where its property `also` is a function of a row and an index, that must be true as well. */
    setMatches(matches) {
      this.matches = matches;
      for (const row of [...this.rows, ...this.filtered.values()]) row.matchSums.forget();
      this.version++;
    }
    /** How many of the spans i to j match; all where nothing is searched. */
    matchCount(code, i, j) {
      const row = this.row(code);
      return this.matches ? row.matchCount(i, j, this.matches) : row.countSum(i, j);
    }
    /** Where the span is that started then and had this place in the trace, or -1: indices move when spans come and go. */
    indexOf(code, start, place) {
      const row = this.row(code);
      return row.findStart(start, (index) => row.place[index] === place);
    }
    describe(row) {
      const entry = this.rowTable[row.code];
      row.lane = entry ? entry.lane : -1;
      row.isPale = Boolean(entry?.pale);
      if (entry?.overlaps) row.overlaps = true;
      return row;
    }
    filteredRow(code) {
      const source = this.ownRow(code);
      let shown = this.filtered.get(code);
      if (!shown) this.filtered.set(code, shown = this.describe(new Row(code)));
      const { filter: from } = source.seen;
      if (from === source.length) return shown;
      const kept = shown.length ? shown.placeOf(source, from) : 0;
      if (kept < shown.length) shown.changeFrom(kept, kept);
      const batch = new SpanBatch([], takeColumns(source, from, shownIndices(source, from, this.filter)));
      if (batch.length) shown.append(batch, 0, batch.length);
      source.seen.filter = source.length;
      return shown;
    }
    forgetFiltered() {
      this.filtered.clear();
      for (const row of this.rows) row.seen.filter = 0;
    }
    findExtent() {
      const rows = this.rows.filter((row) => row.length);
      this.firstNs = rows.length ? Math.min(...rows.map((row) => row.start[0])) : 0;
      this.lastNs = rows.length ? Math.max(...rows.map((row) => row.lastEnd())) : 0;
    }
  };
  function shownIndices({ lane, name, kind, partition, length }, from, { names, kinds, partitions, lanes }) {
    if (lanes.has(lane)) return new Uint32Array(0);
    const indices = new Uint32Array(length - from);
    let count = 0;
    for (let index = from; index < length; index++) {
      if (!names.has(name[index]) && !kinds.has(kind[index]) && !partitions.has(partition[index])) indices[count++] = index - from;
    }
    return indices.subarray(0, count);
  }
  var EdgeList = class {
    constructor(capacity) {
      this.capacity = capacity;
      this.clear();
    }
    clear() {
      this.length = 0;
      this.evictedCount = 0;
      for (const [name, kind] of Object.entries(EDGE_ARRAYS)) this[name] = new kind(0);
    }
    append(edges) {
      if (!edges.length) return;
      for (const name of EDGE_COLUMNS) this[name] = joined(this[name], this.length, edges[name], 0, edges.length);
      this.length += edges.length;
      if (this.length > this.capacity) this.dropFirst(this.length - Math.floor(this.capacity * (1 - FREED_SHARE)));
    }
    dropFirst(count) {
      for (const name of EDGE_COLUMNS) this[name].copyWithin(0, count, this.length);
      this.length -= count;
      this.evictedCount += count;
    }
    /** Drop those at the front that end at t or before. */
    dropBefore(t) {
      let count = 0;
      while (count < this.length && this.x1[count] <= t) count++;
      if (count) this.dropFirst(count);
    }
  };
  function edgesOfKind(edges, kind) {
    const places = [];
    for (let i = 0; i < edges.length; i++) if (edges.kind[i] === kind) places.push(i);
    const taken = Object.fromEntries(EDGE_COLUMNS.map((name) => [name, edges[name].constructor.from(places, (i) => edges[name][i])]));
    return { ...taken, length: places.length };
  }
  function evictOldest(store, wanted) {
    const rows = store.rows.filter((row) => row.length), limit = timeByWhichEnded(rows, rows.map(sortedEnds), store.length - wanted);
    for (const row of rows) {
      const before = row.countSum(0, row.length - 1), length = row.length;
      if (row.overlaps) row.keep(new Uint32Array(length).map((_, index) => index).filter((index) => row.end[index] > limit));
      else row.dropBefore(upperBound(row.end, limit, 0, length));
      const gone = before - (row.length ? row.countSum(0, row.length - 1) : 0);
      store.length -= length - row.length;
      store.spanCount -= gone;
      store.evictedCount += gone;
    }
    store.evictions++;
    store.forgetFiltered();
    store.edges.dropBefore(limit);
    store.launches.dropBefore(limit);
  }
  var sortedEnds = (row) => row.overlaps ? row.end.slice(0, row.length).sort() : row.end;
  function timeByWhichEnded(rows, ends, count) {
    let low = Infinity, high = -Infinity;
    rows.forEach((row, place) => {
      low = Math.min(low, ends[place][0]);
      high = Math.max(high, ends[place][row.length - 1]);
    });
    while (low < high) {
      const middle = low + Math.floor((high - low) / 2);
      if (rows.reduce((sum, row, place) => sum + upperBound(ends[place], middle, 0, row.length), 0) >= count) high = middle;
      else low = middle + 1;
    }
    return low;
  }
  function countMatches(store, upTo = null) {
    if (!store.matches) return 0;
    const anchor = anchorOf(store, upTo, -1);
    return shownRows(store).reduce((sum, row) => {
      const last = lastUpTo(row, anchor);
      return last < 0 ? sum : sum + row.matchCount(0, last, store.matches);
    }, 0);
  }
  function nextMatch(store, from, direction = 1) {
    if (!store.matches) return null;
    const anchor = anchorOf(store, from, direction);
    let found = null;
    for (const row of shownRows(store)) {
      const last = lastUpTo(row, anchor), before = row.code === anchor.row ? last - 1 : last;
      const index = row.nextMatch(direction > 0 ? last + 1 : before, store.matches, direction);
      if (index < 0 || index >= row.length) continue;
      const time = row.start[index];
      if (!found || (direction > 0 ? time < found.time : time >= found.time)) found = { row: row.code, index, time };
    }
    return found && { row: found.row, index: found.index };
  }
  function shownRows(store) {
    const rows = store.rows.filter(({ length }) => length);
    return rows.map(({ code }) => store.row(code)).filter(({ length }) => length);
  }
  function anchorOf(store, from, direction) {
    if (from?.row !== void 0) return { time: store.row(from.row).start[from.index], row: from.row, index: from.index };
    const isForward = direction > 0;
    return { time: from ? from.time : isForward ? -Infinity : Infinity, row: isForward ? -1 : Infinity, index: -1 };
  }
  function lastUpTo(row, { time, row: code, index }) {
    if (row.code === code) return index;
    return row.code < code ? row.indexAt(time) : row.firstFrom(time) - 1;
  }

  // busy.js
  function busyAround(store, tables, codes, time) {
    const { isCounted, uncaptured } = countingOf(tables);
    let end = -Infinity, next = Infinity;
    for (const code of codes) {
      const row = store.ownRow(code), ends = row.overlaps ? row.reach() : row.end, at = row.indexAt(time);
      const counts = (index) => row.end[index] > row.start[index] && isCounted[row.kind[index]] && (!uncaptured || uncaptured(row.kind[index], row.start[index]));
      for (let index = at; index >= 0 && ends[index] > end; index--) if (counts(index)) end = Math.max(end, row.end[index]);
      for (let index = at + 1; index < row.length && row.start[index] < next; index++) if (counts(index)) next = row.start[index];
    }
    return { end, next };
  }
  function countedKey({ kind_counted: counted, kind_on_sms: onSms = counted, capture }) {
    const windows = (capture?.windows ?? []).map(([start, end], place, all) => place < all.length - 1 ? `${start}-${end}` : start);
    return `${counted.map(Number).join("")} ${onSms.map(Number).join("")} ${windows.join()}`;
  }
  var countingOf = (tables) => ({
    isCounted: Uint8Array.from(tables.kind_counted, Boolean),
    isOnSms: Uint8Array.from(tables.kind_on_sms ?? tables.kind_counted, Boolean),
    uncaptured: uncapturedRanges(tables)
  });
  function uncapturedRanges({ kinds, kind_counted: counted, capture }) {
    const windows = capture?.windows ?? [], range = windows.length ? kinds.indexOf("range") : -1;
    if (range < 0 || !counted[range]) return null;
    const starts = Float64Array.from(windows, ([start]) => start), ends = Float64Array.from(windows, ([, end]) => end);
    return (kind, time) => {
      if (kind !== range) return true;
      const place = upperBound(starts, time, 0, starts.length) - 1;
      return place < 0 || time >= ends[place];
    };
  }
  function addCoverage(union, x0, x1, columns) {
    const { start, end, length } = union, n = columns.length, width = x1 - x0;
    const clipped = (index, left, right) => index < 0 ? 0 : Math.max(0, Math.min(end[index] - x0, right) - Math.max(start[index] - x0, left)) * union.densityAt(index);
    let next = lowerBound(start, x0, 0, length), step = 1;
    for (let column = 0; column < n; column++) {
      const left = columnEdge(column, width, n), right = columnEdge(column + 1, width, n), from = next;
      next = gallop(start, x0 + right, from, length, step);
      step = Math.max(1, next - from >> 1);
      columns[column] += clipped(from - 1, left, right);
      if (next > from) columns[column] += union.busySum(from, next - 2) + clipped(next - 1, left, right);
    }
    return columns;
  }
  var columnEdge = (column, width, n) => column < n ? width * column / n : width;

  // waits.js
  var SHOWN_LINKS = 20;
  var LATE = { row: "row1", time: "x1", place: "place1", otherRow: "row0", otherTime: "x0", otherPlace: "place0" };
  var EARLY = { row: "row0", time: "x0", place: "place0", otherRow: "row1", otherTime: "x1", otherPlace: "place1" };
  function tiesOf(view, hit) {
    if (!isSpan(hit)) return [];
    const { store } = view, row = store.row(hit.row), start = row.start[hit.index], end = row.end[hit.index];
    const ties = (title, arrows, ends, own, find, gapText) => {
      const found = /* @__PURE__ */ new Map();
      for (let i = 0; i < arrows.length; i += 1) {
        if (arrows[ends.row][i] !== hit.row || arrows[ends.time][i] !== own) continue;
        if (!isAtPlace(row, hit.index, arrows[ends.place][i])) continue;
        const other = arrows[ends.otherRow][i];
        const index = find(store.row(other), arrows[ends.otherTime][i], arrows[ends.otherPlace][i]);
        found.set(`${other} ${index}`, { row: other, index, gapNs: arrows.x1[i] - arrows.x0[i], need: arrows === store.edges ? needText(view, arrows, i) : "" });
      }
      const sorted = [...found.values()].sort((a, b) => a.gapNs - b.gapNs);
      return { title, ties: sorted.map((tie) => ({ ...tie, text: [tieText(view, tie, gapText(tie.gapNs)), tie.need].filter(Boolean).join(" · ") })) };
    };
    const length = (gapNs) => formatNs(Math.abs(gapNs));
    const side = (gapNs, usual, odd) => gapNs ? `${length(gapNs)} ${gapNs > 0 ? usual : odd}` : "as";
    return [
      ties("Launched by", store.launches, LATE, start, spanStartingAt, (gapNs) => `called ${length(gapNs)} before this started`),
      ties("Launched", store.launches, EARLY, start, spanStartingAt, (gapNs) => `started ${length(gapNs)} after this was called`),
      ties("Waited for", store.edges, LATE, start, spanEndingAt, (gapNs) => `ended ${side(gapNs, "before", "after")} this started`),
      ties("Waited by", store.edges, EARLY, end, spanStartingAt, (gapNs) => `started ${side(gapNs, "after", "before")} this ended`)
    ];
  }
  var needText = ({ why }, { place0, place1 }, i) => why?.needs ? why.needs[`${place0[i]} ${place1[i]}`] ?? "whether data need it is not known" : "";
  var isAtPlace = (row, index, place) => place < 0 || row.place[index] === place || row.countAt(index) > 1;
  function tieText(view, { row: code, index }, gapText) {
    const name = index < 0 ? "a span that is not shown" : nameOf(view, view.store.row(code).name[index]);
    return `${name} on ${laneText(laneOf(view, code))} · ${gapText}`;
  }
  function spanEndingAt(row, time, place = -1) {
    const last = row.indexAt(time);
    for (let index = row.length ? row.firstEndingFrom(time) : 0; index <= last; index += 1) {
      if (row.end[index] === time && isAtPlace(row, index, place)) return index;
    }
    return -1;
  }
  var spanStartingAt = (row, time, place = -1) => row.findStart(time, (index) => isAtPlace(row, index, place));
  function waitFacts(view, hit) {
    return tiesOf(view, hit).flatMap(({ title, ties }) => ties.map(({ text }) => [title.toLowerCase(), text]));
  }
  function waitNodes(view, hit) {
    const link = ({ row, index, text }) => index < 0 ? makeNode("span", { class: "gsl-gone", text, dir: "auto" }) : spanLink(view, view.store.row(row), index, text);
    return tiesOf(view, hit).flatMap(({ title, ties }) => linkList(title, ties.map(link)));
  }
  function linkList(title, links) {
    if (!links.length) return [];
    const items = links.slice(0, SHOWN_LINKS).map((link) => makeNode("li", {}, link)), left = links.length - items.length;
    if (left > 0) items.push(makeNode("li", { text: `+ ${formatCount(left)} more` }));
    return [makeNode("h4", { text: title }), makeNode("ol", { class: "gsl-inside" }, ...items)];
  }
  function spanLink(view, row, at, text) {
    const start = row.start[at], place = row.place[at];
    const go = () => {
      const index = view.store.indexOf(row.code, start, place);
      if (index >= 0) view.show(row.code, index);
    };
    return makeButton(text, { label: `Go to ${text}`, class: "gsl-link", dir: "auto", onclick: go });
  }

  // why.js
  var SIGNS = { hazard: "!", stray: "S", wait: "W", dropped: "D", note: "N" };
  var isFault = ({ kind }) => kind === "hazard" || kind === "stray";
  function reasonsOf(view) {
    const { why, store, tables, notes } = view;
    const key = `${store.version} ${tables.zero_ns} ${tables.lanes.length} ${tables.rows.length}`;
    if (view.found?.key !== key || view.found.why !== why || view.found.notes !== notes) view.found = { key, why, notes, reasons: findReasons(view) };
    return view.found.reasons;
  }
  function findReasons(view) {
    const { tables } = view, why = view.why ?? { lanes: [], zero_ns: tables.zero_ns, findings: [], marks: [], gaps: [] };
    const lanes = why.lanes.map(([name, host]) => tables.lanes.findIndex((lane) => lane.name === name && lane.host === host));
    const moved = Number(BigInt(why.zero_ns) - BigInt(tables.zero_ns));
    const find = (span) => span ? findSpan(view, lanes[span[0]], span[1] + moved, span[3]) : null;
    const told = [...why.marks.filter(isFault), ...why.findings, ...why.marks.filter((mark) => !isFault(mark))].map(({ pieces: pieces2, ...finding }) => ({
      ...finding,
      pieces: pieces2.map(({ late, other, call, since, text, fix }) => ({
        lane: lanes[late[0]] ?? -1,
        since: since + moved,
        start: late[1] + moved,
        end: late[2] + moved,
        late: find(late),
        other: find(other),
        call: find(call),
        text,
        fix
      }))
    }));
    const findings = [...told, ...view.notes.map((note) => noteFinding(view, note))];
    let causeCount = 0;
    findings.forEach((finding, at) => {
      finding.number = at + 1;
      finding.sign = SIGNS[finding.kind] ?? String(++causeCount);
      finding.pieces.forEach((piece, place) => Object.assign(piece, { number: at + 1, place, kind: finding.kind, sign: finding.sign, folds: finding.folds }));
    });
    const order = (piece) => 2 * Boolean(piece.place) + !isFault(piece);
    const pieces = findings.flatMap((finding) => finding.pieces).sort((a, b) => order(a) - order(b));
    const gapWords = new Map(why.gaps.map(([lane, end, kind]) => [`${lanes[lane]} ${end + moved}`, why.gap_words[kind]]));
    return { findings, pieces, gapWords };
  }
  function noteFinding(view, note) {
    const start = viewTime(view, note.time), end = note.end === null ? start : viewTime(view, note.end);
    const when = end > start ? `${formatNs(start)} to ${formatNs(end)}` : formatNs(start);
    const text = note.stream === null ? when : `${when}, ${note.stream}`;
    const lane = view.tables.lanes.findIndex(({ name }) => name === note.stream);
    return { kind: "note", head: note.text, code: "", gain: "", lines: [], folds: false, count: 1, note, pieces: [{ lane, since: start, start, end, late: null, other: null, call: null, text, fix: "" }] };
  }
  function findSpan({ store, laneRows }, lane, start, number) {
    for (const row of laneRows[lane] ?? []) {
      const index = store.indexOf(row, start, number);
      if (index >= 0) return { row, index };
    }
    return null;
  }
  var isTold = ({ why }) => Boolean(why) && !why.is_partial;
  function shownPiece(view) {
    const { reason } = view;
    return reason ? reasonsOf(view).findings[reason.number - 1]?.pieces[reason.place] ?? null : null;
  }
  function choosePieces(view, pieces) {
    view.set("pinned", null);
    view.set("reason", { number: pieces[0].number, place: 0 });
    if (!pieces.some(({ start, end }) => start <= view.x1 && end >= view.x0)) view.fit();
  }
  function showPiece(view, { number, place, lane, since, start, end, late, other }) {
    if (late) view.show(late.row, late.index);
    else view.set("pinned", null);
    view.set("reason", { number, place, isShown: true });
    const [lateEnd, otherStart, otherEnd] = [endOf(view, late) ?? end, startOf(view, other) ?? since, endOf(view, other) ?? start];
    const far = 3 * (start - since || lateEnd - start);
    const from = Math.max(Math.min(since, otherStart), since - far), to = Math.min(Math.max(lateEnd, otherEnd), start + far);
    const rim = 0.05 * (to - from) || (view.x1 - view.x0) / 2;
    view.setRange(from - rim, to + rim);
    if (lane >= 0 && (other || !late)) scrollToBoth(view, lane, other ? view.tables.rows[other.row].lane : lane);
  }
  var startOf = ({ store }, hit) => hit ? store.row(hit.row).start[hit.index] : null;
  var endOf = ({ store }, hit) => hit ? store.row(hit.row).end[hit.index] : null;
  function scrollToBoth(view, ...codes) {
    const lanes = codes.map((code) => view.tables.lanes[code]), { headPx } = view.parts;
    const top = Math.min(...lanes.map((lane) => lane.top)) - headPx, bottom = Math.max(...lanes.map((lane) => lane.bottom));
    if (bottom - top <= view.lanesPx) view.scrollTo((top + bottom - view.lanesPx) / 2);
  }

  // findings.js
  var BREAKS = /(?<=\))(?=\.)/;
  var ASKED = "Asked: the kernel answers when it is not busy.";
  function addFindings(viewer) {
    const { view, drawer, commands } = viewer, section = drawer.add("findings", "Findings"), state = { isAsked: false, foldsOpen: false };
    const ask = viewer.askWhy && (() => {
      state.isAsked = true;
      viewer.askWhy();
      show(true);
    });
    const toggle = () => !isTold(view) && ask ? ask() : drawer.toggle();
    const button = makeButton("Findings", { label: "Findings, and details of what is selected", class: "gsl-findings-button", "aria-expanded": "false", onclick: toggle });
    viewer.tools.append(button);
    function show(isAskedFor = false) {
      const nodes = sectionNodes(viewer, state, ask), count = state.isAsked ? 0 : reasonsOf(view).findings.filter(({ folds }) => !folds).length;
      button.textContent = count ? `Findings ${formatCount(count)}` : ask && !view.why ? "Why?" : "Findings";
      drawer.fill(section, nodes, isAskedFor);
      press();
    }
    const items = () => section.querySelectorAll(".gsl-found-one");
    const press = () => items().forEach((item) => {
      const number = Number(item.dataset.number), isShown = view.reason?.number === number, place = isShown ? view.reason.place : 0;
      const { pieces } = reasonsOf(view).findings[number - 1], { text, fix } = pieces[place];
      item.querySelector(".gsl-reason").setAttribute("aria-pressed", String(isShown));
      item.querySelector(".gsl-says").textContent = text;
      item.querySelector(".gsl-fix").textContent = fix;
      const next = isShown && view.reason.isShown ? place + 1 : place;
      item.querySelector(".gsl-go").textContent = pieces.length > 1 ? `Show ${next % pieces.length + 1} of ${formatCount(pieces.length)}` : "Show";
      if (isShown) bring(item);
    });
    function bring(item) {
      const folds = item.closest("details"), focused = document.activeElement;
      if (folds) folds.open = true;
      drawer.bring(item);
      if (section.contains(focused) && !item.contains(focused)) item.querySelector(".gsl-reason").focus({ preventScroll: true });
    }
    commands.askWhy = ask;
    commands.nextReason = () => {
      if (!view.why && ask) return ask();
      const { findings } = reasonsOf(view), next = findings[(view.reason?.number ?? 0) % (findings.length || 1)];
      if (!next) return;
      showPiece(view, next.pieces[0]);
      viewer.announce([next.head, next.pieces[0].text, next.pieces[0].fix].filter(Boolean).join(", "));
    };
    view.on("look", (property) => {
      if (property === "why") state.isAsked = false;
      if (property === "why" || property === "notes") show();
      else if (property === "reason") press();
      else if (property === "drawer") button.setAttribute("aria-expanded", String(drawer.isOpen));
      else if (property === "pinned" && view.reason && view.pinned && !isPinned(view, shownPiece(view))) view.set("reason", null);
    });
    show();
  }
  var isPinned = ({ pinned }, piece) => Boolean(piece) && pinned?.row === piece.late?.row && pinned?.index === piece.late?.index;
  function sectionNodes(viewer, { isAsked }, ask) {
    const { view } = viewer, { line = "", notes = [], more = 0, bound = [] } = view.why ?? {};
    if (isAsked) return [makeNode("h3", { text: "Findings" }), makeNode("p", { text: ASKED })];
    const { findings } = reasonsOf(view), list = (some) => makeNode("ol", { class: "gsl-list-of-findings" }, ...some.map((finding) => findingNode(viewer, finding)));
    if (!view.why && !findings.length) return [];
    const open = findings.filter(({ folds: folds2 }) => !folds2), folded = findings.filter(({ folds: folds2 }) => folds2);
    const again = ask && view.why ? makeButton("Ask again", { label: "Ask again, of what ran until now", onclick: ask }) : null;
    const folds = (summary, ...nodes) => makeNode("details", {}, makeNode("summary", { text: summary }), ...nodes);
    const rest = more ? [`… ${formatCount(more)} more: see ${view.isLive ? "lab" : "trace"}.explain().findings.`] : [];
    return [
      makeNode("header", {}, makeNode("h3", { text: "Findings" }), again),
      ...open.length ? [list(open)] : [makeNode("p", { class: "gsl-line", text: line, dir: "auto" })],
      ...bound.map((text) => makeNode("p", { class: "gsl-bound", text, dir: "auto" })),
      ...folded.length ? [folds(`${formatCount(folded.length)} more without a known gain`, list(folded))] : [],
      ...notes.length || rest.length || open.length && line ? [folds("How this was found", ...[...open.length ? [line] : [], ...rest, ...notes].map((text) => makeNode("p", { class: "gsl-note", text, dir: "auto" })))] : []
    ];
  }
  function signButton({ head, kind = "cause", sign }, label, onclick) {
    const button = makeButton(head, { label, class: "gsl-reason", dir: "auto", onclick });
    button.prepend(makeNode("b", { class: "gsl-number", "data-kind": kind, text: sign }));
    return button;
  }
  function findingNode(viewer, finding) {
    const { head, number, note, gain, count, code, lines } = finding, { view, commands } = viewer;
    const now = () => reasonsOf(view).findings[number - 1].pieces;
    const light = () => view.reason?.number === number ? view.set("reason", null) : choosePieces(view, now());
    const go = () => showPiece(view, now()[view.reason?.number === number && view.reason.isShown ? (view.reason.place + 1) % now().length : 0]);
    const facts = [gain, count > 1 ? `${formatCount(count)} times` : ""].filter(Boolean).join(" · ");
    const text = lines.join("\n"), copy = lines.length ? makeButton("Copy", { label: `Copy ${text}`, onclick: () => copyText(text, copy, box) }) : null;
    const box = lines.length ? makeNode("div", { class: "gsl-lines" }, makeNode("code", { dir: "ltr" }, ...text.split(BREAKS).flatMap((part, at) => at ? [makeNode("wbr"), part] : [part])), copy) : null;
    const own = note ? [makeButton("Edit", { label: `Edit the note ${head}`, onclick: () => commands.editNote(note) }), makeButton("Delete", { label: `Delete the note ${head}`, onclick: () => commands.dropNote(note) })] : [];
    return makeNode(
      "li",
      { class: "gsl-found-one", "data-number": number },
      signButton(finding, head, light),
      facts || code ? makeNode("p", { class: "gsl-gain" }, facts && `${facts} `, code ? makeNode("small", { text: code, dir: "auto" }) : null) : null,
      makeNode("p", { class: "gsl-says", dir: "auto" }),
      box,
      makeNode("p", { class: "gsl-fix", dir: "auto" }),
      makeNode("div", { class: "gsl-does" }, makeButton("Show", { label: `Show where: ${head}`, class: "gsl-go", onclick: go }), ...own)
    );
  }

  // gaps.js
  var NOTHING_BESIDE = "No other stream worked meanwhile, so there was nothing to overlap with.";
  var NOT_LISTED = "No cause is listed: what came next ran beside other work anyway, it cost less than 1%, or a new cell began.";
  var SHARED_OUT = "The SMs were shared out anew in this gap, which waits until all work has ended.";
  var NOT_KNOWN = "The cause is not known here.";
  var CUT = "No cause is told here: of each reason only the longest pieces are kept.";
  function gapAt(view, px, py) {
    const isIn = ({ top, bottom }) => py >= view.yAt(top) && py < view.yAt(bottom);
    const lane = view.visibleLanes().find((code) => isIn(view.tables.lanes[code]));
    return lane === void 0 ? null : gapOf(view, lane, view.timeAt(px));
  }
  function gapOf(view, lane, time) {
    const { end, next } = busyAround(view.store, view.tables, view.laneRows[lane], time), start = end === -Infinity ? view.streamExtent().start : end;
    return next < Infinity && time > start ? { lane, start, end: next } : null;
  }
  function addGaps(viewer) {
    const { view } = viewer;
    const section = viewer.drawer.add("gap", "Details of the gap"), show = () => showGap(viewer, section);
    view.on("look", (property) => {
      if (property === "pinned" && view.pinned && view.gap) view.set("gap", null);
      else if (property === "gap" || property === "why" && view.gap) show();
    });
    view.on("data", () => {
      if (view.gap && gapOf(view, view.gap.lane, view.gap.end - 0.5)?.start !== view.gap.start) view.set("gap", null);
    });
  }
  function showGap(viewer, section) {
    const { view, drawer } = viewer, { gap } = view;
    if (!gap) return drawer.fill(section, []);
    const title = `idle ${exactTime(gap.end - gap.start)}`, why = gapReasons(viewer, gap);
    const word = reasonsOf(view).gapWords.get(`${gap.lane} ${gap.end}`);
    const facts = [["stream", laneText(view.tables.lanes[gap.lane])], ["from", exactTime(gap.start)], ["to", exactTime(gap.end)], ...word ? [["idle for", word]] : []];
    const zoom = makeButton("Zoom here", { key: "F", onclick: () => view.fitAround(gap.start, gap.end) });
    const close = makeButton("Close", { key: "Escape", onclick: () => {
      view.set("gap", null);
      viewer.focus();
    } });
    drawer.fill(section, [makeNode("header", {}, makeNode("h3", { text: title }), zoom, close), factList(facts), ...nextNodes(view, gap), makeNode("h4", { text: "Why" }), ...why], true);
    viewer.announce([title, ...facts.map((pair) => pair.join(" ")), ...why.map((node) => node.textContent)].join(", "));
  }
  function workBehind({ store, tables, laneRows }, { lane, end }) {
    for (const code of laneRows[lane]) {
      const row = store.ownRow(code), index = spanStartingAt(row, end);
      if (index >= 0 && tables.kind_counted[row.kind[index]]) return { code, index };
    }
    return null;
  }
  function nextNodes(view, gap) {
    const next = workBehind(view, gap);
    if (!next) return [];
    const own = view.store.ownRow(next.code);
    return linkList("Next on it", [spanLink(view, own, next.index, nameOf(view, own.name[next.index]))]);
  }
  function gapReasons(viewer, gap) {
    const { view } = viewer, reasons = reasonsOf(view);
    const pieces = reasons.pieces.filter((piece) => piece.lane === gap.lane && piece.start === gap.end && piece.since < gap.end);
    const isAnew = view.tables.marks.some(({ kind, time }) => kind === "layout" && time >= gap.start && time <= gap.end);
    const anew = isAnew ? [makeNode("p", { text: SHARED_OUT })] : [];
    const nodesOf = (piece) => {
      const finding = reasons.findings[piece.number - 1], show = signButton(finding, `Show ${finding.head}`, () => showPiece(view, piece));
      return [show, makeNode("p", { text: piece.text }), makeNode("p", { class: "gsl-fix", text: piece.fix })];
    };
    if (pieces.length) return [...anew, ...pieces.flatMap(nodesOf)];
    const row = workBehind(view, gap), lane = view.tables.lanes[gap.lane].name;
    const place = row && !view.isLive ? view.store.ownRow(row.code).place[row.index] : JSON.stringify(lane);
    const ask = viewer.commands.askWhy;
    return [
      ...isAnew ? anew : [makeNode("p", { text: noReason(view, reasons, gap) })],
      makeNode("p", { class: "gsl-note", text: `${view.isLive ? "lab" : "trace"}.explain(${place}) asks for this one alone.` }),
      ask && !isTold(view) ? makeButton("Why?", { label: "Ask the kernel why work did not overlap", onclick: ask }) : null
    ].filter(Boolean);
  }
  function noReason(view, reasons, gap) {
    if (!isAnyBusy(view, gap)) return NOTHING_BESIDE;
    if (!view.why?.explained) return isTold(view) ? view.why.line : NOT_KNOWN;
    const isCut = reasons.findings.some(({ count, pieces }) => count > pieces.length && pieces.some((piece) => piece.lane === gap.lane));
    return isCut || view.why.more ? CUT : NOT_LISTED;
  }
  function isAnyBusy({ store, tables, laneRows }, { start, end }) {
    return laneRows.some((codes) => {
      const busy = busyAround(store, tables, codes, start);
      return busy.end > start || busy.next < end;
    });
  }

  // card.js
  var MOST_CELLS = 24e3;
  var MANY_SPANS = 2e4;
  var WIDER = 3;
  var SIGNS2 = { in: /htod/i, out: /dtoh/i, peer: /ptop/i };
  var WAYS = Object.keys(SIGNS2);
  var uses = /* @__PURE__ */ new WeakMap();
  var counterParts = /* @__PURE__ */ new WeakMap();
  function cardLayers(store, tables, row, x0, x1, columns, keyOf2 = (lane) => lane) {
    let use = uses.get(store);
    if (!use) uses.set(store, use = new CardUse(store));
    const parts = row.lines?.map(counterPart) ?? use.parts(tables, row.kind).filter((part) => row.device < 0 || tables.lanes[part.row.lane]?.device === row.device);
    const seen = parts.reduce((sum, { start, length }) => sum + lowerBound(start, x1, 0, length) - lowerBound(start, x0, 0, length), 0);
    const most = Math.floor(MOST_CELLS / Math.max(1, parts.length)), count = Math.max(1, Math.min(Math.ceil(seen > MANY_SPANS ? columns / WIDER : columns), most));
    const layers = /* @__PURE__ */ new Map();
    for (const part of parts) {
      const lane = part.row.lane, band = row.kind === "sms" ? tables.partitions[part.code]?.band ?? -1 : -1, key = `${band} ${keyOf2(lane, band)}`;
      if (!layers.has(key)) layers.set(key, { lane, band, mean: new Float64Array(count) });
      addCoverage(part, x0, x1, layers.get(key).mean);
    }
    const scale = count / (x1 - x0), place = ({ band, lane }) => (band < 0 ? 1e9 : band * 1e5) + (tables.lanes[lane].place ?? lane);
    for (const { mean } of layers.values()) for (let column = 0; column < count; column++) mean[column] = Math.max(0, mean[column] * scale);
    return [...layers.values()].sort((one, other) => place(one) - place(other));
  }
  function stackLayers(layers, own, most) {
    const count = layers[0]?.mean.length ?? 0, bands = own[0]?.length ?? 0, areas = [], free = [];
    const plus = (low, values) => low.map((sms, column) => sms + values[column]), less = (high, values) => high.map((sms, column) => sms - values[column]);
    let base = new Float64Array(count);
    for (let band = 0; band < bands; band++) {
      let high = base;
      const limit = base.map((_, column) => own[column][band] || most);
      for (const [layer, sms] of sharedOut(layers.filter((layer2) => layer2.band === band), limit)) areas.push([layer, high, high = plus(high, sms)]);
      const next = high.map((sms, column) => Math.max(sms, base[column] + own[column][band]));
      free.push([high, next]);
      base = next;
    }
    free.push([base, base.map((sms) => Math.max(sms, most))]);
    const room = free.reduce((sums, [low, top]) => plus(sums, less(top, low)), new Float64Array(count));
    for (const [layer, sms] of sharedOut(layers.filter(({ band }) => band < 0 || band >= bands), room)) {
      let left = sms;
      for (const place of free) {
        const [low, top] = place, taken = left.map((wanted, column) => Math.min(wanted, top[column] - low[column]));
        if (!taken.some((one) => one > 0)) continue;
        place[0] = plus(low, taken);
        areas.push([layer, low, place[0]]);
        left = less(left, taken);
      }
    }
    return areas;
  }
  function sharedOut(layers, room) {
    const share = room.map((most, column) => Math.min(1, most / (layers.reduce((sum, { mean }) => sum + mean[column], 0) || 1)));
    return layers.map((layer) => [layer, layer.mean.map((sms, column) => sms * share[column])]);
  }
  function counterPart(line) {
    if (!counterParts.has(line)) {
      const { lane, time, value } = line, sums = [0], end = [...time.slice(1), Infinity];
      for (let index = 0; index + 1 < time.length; index++) sums.push(sums[index] + value[index] * (end[index] - time[index]));
      counterParts.set(line, { row: { lane }, start: time, end, length: time.length, busySum: (i, j) => sums[j + 1] - sums[i], densityAt: (index) => value[index] });
    }
    return counterParts.get(line);
  }
  var CardUse = class {
    constructor(store) {
      this.store = store;
      this.rows = [];
      this.places = [];
    }
    /** The parts of all rows of streams that have any weight of a kind. */
    parts(tables, kind) {
      if (this.tables !== tables) this.use(tables);
      const { store } = this;
      this.rows.length = store.rows.length;
      for (const code of store.rows.keys()) {
        const row = store.row(code), known = this.rows[code];
        if (row.lane < 0 || tables.lanes[row.lane]?.host) continue;
        if (known?.row !== row || known.edits !== row.edits || known.length > row.length) this.rows[code] = { row, edits: row.edits, length: 0, parts: /* @__PURE__ */ new Map() };
        this.take(this.rows[code]);
      }
      return this.rows.flatMap((known) => known ? [...known.parts.values()].filter((part) => part.kind === kind) : []);
    }
    /** Other tables say the same of what is summed up already, unless places have other sizes or other spans count. */
    use(tables) {
      const places = tables.partitions.map(({ sms }) => sms), counted = `${countedKey(tables)} ${JSON.stringify(tables.cards)}`;
      if (this.counted !== counted || this.places.some((sms, code) => sms !== places[code])) this.rows = [];
      Object.assign(this, { tables, places, counted, counting: countingOf(tables) });
    }
    take(known) {
      const { row, length } = known, { isOnSms } = this.counting, copy = this.tables.kinds.indexOf("copy"), { kind: kinds, name: names, partition } = row;
      for (let index = length; index < row.length; index++) {
        if (index > length && kinds[index] === kinds[index - 1] && partition[index] === partition[index - 1] && (kinds[index] !== copy || names[index] === names[index - 1])) continue;
        const way = kinds[index] === copy ? WAYS.find((sign) => SIGNS2[sign].test(this.tables.names[row.name[index]] ?? "")) : null;
        for (const kind of [isOnSms[kinds[index]] && !this.tables.rows[row.code]?.inner ? "sms" : null, way]) {
          const code = kind === "sms" ? row.partition[index] : 0;
          if (kind && !known.parts.has(kind + code)) known.parts.set(kind + code, new Part(row, kind, code, this));
        }
      }
      if (length < row.length) for (const part of known.parts.values()) part.sums.forget(length);
      known.length = row.length;
    }
  };
  var Part = class {
    constructor(row, kind, code, use) {
      const { lanes, cards, partitions, kinds } = use.tables, card = cards.find(({ device }) => device === lanes[row.lane].device) ?? cards[0];
      Object.assign(this, { row, kind, code, use, sms: [], isName: [] });
      this.place = code && partitions[code]?.sms || card?.sms || 1;
      this.isKind = kinds.map((one, place) => kind === "sms" ? Boolean(use.counting.isOnSms[place]) : one === "copy");
      this.sums = new BlockSums(SUM_SPANS, (from, to) => this.add(from, to));
    }
    get start() {
      return this.row.start;
    }
    get end() {
      return this.row.end;
    }
    get length() {
      return this.row.length;
    }
    busySum(i, j) {
      return this.sums.between(i, j + 1, this.length);
    }
    densityAt(index) {
      return this.weight(index) * this.row.densityAt(index);
    }
    add(from, to) {
      const { row } = this, { start, end, busy } = row;
      let sum = 0;
      for (let index = from; index < to; index++) sum += this.weight(index) * (busy ? busy[index] : end[index] - start[index]);
      return sum;
    }
    weight(index) {
      const { row, kind: way, use: { counting: { uncaptured }, tables } } = this, kind = row.kind[index];
      if (!this.isKind[kind]) return 0;
      if (way !== "sms") return this.isName[row.name[index]] ??= Number(SIGNS2[way].test(tables.names[row.name[index]]));
      if (row.partition[index] !== this.code || uncaptured && !uncaptured(kind, row.start[index])) return 0;
      const detail = row.hasWork ? row.detail[index] : -1;
      return detail < 0 ? this.place : this.sms[detail] ??= this.smsOf(tables.details[detail]);
    }
    smsOf([, grid, , , , , , fit] = []) {
      const blocks = grid ? grid[0] * grid[1] * grid[2] : 0;
      return blocks && fit ? Math.min(this.place, Math.ceil(blocks / fit)) : this.place;
    }
  };

  // paint_edges.js
  var MAX_EDGES = 2e3;
  var FEW_EDGES = 16;
  var ARROW_PX = 5;
  function paintEdges(ctx, painter) {
    const { view, theme } = painter, { edges } = view.store;
    painter.hiddenEdges = 0;
    if (!view.showsWaits || !edges.length) return;
    const found = edgesInView(view, edges);
    painter.hiddenEdges = found.total - found.places.length;
    paintArrows(ctx, view, edges, found.places, { colour: theme.rim, width: 1 });
  }
  function paintOwnEdges(ctx, { view, theme }) {
    if (view.showsWaits) paintOwn(ctx, view, view.store.edges, endsOf, { colour: theme.ink, width: 1.5 });
  }
  function paintOwnLaunches(ctx, { view, theme }) {
    const startsOf = (view2, hit) => {
      const ends = endsOf(view2, hit);
      return ends && { ...ends, endFrom: ends.startFrom, endTo: ends.startTo };
    };
    paintOwn(ctx, view, view.store.launches, startsOf, { colour: theme.accent, width: 1.5, dash: [4, 3] });
  }
  function paintOwn(ctx, view, edges, endsOf2, look) {
    const ends = [view.pinned, view.hovered].map((hit) => hit && endsOf2(view, hit)).filter(Boolean), places = [];
    const isShown = (i) => edges === view.store.launches || isEdgeShown(view.store, edges, i);
    for (let i = 0; ends.length && i < edges.length && places.length < MAX_EDGES; i++) {
      if (ends.some((end) => isOwnEdge(edges, i, end)) && passesWindow(view, edges, i) && isShown(i)) places.push(i);
    }
    paintArrows(ctx, view, edges, places, look);
  }
  function endsOf({ store }, { row, index, first = index, last = index }) {
    const spans = store.row(row), { start, end, place, length } = spans;
    if (!(last < length)) return null;
    const isOne2 = first === last && spans.countAt(first) === 1;
    return { row, place: isOne2 ? place[first] : -1, startFrom: start[first], startTo: isOne2 ? start[first] : end[last], endFrom: isOne2 ? end[first] : start[first], endTo: end[last] };
  }
  var isOwnEdge = ({ row0, row1, x0, x1, place0, place1 }, i, { row, place, startFrom, startTo, endFrom, endTo }) => row0[i] === row && x0[i] >= endFrom && x0[i] <= endTo && isPlaceOf(place, place0[i]) || row1[i] === row && x1[i] >= startFrom && x1[i] <= startTo && isPlaceOf(place, place1[i]);
  var isPlaceOf = (place, known) => place < 0 || known < 0 || place === known;
  function passesWindow(view, { x0, x1, row0, row1 }, i) {
    if (Math.max(x0[i], x1[i]) < view.x0 || Math.min(x0[i], x1[i]) > view.x1) return false;
    const source = view.tables.rows[row0[i]], target = view.tables.rows[row1[i]];
    if (!arePlaced(view, row0[i], row1[i])) return false;
    return view.isSeen({ top: Math.min(source.top, target.top), bottom: Math.max(source.bottom, target.bottom) });
  }
  var arePlaced = ({ tables: { rows } }, ...codes) => codes.every((code) => rows[code]?.top >= 0);
  function edgesInView(view, edges) {
    const { rows } = view.tables, { x0, x1, row0, row1 } = edges, places = [];
    const isSeen = new Uint8Array(rows.length);
    for (const lane of view.visibleLanes()) for (const row of view.laneRows[lane]) isSeen[row] = view.isSeen(rows[row]);
    let total = 0;
    for (let i = 0; i < edges.length; i++) {
      const isSource = isSeen[row0[i]] && x0[i] >= view.x0 && x0[i] <= view.x1;
      if (!isSource && !(isSeen[row1[i]] && x1[i] >= view.x0 && x1[i] <= view.x1)) continue;
      if (row0[i] === row1[i] || !arePlaced(view, row0[i], row1[i]) || !isEdgeShown(view.store, edges, i)) continue;
      if (edges.told[i] && !view.store.filter) continue;
      if (++total <= FEW_EDGES) places.push(i);
    }
    return { places: total > FEW_EDGES ? [] : places, total };
  }
  function isEdgeShown(store, edges, i) {
    if (!store.filter) return true;
    if (edges.shownVersion !== store.version) Object.assign(edges, { shown: /* @__PURE__ */ new Map(), shownVersion: store.version });
    if (!edges.shown.has(i)) {
      const { row0, row1, x0, x1, place0, place1 } = edges, source = spanEndingAt(store.row(row0[i]), x0[i], place0[i]);
      edges.shown.set(i, source >= 0 && spanStartingAt(store.row(row1[i]), x1[i], place1[i]) >= 0);
    }
    return edges.shown.get(i);
  }
  function paintArrows(ctx, view, edges, places, { colour, width, dash = [] }) {
    if (!places.length) return;
    clipLanes(ctx, view, view.frame.left, () => {
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.lineWidth = width;
      const lines = new Path2D(), heads = new Path2D();
      for (const place of places) addArrow(lines, heads, view, edges, place);
      ctx.setLineDash(dash);
      ctx.stroke(lines);
      ctx.fill(heads);
    });
  }
  function addArrow(lines, heads, view, edges, place) {
    const source = view.tables.rows[edges.row0[place]], target = view.tables.rows[edges.row1[place]];
    if (edges.row0[place] === edges.row1[place]) return;
    const isDown = source.top <= target.top, way = isDown ? 1 : -1;
    const y0 = view.yAt(isDown ? source.bottom : source.top), y1 = view.yAt(isDown ? target.top : target.bottom);
    const [x0, x1] = [edges.x0[place], headTime(view.store, edges, place)].map((time) => nearPx(view, view.pxAt(time)));
    lines.moveTo(x0, y0);
    lines.lineTo(x1, y1);
    heads.moveTo(x1, y1);
    heads.lineTo(x1 - way * ARROW_PX, y1 - way * ARROW_PX);
    heads.lineTo(x1, y1 - way * ARROW_PX);
    heads.closePath();
  }
  function headTime(store, { row1, x0, x1, place1 }, i) {
    if (x1[i] >= x0[i]) return x1[i];
    const row = store.row(row1[i]), index = spanStartingAt(row, x1[i], place1[i]);
    return index < 0 ? x1[i] : Math.min(x0[i], row.end[index]);
  }
  var nearPx = (view, px) => Math.max(-5e3, Math.min(view.frame.right + 5e3, px));

  // paint_lanes.js
  var LABEL_GAP_PX = 10;
  var CARET_PX = 14;
  var FIRST_PX = 12;
  var HALF_PX = 6;
  function paintShades(ctx, { view, theme, looks }) {
    const { frame: { left, right }, tables } = view, by = colourBy(view);
    clipLanes(ctx, view, 0, () => {
      for (const code of view.visibleLanes()) {
        const { top, bottom } = tables.lanes[code];
        ctx.fillStyle = theme.shade;
        if (view.laneOrder.indexOf(code) % 2) ctx.fillRect(left, view.yAt(top), right - left, bottom - top);
        ctx.fillStyle = looks.fills[laneHue(tables, by, code) * TINTS];
        ctx.fillRect(left - 5, view.yAt(top) + 2, 3, bottom - top - 4);
      }
    });
  }
  function paintGroups(ctx, painter) {
    const { view } = painter;
    clipLanes(ctx, view, 0, () => {
      for (const [group, box] of groupBoxes(view)) paintGroup(ctx, painter, group, box);
    });
  }
  function groupBoxes(view) {
    const lanesTop = view.lanesTop(), boxes = [];
    for (const group of view.tables.groups) {
      const top = view.yAt(group.top), bottom = view.yAt(group.bottom), headPx = group.head_bottom - group.top;
      if (bottom <= lanesTop || top >= view.lanesBottom()) continue;
      boxes.push([group, { top, bottom, headPx, headTop: Math.min(Math.max(top, lanesTop), bottom - headPx) }]);
    }
    return boxes;
  }
  function paintCaret(ctx, x, middle, isFolded) {
    const [a, b] = isFolded ? [[-2.5, -4.5], [3.5, 0]] : [[-4.5, -2.5], [0, 3.5]];
    ctx.beginPath();
    ctx.moveTo(x + a[0], middle + a[1]);
    ctx.lineTo(x + b[0], middle + b[1]);
    ctx.lineTo(x + (isFolded ? a[0] : -a[0]), middle + (isFolded ? -a[1] : a[1]));
    ctx.fill();
  }
  function paintGroup(ctx, painter, group, { top, bottom, headPx, headTop }) {
    const { view, theme } = painter, { frame } = view;
    ctx.fillStyle = blend(group.fill, theme.paper, TINT);
    ctx.fillRect(BAND_PX, headTop, frame.right - BAND_PX, headPx);
    const band = new Path2D(`M0 ${top}h${BAND_PX}V${bottom - 1}H0z`);
    ctx.fillStyle = group.fill;
    ctx.fill(band);
    hatchShape(ctx, painter, group.hatch, band);
    const middle = headTop + headPx / 2, left = BAND_PX + 18, room = frame.right - left - 6;
    if (group.letter) {
      ctx.fillStyle = group.fill;
      ctx.fillRect(3, middle - 8, BAND_PX - 6, 16);
      setPen(ctx, BAR_INK, 12, "center", "bold");
      ctx.fillText(group.letter, BAND_PX / 2, middle, BAND_PX - 4);
    }
    setPen(ctx, theme.ink, 12, "left", "bold");
    paintCaret(ctx, BAND_PX + 9, middle, group.isFolded);
    const label = painter.texts.fit(ctx, group.label, room), used = painter.texts.width(ctx, label) + 16;
    ctx.fillText(label, left, middle);
    setPen(ctx, theme.ink);
    ctx.fillText(painter.texts.fit(ctx, group.detail, room - used), left + used, middle);
  }
  var caretLeft = (view) => view.tables.groups.length ? BAND_PX + 2 : 0;
  function paintLaneLabels(ctx, painter) {
    const { view, theme } = painter, { frame, tables } = view;
    const left = caretLeft(view) + CARET_PX, right = frame.left - LABEL_GAP_PX, room = right - left;
    let free = view.lanesTop() - 4;
    clipLanes(ctx, view, 0, () => {
      for (const code of view.visibleLanes()) {
        const { label, detail, group, parts = [], top, bottom, folded } = tables.lanes[code];
        const least = view.lanesTop() + (group >= 0 ? groupHeadPx(tables, group) : 0), half = HALF_PX;
        for (const [text, from, to] of parts.slice(1)) paintPartLabel(ctx, painter, text, view.yAt((from + to) / 2), least, room);
        const middle = Math.min(Math.max(view.yAt(top) + FIRST_PX, least + half), view.yAt(bottom) - half);
        if (middle - half < free - 1 && bottom - top < 2 * half || middle + half > view.lanesBottom() + 3 || middle - half < least - 3) continue;
        free = middle + half;
        ctx.fillStyle = theme.soft;
        paintCaret(ctx, left - CARET_PX / 2, middle, folded);
        paintName(ctx, painter, label, detail, { right, middle, room });
      }
    });
  }
  var groupHeadPx = ({ groups }, group) => groups[group] ? groups[group].head_bottom - groups[group].top : 0;
  function paintName(ctx, { theme, texts }, label, detail, { right, middle, room }) {
    setPen(ctx, theme.soft, 12, "right");
    const text = detail && ` · ${detail}`, used = texts.width(ctx, text);
    const fits = text && texts.width(ctx, label) + used <= room;
    if (fits) ctx.fillText(text, right, middle);
    ctx.fillStyle = theme.ink;
    ctx.fillText(texts.fit(ctx, label, room, true), fits ? right - used : right, middle);
  }
  function paintPartLabel(ctx, { view, theme, texts }, text, middle, least, room) {
    if (middle - 6 < least || middle + 6 > view.lanesBottom()) return;
    setPen(ctx, theme.soft, 11, "right");
    ctx.fillText(texts.fit(ctx, text, room), view.frame.left - LABEL_GAP_PX, middle);
  }

  // pixels.js
  var words = /* @__PURE__ */ new Map();
  var Pixels = class {
    constructor() {
      this.canvas = document.createElement("canvas");
    }
    /** Begin anew, with nothing in it. */
    resize(width, height) {
      if (this.width === width && this.height === height) return this.words.fill(0);
      Object.assign(this.canvas, { width, height });
      Object.assign(this, { width, height, data: new ImageData(width, height) });
      this.words = new Uint32Array(this.data.data.buffer);
    }
    rect(left, top, width, height, colour) {
      const word = wordOf(colour, 1), from = Math.max(0, left), to = Math.min(this.width, left + width), bottom = Math.min(this.height, top + height);
      for (let y = Math.max(0, top) * this.width; y < bottom * this.width; y += this.width) for (let x = from; x < to; x++) this.words[y + x] = word;
    }
    /** Fill the area between two heights, given for equal columns, above a bottom; where there is anything it is a px high at least. */
    stack({ scale, bottom, ...borders }, colour, alpha, mask) {
      const { width, words: words2 } = this, [low, high] = [borders.low, borders.high].map(withSteps), count = high.length, [plain2, dark] = [wordOf(colour, alpha), mask && wordOf(blend("#000000", colour, 0.35), alpha)];
      for (let column = 0, left = 0; column < count; column++) {
        const right = Math.round((column + 1) * width / count), isAny = high[column] - low[column] > 1e-6;
        const top = bottom - Math.max(Math.round(high[column] * scale), isAny && !low[column] ? 1 : 0), until = bottom - Math.round(low[column] * scale);
        for (let y = Math.max(0, top); y < until; y++) for (let x = left; x < right; x++) words2[y * width + x] = mask?.isDark(x, y) ? dark : plain2;
        left = right;
      }
    }
    paint() {
      this.canvas.getContext("2d").putImageData(this.data, 0, 0);
      return this.canvas;
    }
  };
  function withSteps(values) {
    const stepped = values.slice(), isLevel = (one, other) => other === void 0 || Math.abs(one - other) < 1e-3;
    for (let column = 1; column + 1 < values.length; column++) {
      const mean = values[column], before = values[column - 1], after = values[column + 1];
      if ((before - mean) * (mean - after) <= 0 || !isLevel(before, values[column - 2]) || !isLevel(after, values[column + 2])) continue;
      stepped[column] = Math.abs(mean - before) < Math.abs(mean - after) ? before : after;
    }
    return stepped;
  }
  function wordOf(colour, alpha) {
    const key = alpha === 1 ? colour : `${colour} ${alpha}`;
    let word = words.get(key);
    if (word === void 0) {
      const [r, g, b] = parseColour(colour);
      words.set(key, word = (Math.round(255 * alpha) << 24 | b << 16 | g << 8 | r) >>> 0);
    }
    return word;
  }

  // paint_card.js
  var RUN_GAP = 2;
  var SMS_LABEL_HIGH_PX = 12;
  var LEAST_LABEL_PX = 14;
  var MOST_LABELLED = 24;
  var LEAST_LABELLED_PX = 8;
  function paintCard(ctx, painter) {
    const { view, theme, texts, ratio } = painter, { frame, tables } = view, width = Math.max(1, Math.round((frame.right - frame.left) * ratio));
    painter.card ??= new Pixels();
    painter.card.resize(width, Math.max(1, Math.round(view.parts.headPx * ratio)));
    ctx.fillStyle = theme.shade;
    const told = tables.card_rows.map((row) => {
      ctx.fillRect(frame.left, frame.top + row.top, frame.right - frame.left, row.bottom - row.top);
      return [row, paintStack(painter.card, painter, row, { x0: view.x0, x1: view.x1, columns: width })];
    });
    if (told.length) ctx.drawImage(painter.card.paint(), frame.left, frame.top, frame.right - frame.left, painter.card.height / ratio);
    for (const [row, areas] of told) {
      const box = { left: frame.left, right: frame.right, top: frame.top + row.top, bottom: frame.top + row.bottom };
      if (row.kind === "sms" && areas.length < MOST_LABELLED) labelSms(ctx, painter, areas, box, row.most);
      if (box.bottom - box.top < LEAST_LABELLED_PX) continue;
      setPen(ctx, theme.soft, 11, "right");
      const short = row.label.split(" · ").at(-1).replace(/ \(%\)$|, to .*/, "");
      ctx.fillText(firstFit(ctx, texts, [row.label, short], box.left - LABEL_GAP_PX - 2), box.left - LABEL_GAP_PX, (box.top + box.bottom) / 2);
    }
    const strip = view.parts.capture;
    if (strip) paintCapture(ctx, painter, { left: frame.left, top: frame.top + strip.top, bottom: frame.top + strip.bottom });
  }
  function paintStack(pixels, painter, row, { x0, x1, columns }) {
    const { view, ratio, hatches } = painter, { store, tables } = view, alpha = row.kind === "sms" && tables.header.counts_ranges ? OPEN_STRIP : 1;
    const layers = cardLayers(store, tables, row, x0, x1, columns, (lane, band) => fillOf(painter, lane, band)), count = layers[0]?.mean.length ?? 0;
    const areas = stackLayers(layers, row.kind === "sms" ? ownSms(view, count, x0, x1) : [], row.most);
    for (const [{ lane, band: place }, low, high] of areas) {
      const band = row.kind === "sms" ? bandOf(view, lane, place) : null, mask = band && painter.hasHatch(band.hatch) ? hatches.mask(band.hatch, ratio) : null;
      pixels.stack({ low, high, scale: Math.round((row.bottom - row.top) * ratio) / row.most, bottom: Math.round(row.bottom * ratio) }, fillOf(painter, lane, place), alpha, mask);
    }
    return areas;
  }
  function ownSms(view, count, x0, x1) {
    const { bands, own_sms: layouts } = view.tables;
    if (bands.length < 2) return [];
    const ns = (x1 - x0) / count, none = bands.slice(1).map(() => 0);
    return Array.from({ length: count }, (_, column) => layouts.findLast(([time]) => time <= x0 + (column + 0.5) * ns)?.[1].slice(0, -1) ?? none);
  }
  var bandOf = (view, lane, place) => colourBy(view) === "partition" && !view.tables.lanes[lane].has_own_hue ? view.tables.bands[place] : null;
  var fillOf = ({ view, looks }, lane, place) => bandOf(view, lane, place)?.fill ?? looks.fills[laneHue(view.tables, colourBy(view), lane) * TINTS];
  function cardAt(view, px, py) {
    const { tables, store, nsPerPx, frame, parts: { capture } } = view, isIn = ({ top, bottom }) => py >= frame.top + top && py <= frame.top + bottom;
    if (px > frame.right) return null;
    if (capture && isIn(capture)) return ["Kernels captured", [["about", "elsewhere there are ranges only"]]];
    const row = tables.card_rows.find(isIn);
    if (!row) return null;
    const isSms = row.kind === "sms", title = isSms ? `${row.label}, as many as work can have had` : row.label;
    const about = isSms ? "by grid and blocks, at most those of its partition" : row.lines ? `up to ${formatCount(row.most)}` : "by stream";
    if (px < frame.left) return [title, [["about", about]]];
    const at = view.timeAt(px), layers = cardLayers(store, tables, row, at, at + nsPerPx, 1).filter(({ mean }) => mean[0] > 1e-3);
    const said = layers.map(({ lane, mean }) => [tables.lanes[lane].label, isSms ? `${Number(mean[0].toPrecision(3))} SMs` : row.lines ? String(Number(mean[0].toPrecision(4))) : "copies"]);
    return [title, [["at", exactTime(at)], ...said, ["about", about]]];
  }
  function paintCapture(ctx, { view, theme, texts }, { left, top, bottom }) {
    ctx.fillStyle = theme.grid;
    ctx.fillRect(left, bottom, view.frame.right - left, 1);
    clipTo(ctx, left, top, view.frame.right, bottom, () => {
      ctx.fillStyle = theme.accent;
      const last = view.extent().end;
      for (const [start, end] of view.tables.capture.windows) {
        const from = nearPx(view, view.pxAt(start)), to = nearPx(view, view.pxAt(Math.min(end, last)));
        ctx.fillRect(from, top + 3, Math.max(1, to - from), bottom - top - 5);
      }
    });
    setPen(ctx, theme.soft, 11, "right");
    const x = left - LABEL_GAP_PX;
    ctx.fillText(firstFit(ctx, texts, ["kernels captured", "captured"], x - 2), x, (top + bottom) / 2);
  }
  function labelSms(ctx, painter, areas, { left, right, bottom, top }, most) {
    const { texts, theme, view } = painter, scale = (bottom - top) / most, told = /* @__PURE__ */ new Map();
    for (const [layer, low, high] of areas) {
      const sms = high.map((border, column) => border - low[column]), { lane, band: place } = layer, band = bandOf(view, lane, place), px = (right - left) / sms.length;
      const own = areas.filter(([other]) => other === layer), all = (column) => own.reduce((sum, [, from, to]) => sum + to[column] - from[column], 0);
      let written = told.get(layer) ?? 0;
      setPen(ctx, BAR_INK, 11, "left", "bold");
      for (let from = 0, to; from < sms.length; from = to) {
        to = runEnd(sms, low, from);
        if ((to - from) * px < LEAST_LABEL_PX || sms[from] < 0.5) continue;
        const number = all(from), isHigh = sms[from] * scale >= SMS_LABEL_HIGH_PX, text = `${band?.letter ?? ""} ${formatCount(Math.round(number))}`.trim(), width = texts.width(ctx, text);
        if ((to - from) * px < width + 8 || Math.abs(number - written) < 0.5) continue;
        const until = from + Math.ceil((width + 8) / px), isTop = () => areas.every(([, , other]) => other.subarray(from, until).every((border, at) => border < high[from + at] + 0.01));
        if (!isHigh && (high[from] * scale > bottom - top - 12 || !isTop())) continue;
        told.set(layer, written = number);
        const x = left + from * px + 3;
        const middle = bottom - (isHigh ? (low[from] + high[from]) / 2 : high[from]) * scale - (isHigh ? 0 : 7);
        ctx.fillStyle = fillOf(painter, lane, place);
        if (isHigh) ctx.fillRect(x, middle - 6, width + 4, 12);
        ctx.fillStyle = isHigh ? BAR_INK : theme.ink;
        ctx.fillText(text, x + 2, middle + 0.5);
      }
    }
  }
  function runEnd(sms, low, from) {
    const isSame = (column) => Math.abs(sms[column] - sms[from]) < 0.01 && Math.abs(low[column] - low[from]) < 0.01;
    let to = from + 1;
    for (let column = to; column < sms.length && column <= to + RUN_GAP; column++) if (isSame(column)) to = column + 1;
    return to;
  }
  function firstFit(ctx, texts, words2, room) {
    return words2.find((text) => texts.width(ctx, text) <= room) ?? texts.fit(ctx, words2.at(-1) ?? "", room);
  }

  // paint_overlay.js
  function paintOutlines(ctx, { view, theme }) {
    outline(ctx, view, view.pinned, theme.accent, theme.paper);
    outline(ctx, view, view.hovered, theme.ink, theme.paper);
  }
  function outline(ctx, view, hit, colour, paper) {
    const box = hit && boxOf2(view, hit);
    if (!box) return;
    clipLanes(ctx, view, view.frame.left, () => {
      for (const [width, style] of [[5, paper], [2, colour]]) {
        ctx.lineWidth = width;
        ctx.strokeStyle = style;
        ctx.strokeRect(box.left, box.top, box.width, box.height);
      }
    });
  }
  function boxOf2(view, hit) {
    const place = view.tables.rows[hit.row];
    if (!place) return null;
    const columns = view.store.row(hit.row), first = hit.index ?? hit.first, last = hit.index ?? hit.last;
    if (!(last < columns.length)) return null;
    const left = Math.max(view.frame.left - 20, Math.round(view.pxAt(columns.start[first])));
    const right = Math.min(view.frame.right + 20, Math.round(view.pxAt(endOfHit(columns, first, last))));
    if (right < view.frame.left || left > view.frame.right) return null;
    return { left, top: Math.round(view.yAt(place.top)), width: Math.max(1, right - left), height: Math.round(place.bottom - place.top) };
  }
  function paintSelection(ctx, painter) {
    const { view, theme } = painter;
    if (!view.selection) return;
    const { start, end } = view.selection;
    tint(ctx, view, start, end, view.visibleLanes(), theme.accent, view.frame.top, view.lanesPx, (left, right) => paintPill(ctx, painter, formatNs(end - start), (left + right) / 2, view.lanesTop() + 12, { fill: theme.accent, ink: theme.paper, isBold: true }));
  }
  function tint(ctx, view, start, end, lanes, colour, top, height, paint = () => {
  }) {
    const left = Math.max(view.frame.left, view.pxAt(start)), right = Math.min(view.frame.right, view.pxAt(end));
    if (right <= left) return;
    clipLanes(ctx, view, view.frame.left, () => {
      ctx.fillStyle = colour;
      ctx.globalAlpha = 0.16;
      for (const code of lanes) {
        const lane = view.tables.lanes[code];
        ctx.fillRect(left, view.yAt(lane.top), right - left, lane.bottom - lane.top);
      }
      ctx.globalAlpha = 1;
      for (const x of [left, right - 1]) ctx.fillRect(x, top, 1, height);
      paint(left, right);
    });
  }
  function paintPill(ctx, { view, texts }, text, x, middle, { fill, ink, isBold = false, line = null, right = view.frame.right }) {
    setPen(ctx, fill, 12, "center", isBold ? "bold" : "normal");
    const width = texts.width(ctx, text) + 16, { frame } = view;
    const left = Math.min(Math.max(x - width / 2, frame.left + 2), Math.max(frame.left + 2, right - width - 2));
    ctx.beginPath();
    ctx.roundRect(left, middle - 10, width, 20, 10);
    ctx.fill();
    if (line) {
      ctx.strokeStyle = line;
      ctx.lineWidth = 1;
      ctx.stroke();
    }
    ctx.fillStyle = ink;
    ctx.fillText(text, left + width / 2, middle + 0.5);
  }
  function paintMoreLanes(ctx, painter) {
    const { view, theme } = painter, { frame } = view;
    const say = (words2, middle) => {
      setPen(ctx, theme.soft);
      paintPill(ctx, painter, firstFit(ctx, painter.texts, words2, (frame.right - frame.left) / 2), frame.right - 4, middle, { fill: theme.paper, ink: theme.soft, line: theme.grid });
    };
    if (view.canScroll) {
      const { laneOrder } = view, seen = view.visibleLanes();
      const above = seen.length ? laneOrder.indexOf(seen.at(-1)) + 1 - seen.length : 0;
      const word = laneOrder.some((code) => view.tables.lanes[code].host) ? "lanes" : "streams";
      const isMostly = (code) => view.yAt((view.tables.lanes[code].top + view.tables.lanes[code].bottom) / 2) < view.lanesBottom();
      const count = Math.max(1, seen.filter(isMostly).length), below = laneOrder.length - above - count, shown = `${formatCount(count)} of ${formatCount(laneOrder.length)}`;
      if (above) say([`▴ ${formatCount(above)} above`], view.lanesTop() + 12);
      const words2 = [`▾ ${shown} ${word} shown: scroll`, `▾ ${shown} ${word}`, `▾ ${shown}`];
      if (below) say(words2, view.lanesBottom() - 12);
    }
  }

  // paint_why.js
  var SIGN_PX = 8.5;
  var SMALL_SIGN_PX = 6.5;
  var NARROW_PX = 420;
  var SIGN_STEP_PX = 2 * SIGN_PX + 2;
  var COUNTED_STEP_PX = 1.5 * SIGN_STEP_PX;
  var COLOURS = { hazard: "stray", stray: "stray", note: "accent" };
  var FEW_SIGNS = 8;
  var MOST_ASIDE = 4;
  function signsIn(view) {
    const { left, right } = view.frame, told = /* @__PURE__ */ new Map();
    const taken = new Map([-1, ...view.visibleLanes()].map((lane) => [lane, []])), signs = [];
    const isNarrow = right - left <= NARROW_PX;
    const isIn = ({ number, folds, lane, kind, start, end }) => (!folds || number === view.reason?.number) && taken.has(lane) && view.pxAt(kind === "note" ? end : start) >= left && view.pxAt(start) <= right + SIGN_PX;
    const pieces = reasonsOf(view).pieces.filter(isIn);
    for (const piece of pieces) {
      const own = pieces.length > FEW_SIGNS && piece.number !== view.reason?.number ? told.get(piece.number) : null;
      if (own) {
        own.more += 1;
        continue;
      }
      const begin = view.pxAt(piece.start), places = taken.get(piece.lane);
      const { top, bottom } = (piece.late ? view.tables.rows[piece.late.row] : view.tables.lanes[piece.lane]) ?? {};
      const x = freePlace(places, Math.max(left, begin - SIGN_PX - 1), left, !piece.place);
      if (x === null) {
        const near = (other) => Math.abs(other.x - begin + SIGN_PX + 1);
        places.reduce((best, other) => near(other) < near(best) ? other : best).more += 1;
        continue;
      }
      const y = piece.lane < 0 ? view.frame.top + SIGN_PX + 2 : piece.kind === "note" ? view.yAt(top) + SIGN_PX : view.yAt(isNarrow ? top : (top + bottom) / 2);
      if (piece.lane >= 0 && view.isUnderFold(x, y)) continue;
      const sign = { piece, x, y, px: isNarrow ? SMALL_SIGN_PX : SIGN_PX, more: 0 };
      places.push(sign);
      signs.push(sign);
      told.set(piece.number, sign);
    }
    return signs;
  }
  function freePlace(places, from, least, isLongest) {
    const leastPx = isLongest ? SIGN_STEP_PX : COUNTED_STEP_PX;
    const isFree = (x) => places.every((other) => Math.abs(other.x - x) >= leastPx);
    const aside = Array.from({ length: isLongest ? MOST_ASIDE : 1 }, (_, step) => from - step * SIGN_STEP_PX);
    return aside.find((x) => isFree(x) && x >= least) ?? null;
  }
  function paintSigns(ctx, { view, theme }) {
    const signs = signsIn(view);
    paintEach(ctx, view, theme, signs.filter(({ piece }) => piece.lane < 0));
    clipTo(ctx, 0, view.lanesTop() - SMALL_SIGN_PX, view.frame.right, view.lanesBottom(), () => paintEach(ctx, view, theme, signs.filter(({ piece }) => piece.lane >= 0)));
  }
  function paintEach(ctx, view, theme, signs) {
    for (const { piece: { sign, place, kind, lane, start, end }, x, y, px, more } of signs) {
      const colour = theme[COLOURS[kind] ?? "warn"];
      if (kind === "note") {
        const at = Math.max(view.frame.left, view.pxAt(start));
        ctx.fillStyle = colour;
        ctx.fillRect(at - 1, y - SIGN_PX, 1.5, lane < 0 ? view.lanesPx - SIGN_PX / 2 : 2 * SIGN_PX);
        ctx.fillRect(at, y - SIGN_PX, Math.max(0, Math.min(view.pxAt(end), view.frame.right) - at), 2);
      }
      paintDisc(ctx, x, y, px + 1.5, theme.paper);
      paintDisc(ctx, x, y, px, colour);
      if (place) paintDisc(ctx, x, y, px - 1.5, theme.paper);
      setPen(ctx, place ? colour : theme.paper, sign.length > 1 ? px + 1.5 : px + 2.5, "center", "bold");
      ctx.fillText(sign, x, y + 0.5);
      if (more) paintCount(ctx, more > 999 ? "999+" : `+${more}`, { x, y, px }, view.frame.right, { fill: colour, ground: theme.paper });
    }
  }
  function paintCount(ctx, text, { x, y, px }, right, { fill, ground }) {
    setPen(ctx, ground, 10, "left", "bold");
    const width = ctx.measureText(text).width + 2, isSmall = px < SIGN_PX, beside = x + px + 1.5;
    const left = Math.min(isSmall ? beside : x - width / 2, right - width), middle = !isSmall ? y - px - 4 : left < beside ? y + px + 6 : y;
    ctx.fillRect(left, middle - 5, width, 10);
    ctx.fillStyle = fill;
    ctx.fillText(text, left + 1, middle);
  }
  function paintDisc(ctx, x, y, radius, colour) {
    ctx.beginPath();
    ctx.arc(x, y, radius, 0, 2 * Math.PI);
    ctx.fillStyle = colour;
    ctx.fill();
  }
  function signAt(view, px, py) {
    if (py < view.frame.top || py >= view.lanesBottom()) return null;
    return signsIn(view).find(({ x, y }) => Math.hypot(px - x, py - y) <= SIGN_PX + 1.5) ?? null;
  }
  function paintWhy(ctx, painter) {
    const { view, theme } = painter, piece = shownPiece(view);
    if (view.gap) paintGap(ctx, painter, view.gap, theme.accent);
    if (!piece) return;
    for (const { late } of reasonsOf(view).findings[piece.number - 1].pieces) outline(ctx, view, late, theme[COLOURS[piece.kind] ?? "warn"], theme.paper);
    if (piece.since < piece.start) paintGap(ctx, painter, { lane: piece.lane, start: piece.since, end: piece.start }, theme.warn);
    for (const hit of [piece.other, piece.call]) outline(ctx, view, hit, theme.warn, theme.paper);
  }
  function paintGap(ctx, painter, { lane, start, end }, colour) {
    const { view, theme } = painter, { top, bottom } = view.tables.lanes[lane], text = `idle ${formatNs(end - start)}`;
    tint(ctx, view, start, end, [lane], colour, view.yAt(top), bottom - top, (left, right) => {
      setPen(ctx, colour, 12, "center", "bold");
      if (painter.texts.width(ctx, text) + 2 * SIGN_STEP_PX > right - left) return;
      paintPill(ctx, painter, text, (left + right) / 2, view.yAt((top + bottom) / 2), { fill: colour, ink: theme.paper, isBold: true });
    });
  }

  // details.js
  var FIRST_FACTS = /* @__PURE__ */ new Set(["stray", "stream", "thread", "partition", "kind", "call", "blocked", "SMs", "range", "names"]);
  function addDetails(viewer) {
    const { view } = viewer;
    const panel = viewer.drawer.add("details", "Details of the pinned span");
    const state = { anchor: null, waits: makeNode("div", { class: "gsl-waits gsl-ties" }) };
    const refresh = (property) => keepPinned(viewer, panel, state, property);
    onClick(viewer, (event) => pinUnder(viewer, event));
    view.on("look", refresh);
    view.on("data", refresh);
    view.on("data", () => showWaits(view, state));
    view.on("look", (property) => {
      if (FILTER_KEYS.has(property)) showWaits(view, state);
    });
  }
  function pinUnder(viewer, event) {
    const point = viewer.pointOf(event);
    if (!viewer.view.isOver(point, viewer.view.lanesPx)) return;
    const { view } = viewer, sign = signAt(view, point.x, point.y);
    if (sign) return showPiece(view, sign.piece);
    const hit = view.hitAt(point.x, point.y);
    view.set("pinned", hit);
    view.set("gap", hit ? null : gapAt(view, point.x, point.y));
  }
  function keepPinned(viewer, panel, state, property) {
    const { view } = viewer;
    if (state.anchor && !view.pinned && FILTER_KEYS.has(property)) view.pinned = movedPin(view, state.anchor);
    if (view.pinned !== (state.anchor?.hit ?? null)) {
      state.anchor = view.pinned && pinAnchor(view, view.pinned);
      showDetails(viewer, panel, view.pinned, state.waits);
      showWaits(view, state);
      return;
    }
    if (!state.anchor) return;
    const hit = movedPin(view, state.anchor);
    if (hit === state.anchor.hit) return;
    if (hit) state.anchor = pinAnchor(view, hit);
    view.set("pinned", hit);
  }
  function showWaits(view, { waits }) {
    const nodes = view.pinned ? waitNodes(view, view.pinned) : [], textOf2 = (list) => [...list].map((node) => node.textContent).join("\n");
    if (textOf2(nodes) !== textOf2(waits.children)) waits.replaceChildren(...nodes);
  }
  function showDetails(viewer, panel, hit, waits) {
    const { view, drawer } = viewer;
    if (!hit) return drawer.fill(panel, []);
    const title = hitTitle(view, hit), [start, end] = timesOf(view, hit);
    const facts = [...hitFacts(view, hit), ...placeFacts(view, hit)], isFirst = ([label]) => FIRST_FACTS.has(label);
    const copy = makeButton("Copy", { label: "Copy these details as text", onclick: () => copyText(factsText(title, [...facts, ...waitFacts(view, hit)]), copy, panel) });
    const zoom = makeButton("Zoom here", { key: "F", onclick: () => view.fitAround(...timesOf(view, hit)) });
    const close = makeButton("Unpin", { key: "Escape", onclick: () => {
      view.set("pinned", null);
      viewer.focus();
    } });
    const head = makeNode("header", {}, makeNode("h3", { text: `${title} · ${formatNs(end - start)}`, dir: "auto" }), zoom, copy, close);
    waits.replaceChildren(...waitNodes(view, hit));
    drawer.fill(panel, [head, factList(facts.filter(isFirst)), waits, makeNode("div", { class: "gsl-ties" }, ...enclosingNodes(view, hit)), factList(facts.filter((fact) => !isFirst(fact)))], true);
    viewer.announce([title, ...facts.slice(0, 6).map((pair) => pair.join(" "))].join(", "));
  }
  function placeFacts(view, { row: code, index }) {
    const row = view.store.row(code);
    if (index === void 0 || row.countAt(index) > 1) return [];
    return [["trace", `${view.isLive ? "number" : "row"} ${formatCount(Number(row.place[index]))}, start_ns ${traceTime(view, row.start[index])}`]];
  }
  function enclosingNodes(view, hit) {
    if (!isSpan(hit)) return [];
    return linkList("Inside", enclosingSpans(view, hit).map(({ row: code, index }) => {
      const row = view.store.row(code);
      return spanLink(view, row, index, `${nameOf(view, row.name[index])} · ${formatNs(row.end[index] - row.start[index])}`);
    }));
  }
  function factsText(title, facts) {
    return [`name	${title}`, ...facts.map(([label, text]) => `${label}	${text.replaceAll("\n", ", ")}`)].join("\n");
  }

  // drawer.js
  var WIDTH_PX = 336;
  var NARROW_PX2 = 860;
  function addDrawer(viewer) {
    const { view, fills, opens, commands } = viewer, drawer = viewer.drawer = new Drawer(viewer);
    commands.shutDrawer = () => drawer.shut();
    if (opens && !drawer.isNarrow && (fills || reasonsOf(view).findings.some(({ folds }) => !folds))) {
      drawer.open();
      drawer.isUnasked = true;
    }
  }
  var Drawer = class {
    constructor(viewer) {
      Object.assign(this, { viewer, isOpen: false, isUnasked: false, opener: null, hint: makeNode("p", { class: "gsl-note", text: "Click a bar, a gap of a lane, or a sign." }) });
      const close = makeButton("×", { label: "Shut the drawer", key: "Escape", class: "gsl-shut", onclick: () => {
        this.shut();
        viewer.focus();
      } });
      this.element = makeNode("aside", { class: "gsl-drawer", role: "region", "aria-label": "Findings and details", tabindex: "0", hidden: true }, close, this.hint);
      viewer.body.append(this.element);
      const observer = new ResizeObserver(() => {
        if (this.isUnasked && this.isNarrow) this.shut();
        this.place();
      });
      observer.observe(viewer.element);
      viewer.atEnd(() => observer.disconnect());
      this.place();
    }
    /** Whether all of the run is in view. */
    get isWhole() {
      const { view } = this.viewer, { start, end } = view.extent();
      return view.x0 <= start && view.x1 >= end;
    }
    /** How wide the picture is while it is open: what must not change then goes by that. */
    get leastPx() {
      return this.viewer.element.clientWidth - (this.isNarrow ? 0 : WIDTH_PX);
    }
    get isNarrow() {
      return this.viewer.element.clientWidth < NARROW_PX2;
    }
    /** Add a section, which is hidden where it has nothing to tell. */
    add(name, label) {
      const section = makeNode("section", { class: `gsl-section gsl-${name}`, "aria-label": label, hidden: true });
      this.element.append(section);
      return section;
    }
    /** Fill a section, or empty it; `isAsked`: someone wants to read it, so it comes into sight. */
    fill(section, nodes, isAsked = false) {
      section.hidden = !nodes.length;
      section.replaceChildren(...nodes);
      this.hint.hidden = [...this.element.children].some((child) => child.tagName === "SECTION" && !child.hidden);
      if (nodes.length && isAsked) this.bring(section);
      else if (!nodes.length) queueMicrotask(() => {
        if (this.opener === section && section.hidden) this.shut();
      });
    }
    bring(section) {
      const wasOpen = this.isOpen;
      this.open();
      this.isUnasked = false;
      if (!wasOpen || this.opener) this.opener = section.closest("section");
      const { top, bottom } = section.getBoundingClientRect(), own = this.element.getBoundingClientRect();
      if (top < own.top || bottom > own.bottom) this.element.scrollTop += Math.min(top - own.top, Math.max(top - own.top - 32, bottom - own.bottom));
    }
    toggle() {
      return this.isOpen ? this.shut() : this.open();
    }
    open() {
      if (!this.isOpen) this.set(true);
    }
    /** Whether there was anything to shut. */
    shut() {
      const wasOpen = this.isOpen;
      if (wasOpen) this.set(false);
      return wasOpen;
    }
    set(isOpen) {
      const { viewer: { view }, isWhole } = this;
      this.isOpen = isOpen;
      this.isUnasked = false;
      this.opener = null;
      this.keepScale(() => {
        this.element.hidden = !isOpen;
        this.place();
      });
      if (!isOpen && isWhole) view.fit();
      view.emit("look", "drawer");
    }
    /** Make the picture wider or narrower at its right end, where time goes on or is cut. */
    keepScale(change2) {
      const { view, figureElement: figure, plotView } = this.viewer, { x0, nsPerPx, frame } = view, before = figure.clientWidth;
      change2();
      const morePx = figure.clientWidth - before;
      if (!morePx || !plotView) return;
      view.frame = { ...frame, right: frame.right + morePx };
      view.setRange(x0, x0 + nsPerPx * (view.frame.right - frame.left));
      const [start, end] = view.pinned ? timesOf(view, view.pinned) : view.gap ? [view.gap.start, view.gap.end] : [x0, x0], width = view.x1 - x0;
      if (start < view.x1 - 0.02 * width) return;
      const by = Math.min(end, start + 0.9 * width) + 0.02 * width - view.x1;
      view.setRange(x0 + by, x0 + by + width);
    }
    /** At the right as high as the window allows; at the bottom as a sheet. */
    place() {
      const { viewer: { element, body, fills }, isNarrow } = this;
      Object.assign(element.dataset, { open: this.isOpen && !isNarrow, narrow: isNarrow });
      this.element.style.setProperty("--gsl-above", `${fills ? Math.round(body.getBoundingClientRect().top + window.scrollY) : 0}px`);
    }
  };

  // follow.js
  var FOLLOW_NS = 1e10;
  var FOLLOW_MARGIN = 0.02;
  var NEARLY_NS = 1;
  function addFollow(viewer) {
    const { view } = viewer;
    if (!view.isLive) return;
    const follow = makeButton("Follow", { label: "Follow: stick to now", key: "End", onclick: () => startFollowing() });
    const pause = makeButton("Pause", { label: "Pause the picture while data arrives", key: "Space", onclick: () => togglePause() });
    const says = makeNode("output", { class: "gsl-came", "aria-live": "off" });
    const group = makeNode("span", { class: "gsl-follow" }, follow, pause);
    viewer.tools.prepend(group);
    viewer.news.prepend(says);
    const state = { seen: 0, wasFollowing: false, isMoving: false, widthNs: null };
    function startFollowing() {
      if (view.isPaused) view.set("isPaused", false);
      setFollowing(true);
    }
    function togglePause() {
      if (!view.isPaused) state.wasFollowing = view.isFollowing;
      view.set("isPaused", !view.isPaused);
      setFollowing(!view.isPaused && state.wasFollowing);
    }
    function setFollowing(isOn) {
      view.set("isFollowing", isOn);
      stick();
    }
    function stick() {
      if (!view.isFollowing || view.isPaused) return;
      state.isMoving = true;
      view.setRange(...followRange(view, state.widthNs));
      state.isMoving = false;
    }
    function moved() {
      if (state.isMoving || !view.isFollowing) return;
      const full = view.fullRange();
      if (view.x1 < view.extent().end - NEARLY_NS) view.set("isFollowing", false);
      else state.widthNs = view.x0 <= full.start + NEARLY_NS ? null : view.x1 - view.x0;
    }
    function show() {
      group.hidden = !view.isLive;
      follow.setAttribute("aria-pressed", String(view.isFollowing));
      pause.setAttribute("aria-pressed", String(view.isPaused));
      pause.textContent = view.isPaused ? "Go on" : "Pause";
      const came = spansSoFar(view.store) - state.seen;
      says.textContent = view.isPaused ? `Paused, ${formatCount(came)} new ${came === 1 ? "span" : "spans"}` : "";
    }
    function changed(property) {
      if (property === "isPaused" && view.isPaused) state.seen = spansSoFar(view.store);
      show();
    }
    view.on("range", moved);
    view.on("state", changed);
    view.on("data", () => {
      stick();
      show();
    });
    Object.assign(viewer.commands, { follow: startFollowing, pause: togglePause });
    show();
  }
  function followRange(view, widthNs) {
    const full = view.fullRange(), { end } = view.extent();
    if (widthNs === null && full.end - full.start <= FOLLOW_NS) return [full.start, full.end];
    const width = widthNs ?? FOLLOW_NS, edge = end + FOLLOW_MARGIN * width;
    return [edge - width, edge];
  }
  var spansSoFar = (store) => store.spanCount + store.evictedCount;

  // help.js
  var HELP_ROWS = [
    ["W  S", "Zoom in, out (at the pointer, else the middle)"],
    ["A  D", "Move to earlier, later"],
    ["F", "Fit what is pinned or selected; again: everything"],
    ["←  →", "Previous, next span of the row"],
    ["↑  ↓", "Row above, below: enclosing spans, then other lanes"],
    ["/", "Search; Enter next, Shift+Enter previous, Esc ends"],
    ["E", "Show, hide the waits (arrows)"],
    ["Y", "The next finding or note"],
    ["N", "Write a note: of what is pinned or selected, else at the pointer"],
    ["V", "How the picture looks"],
    ["L", "A lane: fold, hide"],
    ["PgUp  PgDn", "Scroll the lanes"],
    ["Esc", "Unpin, unselect, end the search, shut the drawer"]
  ];
  var HELP_SEARCH_ROWS = [
    ['gemm  "step 3"', "Part of a name; quotes hold words together"],
    ["stream:decode  kind:copy", "Field: name, stream, kind, partition, thread"],
    ["is:stray", "Ran on another stream than its range had selected"],
    [">1ms  <5us", "Longer, shorter than; ns us ms s min"],
    ["kind:copy >1ms", "All of it together"]
  ];
  var HELP_LIVE_ROWS = [["Space", "Pause, go on"], ["End", "Follow: stick to now"]];
  var HELP_MOUSE_ROWS = [
    ["Drag", "Move; two fingers: zoom"],
    ["Ctrl+wheel", "Zoom (Mac: ⌘, or pinch); over the axis without Ctrl"],
    ["Wheel", "Scroll the lanes, or the page where it is higher than the window; with Shift the lanes"],
    ["Shift+drag", "Select a window, and tell how long it is; F zooms there"],
    ["Lane's name", "Click: fold, hide"],
    ["Click", "A span: its details; a gap of a lane: why it was idle"],
    ["Click in legend", "Hide, show; with Alt or Ctrl: only this"],
    ["Low bars", "Many spans, too narrow to draw apart: as high as the share of the time"]
  ];
  function addHelp(viewer) {
    const sheet = new Sheet(viewer, "help", "Keys and mouse", { keys: ["Escape", "?"] }), shut = () => sheet.shut();
    const button = makeButton("?", { label: "Keys and mouse", key: "?", class: "gsl-help-button", "aria-haspopup": "dialog", onclick: () => toggle() });
    viewer.tools.append(button);
    const toggle = () => {
      if (sheet.isOpen) return shut();
      const rows = [...HELP_ROWS, ...viewer.view.isLive ? HELP_LIVE_ROWS : []];
      const [keys, mouse, search] = [rows, HELP_MOUSE_ROWS, HELP_SEARCH_ROWS].map(listOf);
      sheet.fill("Keys and mouse", keys, mouse, makeNode("h4", { text: "Search" }), search);
      sheet.open();
    };
    viewer.commands.help = toggle;
  }
  var listOf = (rows) => makeNode("dl", { class: "gsl-keys" }, ...rows.flatMap(([keys, text]) => [
    makeNode("dt", {}, ...keys.split("  ").map((key) => makeNode("kbd", { text: key }))),
    makeNode("dd", { text })
  ]));

  // keys.js
  var ZOOM_STEP = 1.5;
  var PAN_STEP = 0.2;
  var PAGE_STEP = 0.8;
  var MOVES = /* @__PURE__ */ new Set(["w", "a", "s", "d"]);
  var SCROLLS = /^(Arrow|Page|Home|End)/;
  var NOTEBOOKS = ".jp-LabShell, .jp-Notebook, .jp-OutputArea, .notebook_app, .vscode-body, [data-vscode-theme-kind]";
  function addKeys(viewer) {
    const root = viewer.element, figure = viewer.figureElement;
    viewer.plotView?.canvas_view?.events_el?.removeAttribute("tabindex");
    for (const part of figure.children) part.dataset.lmSuppressShortcuts = "true";
    const state = { pointer: null };
    addHelp(viewer);
    const keyed = (event) => {
      if (!isForTimeline(event, root, state)) return;
      const action = keyAction(viewer, event, state);
      if (!action) return;
      event.preventDefault();
      event.stopPropagation();
      if (!MOVES.has(event.key.toLowerCase())) viewer.commands.hideTip();
      action();
    };
    document.addEventListener("keydown", keyed, { signal: viewer.signal });
    const pointed = (event) => {
      state.pointer = event;
    };
    listen(root, { pointerenter: pointed, pointerleave: () => {
      state.pointer = null;
    } }, false);
    const mousedown = (event) => {
      event.preventDefault();
      viewer.focus();
    };
    listen(figure, { pointermove: pointed, mousedown });
  }
  function isForTimeline(event, root, state) {
    if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return false;
    const target = event.composedPath()[0];
    if (isWriting(target) || target.closest?.(".gsl-sheet") || target.matches?.(".gsl-drawer") && SCROLLS.test(event.key)) return false;
    if (event.key === "Escape" && document.body.popover !== void 0 && document.querySelector(".gsl-about:popover-open")) return false;
    if (root.contains(target) || root.contains(event.target)) return true;
    const hasNoFocus = target === document.body || target === document.documentElement || isPageOfOne() && target.closest?.(".gsl-head");
    if (!hasNoFocus || document.querySelector(NOTEBOOKS)) return false;
    return Boolean(state.pointer) || isPageOfOne() && !isForScrolling(event);
  }
  var isPageOfOne = () => window.parent === window && document.querySelectorAll(".gsl-viewer").length === 1;
  function isForScrolling({ key }) {
    const { scrollHeight, clientHeight } = document.documentElement;
    return scrollHeight > clientHeight && (key === " " || /^(ArrowUp|ArrowDown|Page|Home|End)/.test(key));
  }
  function isWriting(target) {
    return target.isContentEditable || target.tagName === "TEXTAREA" || target.tagName === "SELECT" || target.tagName === "INPUT" && !/^(button|checkbox|radio|range|reset|submit)$/.test(target.type);
  }
  function keyAction(viewer, event, state) {
    const { view } = viewer, commands = viewer.commands;
    const isOnControl = event.composedPath()[0].matches?.("button, a, summary, input");
    if (isOnControl && (event.key === " " || event.key === "Enter")) return void 0;
    const letter = /^[a-z]$/i.test(event.key) || !/^Key/.test(event.code) ? event.key.toLowerCase() : event.code.slice(3).toLowerCase();
    if (event.shiftKey && event.key.length > 1) return void 0;
    const at = () => pointerTime(viewer, state), zoomIn = () => view.zoomBy(1 / ZOOM_STEP, at()), zoomOut = () => view.zoomBy(ZOOM_STEP, at());
    return {
      w: zoomIn,
      "+": zoomIn,
      "=": zoomIn,
      s: zoomOut,
      "-": zoomOut,
      a: () => view.panBy(-PAN_STEP),
      d: () => view.panBy(PAN_STEP),
      f: () => fitNext(view),
      0: () => view.fit(),
      arrowleft: () => stepSpan(view, -1),
      arrowright: () => stepSpan(view, 1),
      arrowup: () => stepRow(view, -1),
      arrowdown: () => stepRow(view, 1),
      pageup: view.canScroll ? () => view.scrollTo(view.scrollPx - PAGE_STEP * view.lanesPx) : void 0,
      pagedown: view.canScroll ? () => view.scrollTo(view.scrollPx + PAGE_STEP * view.lanesPx) : void 0,
      "/": commands.search,
      n: () => commands.note(at()),
      e: commands.toggleWaits,
      v: commands.menu,
      l: commands.lane,
      y: commands.nextReason,
      "?": commands.help,
      " ": view.isLive ? commands.pause : void 0,
      end: view.isLive ? commands.follow : void 0,
      escape: () => leaveOne(viewer)
    }[letter];
  }
  function pointerTime(viewer, { pointer }) {
    if (!pointer) return void 0;
    const { view } = viewer;
    const { x } = viewer.pointOf(pointer);
    return x >= view.frame.left && x <= view.frame.right ? view.timeAt(x) : void 0;
  }
  function fitNext(view) {
    const { pinned, gap, selection, x0, x1 } = view;
    if (pinned) view.fitAround(...timesOf(view, pinned));
    else if (gap) view.fitAround(gap.start, gap.end);
    else if (selection) view.setRange(selection.start, selection.end);
    if (view.x0 === x0 && view.x1 === x1) view.fit();
  }
  function leaveOne(viewer) {
    const { view } = viewer, commands = viewer.commands;
    const chosen = ["pinned", "reason", "gap"].filter((key) => view[key]);
    if (chosen.length) return chosen.forEach((key) => view.set(key, null));
    const other = ["lit", "selection"].find((key) => view[key]);
    if (other) return view.set(other, null);
    if (!commands.clearSearch()) commands.shutDrawer();
  }
  function stepSpan(view, direction) {
    const from = view.pinned;
    if (!from) return pinFirst(view);
    const edge = isSpan(from) ? from.index : direction > 0 ? from.last : from.first;
    const index = edge + direction;
    if (index >= 0 && index < view.store.row(from.row).length) view.show(from.row, index);
  }
  function stepRow(view, direction) {
    const from = view.pinned;
    if (!from) return pinFirst(view);
    const rows = rowsFromTop(view), [start, end] = timesOf(view, from), middle = (start + end) / 2;
    for (let place = rows.indexOf(from.row) + direction; place >= 0 && place < rows.length; place += direction) {
      if (view.store.row(rows[place]).length) return view.show(rows[place], nearestSpan(view.store, rows[place], middle));
    }
  }
  function pinFirst(view) {
    const rows = rowsFromTop(view).filter((code) => view.store.row(code).length);
    const shown = rows.find((code) => view.tables.rows[code].bottom > view.scrollPx) ?? rows[0];
    if (shown !== void 0) view.show(shown, nearestSpan(view.store, shown, (view.x0 + view.x1) / 2));
  }
  function rowsFromTop({ tables: { rows } }) {
    return rows.map((_, code) => code).filter((code) => rows[code].top >= 0).sort((a, b) => rows[a].top - rows[b].top || a - b);
  }
  function nearestSpan(store, code, time) {
    const row = store.row(code), at = row.indexAt(time);
    if (at < 0) return 0;
    if (at + 1 >= row.length || row.end[at] >= time) return at;
    return time - row.end[at] <= row.start[at + 1] - time ? at : at + 1;
  }

  // lanes.js
  var SETS = { folded: ["folded", "open"], hidden: ["hidden", "shown"] };
  function addLanes(viewer) {
    const { view } = viewer, figure = viewer.figureElement, commands = viewer.commands;
    const showSheet = addSheet(viewer);
    let grip = null;
    const down = (event) => {
      const point = viewer.pointOf(event), name = nameAt(view, point.x, point.y);
      if (!name || event.button || point.x >= view.frame.left && !name.idle) return;
      event.stopImmediatePropagation();
      grip = { ...name, point };
    };
    const up = (event) => {
      if (!grip) return;
      event.stopImmediatePropagation();
      const { lane: code, group, idle, point } = grip, lane = view.planned.lanes[code];
      grip = null;
      if (idle) return view.arrange({ idle: true });
      if (group) change(viewer, "folded", groupKey(group), group.label);
      else if (point.x < caretLeft(view) + CARET_PX) change(viewer, "folded", laneKey(lane), lane.name);
      else setTimeout(() => showSheet(code, event.clientY));
    };
    listen(figure, { pointerdown: down, pointerup: up, pointercancel: () => {
      grip = null;
    } });
    commands.lane = () => showSheet(laneOfKeys(view));
    addChoices(viewer);
  }
  function nameAt(view, x, y) {
    if (y < view.lanesTop() || y >= view.lanesBottom()) return null;
    const group = groupBoxes(view).find(([, { headTop, headPx }]) => y >= headTop && y < headTop + headPx)?.[0];
    if (group) return { group };
    const { idle } = view.tables;
    if (idle && y >= view.yAt(idle.top) && y < view.yAt(idle.bottom)) return { idle };
    if (x >= view.frame.left) return null;
    const lane = view.visibleLanes().find((code) => {
      const { top, bottom } = view.tables.lanes[code];
      return y >= view.yAt(top) && y < view.yAt(bottom);
    });
    return lane === void 0 ? null : { lane };
  }
  function nameFacts(view, { lane: code, group, idle }) {
    if (idle) return [idle.text, [], "Click: show them"];
    if (group) return [group.label, group.detail ? [["about", group.detail]] : [], `Click on its name: ${group.isFolded ? "open" : "fold"}`];
    const lane = view.planned.lanes[code], rows = view.laneRows[code].map((row) => view.store.row(row));
    const spans = rows.reduce((sum, row) => sum + row.countSum(0, row.length - 1), 0);
    const facts = [
      ["group", view.planned.groups[lane.group]?.label ?? ""],
      ["about", lane.detail],
      ["host", lane.machine],
      ["device", hasDevices(view.planned) ? String(lane.device) : ""],
      ["spans", formatCount(spans)]
    ];
    return [lane.name, facts.filter(([, text]) => text), "Click: fold, hide"];
  }
  function laneOfKeys(view) {
    const chosen = [view.lane, view.pinned && view.tables.rows[view.pinned.row].lane].find((code) => view.laneOrder.includes(code));
    return chosen ?? view.visibleLanes()[0];
  }
  function change(viewer, set, key, name) {
    const isIn = !viewer.view.layout[set].has(key);
    viewer.view.setIn(set, key, isIn);
    viewer.announce(`${name} is ${SETS[set][isIn ? 0 : 1]}`);
  }
  function addSheet(viewer) {
    const { view } = viewer, sheet = new Sheet(viewer, "lane", "Lane"), { element } = sheet;
    let does = {};
    const fill = () => {
      const lane = view.planned.lanes[view.lane], key = laneKey(lane), isIn = (set) => view.layout[set].has(key);
      const [title, facts] = nameFacts(view, { lane: view.lane });
      const put = (set) => () => {
        change(viewer, set, key, lane.name);
        if (isIn("hidden")) sheet.shut();
        else fill();
      };
      does = { F: put("folded"), H: put("hidden"), ArrowUp: () => choose(-1), ArrowDown: () => choose(1) };
      const button = (text, key2) => makeButton(text, { key: key2, onclick: does[key2] });
      sheet.fill(title, factList(facts), makeNode(
        "p",
        { class: "gsl-does" },
        button(isIn("folded") ? "Open" : "Fold", "F"),
        button("Hide", "H")
      ));
    };
    const choose = (way) => {
      const next = view.laneOrder[view.laneOrder.indexOf(view.lane) + way];
      if (next === void 0) return;
      view.lane = next;
      fill();
      viewer.announce(view.planned.lanes[next].name);
    };
    element.addEventListener("keydown", (event) => {
      const { key } = event, action = does[key.length === 1 ? key.toUpperCase() : key];
      event.stopPropagation();
      if (!action || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      action();
      if (sheet.isOpen) element.focus({ preventScroll: true });
    });
    return (code, clientY) => {
      if (code === void 0) return;
      view.lane = code;
      fill();
      const { left, top } = viewer.figureElement.getBoundingClientRect();
      sheet.open({ left: left + view.frame.left, top: clientY ?? top + view.yAt(view.tables.lanes[code].top) });
    };
  }
  function addChoices(viewer) {
    const { view, menu } = viewer, commands = viewer.commands;
    if (view.isLive || view.planned.memory?.length) {
      menu.toggle("Lanes", { label: "Memory", get: () => view.layout.memory, set: (memory) => view.arrange({ memory }) });
    }
    menu.toggle("Lanes", { label: "Streams without work", get: () => view.layout.idle, set: (idle) => view.arrange({ idle }) });
    menu.action("Lanes", { label: "Fold or hide a lane", key: "L", run: () => {
      commands.closeMenu();
      commands.lane();
    }, isOff: () => !view.laneOrder.length });
    menu.action("Lanes", { label: "Fold all lanes", run: () => view.arrange({ folded: new Set(view.planned.lanes.map(laneKey)) }) });
    menu.action("Lanes", { label: "Show all lanes", run: () => view.arrange({ hidden: /* @__PURE__ */ new Set(), folded: /* @__PURE__ */ new Set() }), isOff: () => !(view.layout.hidden.size + view.layout.folded.size) });
    menu.action("Moving", { label: "Show everything", key: "0", run: () => view.fit() });
    const plain2 = (layout) => JSON.stringify(layout, (_, value) => value instanceof Set ? [...value] : value), first = plain2(view.layout);
    view.keep("lanes", () => plain2(view.layout) === first ? null : JSON.parse(plain2(view.layout)), (kept) => {
      const { memory, idle, ...sets } = kept ?? JSON.parse(first);
      const chosen = Object.fromEntries(Object.keys(SETS).map((name) => [name, new Set(sets[name])]));
      view.arrange({ memory: memory === true, idle: idle === true, ...chosen });
    });
  }

  // layer.js
  var layerClasses = /* @__PURE__ */ new WeakMap();
  function layerClass(Bokeh) {
    if (layerClasses.has(Bokeh)) return layerClasses.get(Bokeh);
    const { Annotation, AnnotationView } = Bokeh.require("models/annotations/annotation");
    class TimelineLayerView extends AnnotationView {
      get needs_clip() {
        return false;
      }
      // Names stand left of the frame.
      _paint(ctx) {
        const context = ctx || this.layer.ctx;
        if (this.model.painting) this.model.painting(context, this.plot_view, context.layer ? context.layer.pixel_ratio : 1);
      }
    }
    class TimelineLayer extends Annotation {
    }
    TimelineLayer.__name__ = "GslTimelineLayer";
    TimelineLayer.prototype.default_view = TimelineLayerView;
    layerClasses.set(Bokeh, TimelineLayer);
    return TimelineLayer;
  }
  function addLayers(Bokeh, plot, view, painter) {
    const Layer = layerClass(Bokeh);
    const paint = (part) => (ctx, plotView, ratio) => {
      const { left, top, right, bottom } = plotView.frame.bbox;
      if (left !== view.frame.left || right !== view.frame.right) plotView.request_paint();
      view.frame = { left, top, right, bottom };
      if (view.frame.right - view.frame.left < 2) return;
      ctx.save();
      painter[part](ctx, ratio);
      ctx.restore();
    };
    const main = new Layer({ level: "annotation" }), overlay = new Layer({ level: "overlay" });
    main.painting = paint("paintMain");
    overlay.painting = paint("paintOverlay");
    plot.add_layout(main);
    plot.add_layout(overlay);
    return { main, overlay };
  }
  var LETTER_PX = 7.5;
  var TICK_GAP_PX = 8;
  function tickFormatter(Bokeh, view) {
    const { TickFormatter } = Bokeh.require("models/formatters/tick_formatter");
    class TimelineTickFormatter extends TickFormatter {
      doFormat(ticks) {
        const texts = formatTicks(ticks, view.x0, view.x1 - view.x0), every = ticks[1] - ticks[0];
        const step = Math.ceil((Math.max(...texts.map((text) => text.length)) * LETTER_PX + TICK_GAP_PX) * view.nsPerPx / every) || 1;
        return texts.map((text, place) => Math.round(ticks[place] / every) % step ? "" : text);
      }
    }
    TimelineTickFormatter.__name__ = "GslTickFormatter";
    return new TimelineTickFormatter();
  }
  function leaveViewport(plot) {
    const { visualViewport } = window;
    if (!visualViewport) return;
    const heard = [];
    plot.default_view = class TimelinePlotView extends plot.default_view {
      connect_signals() {
        const add = visualViewport.addEventListener;
        visualViewport.addEventListener = (...options) => {
          heard.push(options);
          add.apply(visualViewport, options);
        };
        try {
          super.connect_signals();
        } finally {
          visualViewport.addEventListener = add;
        }
      }
      remove() {
        for (const options of heard.splice(0)) visualViewport.removeEventListener(...options);
        super.remove();
      }
    };
  }
  function paintEachFrame(plotView) {
    let due = null;
    const paint = (done) => {
      due = null;
      try {
        if (!plotView.is_destroyed) plotView.repaint();
      } finally {
        done();
      }
    };
    plotView.throttled_paint = () => due ||= new Promise((done) => requestAnimationFrame(() => paint(done)));
  }

  // legend.js
  var LEGEND_HUES = 14;
  var LEAST_HUES = 6;
  var LEGEND_EVERY_MS = 2e3;
  var KIND_WORDS = { host: "call", annotation: "NVTX" };
  var WAITING_KINDS = /* @__PURE__ */ new Set(["range", "annotation", "wait"]);
  function addLegend(viewer) {
    const { view } = viewer;
    const chips = makeNode("div", { class: "gsl-legend", role: "group", "aria-label": "Legend: click hides, Alt+click shows only this" });
    const sheet = new Sheet(viewer, "all", "All of the legend", { back: () => chips.querySelector(".gsl-more") });
    viewer.bar.append(chips);
    const state = { times: new NameTimes(), drawn: "", left: 0, entries: [], hues: [], nameCount: 0 };
    const recount = () => {
      state.times.update(view.store, view.tables);
      view.strayCount = state.times.strayCount;
      draw();
    };
    const draw = () => drawLegend(viewer, { chips, sheet, state });
    const again = throttled(viewer, recount, LEGEND_EVERY_MS);
    view.on("data", (what) => what === "tables" ? recount() : again());
    view.on("look", (property) => {
      if (!FILTER_KEYS.has(property) && property !== "colour" && property !== "hasHatches") return;
      draw();
      if (sheet.isOpen) fillSheet(view, sheet, state);
    });
    let wide = 0;
    const observer = new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === wide) return;
      wide = contentRect.width;
      fitLegend(chips, state);
    });
    recount();
    observer.observe(chips);
    viewer.atEnd(() => observer.disconnect());
  }
  function allEntries(view, { times }) {
    const kinds = kindEntries(view, times), calls = callEntries(view, times);
    return {
      name: nameEntries(view, times),
      partition: partitionEntries(view, times),
      stream: streamEntries(view),
      calls,
      kinds: calls.length ? kinds.filter(({ text }) => text !== KIND_WORDS.host) : kinds
    };
  }
  function drawLegend(viewer, { chips, sheet, state }) {
    const { view } = viewer, by = colourBy(view), found = allEntries(view, state), { name: names, kinds, calls } = found, all = found[by];
    const told = [all.slice(0, LEGEND_HUES), all.length, names.length, kinds, calls, view.strayCount, [...FILTER_KEYS].map((group) => [...view[group]]), colourNode(view).textContent];
    const drawn = JSON.stringify(told, (key, value) => key === "all" ? void 0 : value);
    if (drawn === state.drawn) return fitLegend(chips, state);
    state.drawn = drawn;
    const openAll = ({ currentTarget }) => {
      const { left, bottom } = currentTarget.getBoundingClientRect();
      fillSheet(view, sheet, state);
      sheet.open({ left, top: bottom + 4 });
    };
    const focused = document.activeElement?.dataset?.entry;
    const more = makeButton("", { label: "Show all of the legend", "aria-haspopup": "dialog", class: "gsl-more", onclick: openAll });
    const hues = all.slice(0, LEGEND_HUES).map((entry) => chip(view, entry)), others = [...chipsOf(view, "kind", kinds), ...chipsOf(view, "calls", calls)];
    Object.assign(state, { left: all.length - hues.length, nameCount: by === "name" ? 0 : names.length, hues, entries: [...hues.slice(1, LEAST_HUES), ...others, ...hues.slice(LEAST_HUES)] });
    chips.replaceChildren(
      ...all.length ? [colourNode(view)] : [],
      ...hues,
      more,
      ...others,
      ...view.strayCount ? [strayChip(viewer, view.strayCount)] : [],
      ...view.store.filter ? [makeButton("Show all", { class: "gsl-show-all", onclick: () => FILTER_KEYS.forEach((group) => view[group].size && view.set(group, /* @__PURE__ */ new Set())) })] : []
    );
    fitLegend(chips, state);
    if (focused && !sheet.isOpen) chips.querySelector(`[data-entry="${focused}"]`)?.focus({ preventScroll: true });
  }
  function chipsOf(view, of, entries) {
    const [first, ...others] = entries.map((entry) => chip(view, entry));
    return first ? [makeNode("span", { class: "gsl-lead" }, makeNode("span", { class: "gsl-of", text: of }), first), ...others] : [];
  }
  function fitLegend(chips, { entries, hues, left, nameCount }) {
    const more = chips.querySelector(".gsl-more"), last = [...entries];
    entries.forEach((entry) => {
      entry.hidden = false;
    });
    Object.assign(chips.style, { height: "0", overflow: "clip" });
    for (; ; ) {
      const missing = left + hues.filter(({ hidden }) => hidden).length;
      const words2 = [missing ? `+ ${formatCount(missing)} more` : "", nameCount ? `${formatCount(nameCount)} name${nameCount === 1 ? "" : "s"}` : ""].filter(Boolean);
      more.hidden = !words2.length;
      more.textContent = words2.join(" · ");
      const tops = [...chips.children].filter((child) => !child.hidden).map((child) => child.offsetTop + child.offsetHeight / 2);
      if (!last.length || Math.max(...tops) - Math.min(...tops) < 12) break;
      last.pop().hidden = true;
    }
    Object.assign(chips.style, { height: "", overflow: "" });
  }
  function fillSheet(view, sheet, state) {
    const scrolled = sheet.element.querySelector(".gsl-list")?.scrollTop ?? 0, focused = document.activeElement?.dataset?.entry;
    const { name, kinds, calls, partition, stream } = allEntries(view, state);
    const list = makeNode("div", { class: "gsl-list" }, ...[name, kinds, calls, partition, stream].flat().map((entry) => chip(view, entry)));
    sheet.fill(`${formatCount(name.length)} names`, list);
    list.scrollTop = scrolled;
    if (focused && sheet.isOpen) list.querySelector(`[data-entry="${focused}"]`)?.focus({ preventScroll: true });
  }
  function colourNode(view) {
    const by = colourBy(view), isMixed = by === "partition" && view.tables.lanes.some((lane) => lane.has_own_hue);
    return makeNode("span", { class: "gsl-of", text: `colour: ${by}${isMixed ? " or stream" : ""}` });
  }
  function nameEntries(view, times) {
    const all = times.order().filter((code) => !callLabel(view, code)), groups = groupNames(view, all.map((code) => ({ name: code, busy: times.names.get(code) })));
    view.nameRows = rowsOfNames(times);
    return groups.map(({ text, codes, busy }) => ({ group: "hiddenNames", codes: codes.sort((a, b) => a - b), all, text, time: formatNs(busy), ...nameLook(view, codes) }));
  }
  function streamEntries(view) {
    const { lanes, palette } = view.tables, all = view.usedStreams();
    return all.map((code) => ({ group: "hiddenStreams", codes: [code], all, text: laneText(lanes[code]), fill: palette[laneHue(view.tables, "stream", code)][0] }));
  }
  function rowsOfNames({ rows }) {
    const found = /* @__PURE__ */ new Map();
    rows.forEach(({ names }, code) => names.forEach((_, name) => found.has(name) ? found.get(name).push(code) : found.set(name, [code])));
    return found;
  }
  function nameLook(view, codes) {
    const { store, tables } = view, [own, tint2, hatch] = tables.name_styles[codes[0]] ?? [0, 0], by = colourBy(view);
    const rows = codes.flatMap((code) => view.nameRows.get(code) ?? []), hues = new Set(rows.map((code) => laneHue(tables, by, tables.rows[code].lane)));
    const isPale = rows.every((code) => tables.rows[code].pale), isRange = rows.every((code) => tables.kinds[store.ownRow(code).kind[0]] === "range");
    const hue = by === "name" || callLabel(view, codes[0]) ? own : hues.size === 1 ? [...hues][0] : hueCount(tables);
    return { fill: tables.palette[hue][tint2], hatch, shape: isPale ? "hollow" : isRange ? "open" : "" };
  }
  function groupNames(view, names) {
    const groups = /* @__PURE__ */ new Map();
    for (const { name: code, busy } of names) {
      const own = nameOf(view, code), key = nameGroup(own), found = groups.get(key);
      if (found) Object.assign(found, { text: key, busy: found.busy + busy }).codes.push(code);
      else groups.set(key, { text: own, codes: [code], busy });
    }
    return [...groups.values()].sort((a, b) => b.busy - a.busy);
  }
  function nameGroup(name) {
    if (name.includes("<") || name.includes("::")) return name.replace(/\b(seq|op_id) = [0-9]+/g, "$1 = *");
    return name.replace(/(?<![^\s_\-#:/.=[(])[0-9]+(?![^\s_\-:/.,\])])/g, "*");
  }
  function kindEntries(view, { kinds }) {
    if (kinds.size < 2) return [];
    const all = [...kinds].sort((a, b) => a - b), { palette, kind_hatches: hatches } = view.tables, [fill] = palette[hueCount(view.tables)];
    return all.map((code) => {
      const kind = view.tables.kinds[code];
      const shape = WAITING_KINDS.has(kind) ? "hollow" : "";
      return { group: "hiddenKinds", codes: [code], all, text: KIND_WORDS[kind] ?? kind, fill, hatch: hatches[code], shape };
    });
  }
  function callEntries(view, times) {
    const all = times.order().filter((code) => callLabel(view, code));
    const isTold2 = ({ codes, text }) => codes.length || text === "synchronise" && times.hasBlocked;
    const { palette, call_styles: calls } = view.tables, first = hueCount(view.tables) + 1;
    return calls.map(([label, hatch, shape], place) => ({ group: "hiddenNames", codes: all.filter((code) => callLabel(view, code) === label).sort((a, b) => a - b), all, text: label, fill: palette[first + place][0], hatch, shape, isCall: true })).filter(isTold2);
  }
  function strayChip(viewer, count) {
    const title = `${formatCount(count)} kernels, copies or fills ran on another stream than their range had selected: click to find them`;
    const chip2 = makeButton("", { label: title, class: "gsl-chip", onclick: () => viewer.commands.searchFor("is:stray") });
    chip2.append(makeNode("i", { class: "gsl-stray-sign", "aria-hidden": "true" }), makeNode("span", { class: "gsl-text", text: count === 1 ? "stray" : "strays" }), makeNode("small", { text: formatCount(count) }));
    return chip2;
  }
  function partitionEntries({ tables: { bands, partitions } }, { partitions: used }) {
    const all = [...partitions.keys()];
    return bands.map(({ label, fill, hatch, letter }, band) => ({ group: "hiddenPartitions", codes: all.filter((code) => partitions[code].band === band), all, text: label, fill, hatch, letter })).filter(({ codes, letter }) => codes.length && (letter || codes.some((code) => used.has(code))));
  }
  function chip(view, entry) {
    const about = chipAbout(entry), parts = [entry.fill ? makeSwatch(entry) : null, makeNode("span", { class: "gsl-text", text: entry.text, dir: "auto" })];
    if (!entry.codes.length) return makeNode("span", { class: "gsl-chip", title: about }, ...parts);
    const isHidden = entry.codes.every((code) => view[entry.group].has(code));
    const facts = { type: "button", class: "gsl-chip", title: about, "aria-label": about, "aria-pressed": String(!isHidden), "data-entry": entryKey(entry) };
    const button = makeNode("button", facts, ...parts);
    if (entry.time) button.append(makeNode("small", { text: entry.time }));
    button.addEventListener("click", (event) => (event.altKey || event.ctrlKey || event.metaKey ? showOnly : toggleEntry)(view, entry));
    return button;
  }
  var entryKey = ({ group, codes, isCall }) => `${isCall ? "calls" : group}-${codes[0]}`;
  function chipAbout({ text, time, codes, isCall }) {
    const count = !isCall && time && codes.length > 1 ? `${formatCount(codes.length)} names, ` : "";
    return time ? `${text}, ${count}${time} in all` : text;
  }
  function toggleEntry(view, { group, codes }) {
    const hidden = new Set(view[group]), isHidden = codes.every((code) => hidden.has(code));
    for (const code of codes) hidden[isHidden ? "delete" : "add"](code);
    view.set(group, hidden);
  }
  function isAlone(view, { group, codes, all }) {
    const own = new Set(codes);
    return view[group].size > 0 && all.every((code) => view[group].has(code) !== own.has(code));
  }
  function showOnly(view, entry) {
    const own = new Set(entry.codes);
    view.set(entry.group, new Set(isAlone(view, entry) ? [] : entry.all.filter((code) => !own.has(code))));
  }
  var NameTimes = class {
    constructor() {
      this.names = /* @__PURE__ */ new Map();
      this.kinds = /* @__PURE__ */ new Set();
      this.partitions = /* @__PURE__ */ new Set();
      this.strayCount = 0;
      this.hasBlocked = false;
      this.rows = [];
    }
    /** Take in what is new; a row in which spans came in between, or went, is counted anew. */
    update(store, { rows, lanes, names: { length } }) {
      const sums = new Float64Array(length);
      this.rows.length = rows.length;
      for (const code of rows.keys()) {
        const row = store.ownRow(code), known = this.rows[code];
        if (!known || known.edits !== row.edits || known.length > row.length) {
          this.rows[code] = { edits: row.edits, length: 0, strays: 0, hasBlocked: false, names: /* @__PURE__ */ new Map(), kinds: /* @__PURE__ */ new Set(), partitions: /* @__PURE__ */ new Set() };
        }
        countSpans(row, this.rows[code], sums);
      }
      this.names.clear();
      for (const { names } of this.rows) for (const [code, busy] of names) addTime(this.names, code, busy);
      this.kinds = new Set(this.rows.flatMap(({ kinds }) => [...kinds]));
      this.partitions = new Set(this.rows.flatMap(({ partitions }, code) => lanes[rows[code].lane].host ? [] : [...partitions]));
      this.strayCount = this.rows.reduce((sum, { strays }) => sum + strays, 0);
      this.hasBlocked = this.rows.some(({ hasBlocked }) => hasBlocked);
    }
    /** Codes of the names that there are, those that take most time first. */
    order() {
      return [...this.names.keys()].sort((a, b) => this.names.get(b) - this.names.get(a) || a - b);
    }
  };
  function countSpans(row, known, sums) {
    const { name, kind, partition, length, hasWork } = row, found = /* @__PURE__ */ new Set();
    for (let i = known.length; i < length; i += 1) {
      const code = name[i];
      if (!sums[code]) found.add(code);
      sums[code] += row.busyAt(i);
      if (kind[i] !== kind[i - 1]) known.kinds.add(kind[i]);
      if (partition[i] !== partition[i - 1]) known.partitions.add(partition[i]);
      if (hasWork && isStray(row, i)) known.strays += 1;
      if (hasWork && isBlocked(row, i)) known.hasBlocked = true;
    }
    for (const code of found) {
      addTime(known.names, code, sums[code]);
      sums[code] = 0;
    }
    known.length = length;
  }
  var addTime = (sums, code, busy) => sums.set(code, (sums.get(code) ?? 0) + busy);

  // menu.js
  var CHOICES = ["partition", "stream", "name"];
  function addMenu(viewer) {
    const { view } = viewer;
    const button = makeButton("View", { label: "View: how the picture looks", key: "V", class: "gsl-menu-button", "aria-haspopup": "dialog", "aria-expanded": "false", onclick: () => toggle() });
    const sheet = new Sheet(viewer, "menu", "How the picture looks"), shut = () => sheet.shut();
    viewer.tools.append(button);
    viewer.menu = new Menu(sheet.element);
    const toggle = () => {
      if (sheet.isOpen) return shut();
      viewer.menu.show();
      const { right, bottom } = button.getBoundingClientRect();
      sheet.open({ right, top: bottom + 4 });
    };
    sheet.element.addEventListener("toggle", (event) => button.setAttribute("aria-expanded", String(event.newState === "open")));
    view.on("look", () => {
      if (sheet.isOpen) viewer.menu.show();
    });
    Object.assign(viewer.commands, { menu: toggle, closeMenu: shut });
  }
  var Menu = class {
    constructor(element) {
      this.element = element;
      this.sections = /* @__PURE__ */ new Map();
      this.shows = [];
    }
    /** One of several values: `options` are a value, its text, and what tells whether it is there; `get` and `set` read and write it. */
    choice(section, { label, options, get, set }) {
      const name = `gsl-${++choices}`;
      const inputs = options.map(([value, text, isThere = () => true]) => {
        const input = makeNode("input", { type: "radio", name, onchange: () => set(value) }), entry = makeNode("label", {}, input, text);
        this.shows.push(() => {
          input.checked = get() === value;
          entry.hidden = !isThere();
        });
        return entry;
      });
      this.add(section, makeNode("fieldset", {}, makeNode("legend", { text: label }), ...inputs));
    }
    toggle(section, { label, key = "", get, set }) {
      const input = makeNode("input", { type: "checkbox", "aria-keyshortcuts": key || null, onchange: () => set(input.checked) });
      this.shows.push(() => {
        input.checked = get();
      });
      this.add(section, makeNode("label", {}, input, label, key ? makeNode("kbd", { text: key }) : null));
    }
    /** Something that is done at once; `isOff` tells when it cannot be. */
    action(section, { label, key = "", run, isOff = () => false }) {
      const button = makeButton(label, { key, onclick: () => {
        run(button);
        this.show();
      } });
      this.shows.push(() => {
        button.disabled = isOff();
      });
      this.add(section, button);
    }
    add(section, node) {
      if (!this.sections.has(section)) {
        const part = makeNode("div", { class: "gsl-section", role: "group", "aria-label": section }, makeNode("h4", { text: section }));
        this.sections.set(section, part);
        this.element.append(part);
      }
      this.sections.get(section).append(node);
    }
    /** Let all controls show what is chosen now. */
    show() {
      for (const show of this.shows) show();
    }
  };
  var choices = 0;
  function addColours(viewer) {
    const { view, menu } = viewer;
    const options = CHOICES.filter((choice) => choice !== "partition" || view.isLive || colourBy(view) === choice).map((choice) => [choice, choice]);
    const toggleWaits = viewer.commands.toggleWaits = () => view.set("showsWaits", !view.showsWaits);
    menu.choice("Bars", { label: "Colour", options, get: () => colourBy(view), set: (choice) => view.set("colour", choice) });
    menu.toggle("Bars", { label: "Hatches", get: () => view.hasHatches, set: (isOn) => view.set("hasHatches", isOn) });
    menu.toggle("Bars", { label: "Waits as arrows", key: "E", get: () => view.showsWaits, set: toggleWaits });
    view.keep("colour", () => view.colour, (choice) => view.set("colour", CHOICES.includes(choice) ? choice : null));
    view.keep("hatches", () => view.hasHatches || null, (isOn) => view.set("hasHatches", isOn === true));
    view.keep("waits", () => view.showsWaits && null, (isOn) => view.set("showsWaits", isOn !== false));
    view.on("look", (property) => {
      if (property === "hasHatches") viewer.useTheme();
    });
  }

  // minimap.js
  var MINIMAP_PX = 22;
  var TOP_PX = 3;
  var RIM_PX = 3;
  var BOTTOM_PX = MINIMAP_PX - RIM_PX;
  var GRIP_PX = 6;
  var LEAST_BOX_PX = 6;
  var Minimap = class {
    constructor(viewer, element) {
      this.viewer = viewer;
      this.view = viewer.view;
      this.element = element;
      const up = () => {
        this.grip = null;
      };
      this.canvas = makeNode("canvas", {
        role: "img",
        "aria-label": "The SMs of the whole run, and which part of it is in view",
        title: "Drag the window, or its edges; double-click shows the whole run",
        onpointerdown: (event) => this.down(event),
        onpointermove: (event) => this.move(event),
        onpointerup: up,
        onpointercancel: up,
        ondblclick: () => this.view.fit()
      });
      Object.assign(this.canvas.style, { display: "block", width: "100%", touchAction: "pan-y" });
      element.append(this.canvas);
      this.frame = 0;
      viewer.atEnd(() => cancelAnimationFrame(this.frame));
      this.pixels = new Pixels();
      this.isDrawn = false;
      this.grip = null;
      const data = () => {
        this.isDrawn = false;
        this.request();
      };
      this.view.on("range", () => this.request());
      this.view.on("data", data);
      this.view.on("look", (property) => {
        if (FILTER_KEYS.has(property) || property === "colour" || property === "hasHatches") data();
      });
    }
    // What the map is painted for. The figure may find its place, or its colours, after the map was asked to paint.
    get situation() {
      return [this.left, this.width, this.element.clientWidth, this.viewer.theme.key].join();
    }
    keepUp() {
      if (this.situation !== this.painted || !this.isDrawn) this.request();
    }
    request() {
      this.frame ||= requestAnimationFrame(() => {
        this.frame = 0;
        this.paint();
      });
    }
    // The map lies over the figure's frame, so that one time is at one place in both.
    get left() {
      return this.view.frame.left;
    }
    get width() {
      return Math.max(1, this.view.frame.right - this.view.frame.left);
    }
    pxAt(ns) {
      return this.left + (ns - this.full.start) / (this.full.end - this.full.start) * this.width;
    }
    timeAt(px) {
      return this.full.start + (px - this.left) / this.width * (this.full.end - this.full.start);
    }
    // Whether the window has the whole run.
    get isWhole() {
      return this.view.x0 <= this.full.start && this.view.x1 >= this.full.end;
    }
    paint() {
      const ratio = window.devicePixelRatio || 1;
      const wide = Math.round(this.element.clientWidth * ratio), high = Math.round(MINIMAP_PX * ratio);
      const { view, viewer: { painter, theme } } = this;
      if (!wide || view.frame.right <= view.frame.left + 1) return;
      if (this.canvas.width !== wide || this.canvas.height !== high) {
        Object.assign(this.canvas, { width: wide, height: high });
        this.canvas.style.height = `${MINIMAP_PX}px`;
      }
      this.full = view.fullRange();
      if (this.painted !== this.situation) this.isDrawn = false;
      this.painted = this.situation;
      const ctx = this.canvas.getContext("2d");
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.clearRect(0, 0, wide, high);
      this.paintArea(ctx, ratio);
      this.paintWindow(ctx);
      setPen(ctx, theme.soft, 11, "right");
      const room = this.left - LABEL_GAP_PX;
      ctx.fillText(firstFit(ctx, painter.texts, ["whole run", "all"], room), room, MINIMAP_PX / 2);
    }
    paintArea(ctx, ratio) {
      const { viewer: { painter, theme }, view: { tables }, full, pixels } = this, most = tables.cards.reduce((sum, { sms }) => sum + sms, 0) || tables.lanes.length;
      if (!this.isDrawn && painter.looks) {
        this.isDrawn = true;
        pixels.resize(Math.max(1, Math.round(this.width * ratio)), Math.round((BOTTOM_PX - TOP_PX) * ratio));
        paintStack(pixels, painter, { kind: "sms", device: -1, most, top: 0, bottom: BOTTOM_PX - TOP_PX }, { x0: full.start, x1: full.end, columns: pixels.width });
        pixels.paint();
      }
      ctx.fillStyle = theme.shade;
      ctx.fillRect(this.left, TOP_PX, this.width, BOTTOM_PX - TOP_PX);
      if (this.isDrawn) ctx.drawImage(pixels.canvas, this.left, TOP_PX, this.width, BOTTOM_PX - TOP_PX);
    }
    // Edges of the window in px, within the map.
    windowPx() {
      const left = this.pxAt(this.view.x0), right = this.pxAt(this.view.x1), more = Math.max(0, LEAST_BOX_PX - right + left) / 2;
      return [Math.max(this.left, left - more), Math.min(this.left + this.width, right + more)];
    }
    paintWindow(ctx) {
      const { theme } = this.viewer, [left, right] = this.windowPx(), high = BOTTOM_PX - TOP_PX;
      ctx.fillStyle = theme.paper;
      ctx.globalAlpha = 0.62;
      ctx.fillRect(this.left, TOP_PX, left - this.left, high);
      ctx.fillRect(right, TOP_PX, this.left + this.width - right, high);
      ctx.globalAlpha = 1;
      ctx.fillStyle = ctx.strokeStyle = theme.accent;
      ctx.lineWidth = 1.5;
      if (!this.isWhole) ctx.strokeRect(left + 0.75, TOP_PX + 0.75, Math.max(1, right - left - 1.5), high - 1.5);
      if (right - left > 16) for (const x of [left, right - 4]) ctx.fillRect(x, TOP_PX + high / 2 - 6, 4, 12);
    }
    part(px) {
      const [left, right] = this.windowPx();
      if (px < left - GRIP_PX || px > right + GRIP_PX) return "outside";
      if (right - left < 4 * GRIP_PX) return "inside";
      return px <= left + GRIP_PX ? "left" : px < right - GRIP_PX ? "inside" : "right";
    }
    px(event) {
      return event.clientX - this.canvas.getBoundingClientRect().left;
    }
    down(event) {
      if (!this.full || event.button) return;
      const px = this.px(event), part = this.part(px), { x0, x1 } = this.view;
      if (part === "outside") {
        const middle = this.timeAt(px), half = (x1 - x0) / 2;
        this.view.setRange(middle - half, middle + half);
      }
      this.canvas.setPointerCapture(event.pointerId);
      this.grip = { part: part === "outside" ? "inside" : part, from: this.timeAt(px), x0: this.view.x0, x1: this.view.x1 };
    }
    move(event) {
      if (!this.full) return;
      const px = this.px(event);
      if (!this.grip) {
        this.canvas.style.cursor = { left: "ew-resize", right: "ew-resize", inside: "grab", outside: "pointer" }[this.part(px)];
        return;
      }
      const { part, from, x0, x1 } = this.grip, shift = this.timeAt(px) - from, { low, high } = this.view.bounds();
      if (part === "inside") this.view.setRange(x0 + shift, x1 + shift);
      else if (part === "left") this.view.setRange(Math.max(low, Math.min(x0 + shift, x1 - MIN_WINDOW_NS)), x1);
      else this.view.setRange(x0, Math.min(high, Math.max(x1 + shift, x0 + MIN_WINDOW_NS)));
    }
  };

  // notes.js
  var SECTION = "Notes and links";
  function readNote(view, entry) {
    try {
      const [time, end, stream, text] = entry;
      const tidy = (ns) => traceTime(view, viewTime(view, ns));
      if (typeof text !== "string" || end !== null && viewTime(view, end) < viewTime(view, time)) return null;
      return { time: tidy(time), end: end === null ? null : tidy(end), stream: stream === null ? null : String(stream), text };
    } catch {
      return null;
    }
  }
  function addNotes(viewer) {
    const { view, menu } = viewer, byTime = (a, b) => viewTime(view, a.time) - viewTime(view, b.time);
    const box = makeNode("input", { type: "text", maxlength: "500", "aria-label": "Note", placeholder: "Note", autocomplete: "off" });
    const sheet = new Sheet(viewer, "writing", "Write a note");
    const setNotes = (notes) => {
      view.set("reason", null);
      view.set("notes", notes);
    };
    const open = (note, old = null) => {
      const save = () => {
        const text = box.value.trim();
        setNotes([...view.notes.filter((one) => one !== old), ...text ? [{ ...note, text }] : []].sort(byTime));
        sheet.shut();
      };
      box.value = note.text;
      box.onkeydown = (event) => {
        if (event.key === "Enter" && !event.isComposing) save();
      };
      sheet.element.replaceChildren(box, makeButton("Save", { key: "Enter", onclick: save }));
      const { left, top } = viewer.figureElement.getBoundingClientRect();
      sheet.open({ left: left + view.pxAt(viewTime(view, note.time)), top: top + view.lanesTop() + 24 });
      box.focus();
      box.select();
    };
    const read = (entries2) => entries2.map((entry) => readNote(view, entry)).filter(Boolean).sort(byTime);
    const first = read(viewer.notes ?? view.tables.written), entries = () => view.notes.map(({ time, end, stream, text }) => [time, end, stream, text]);
    const write = (at) => open(newNote(view, at ?? (view.x0 + view.x1) / 2));
    view.set("notes", first);
    view.keep("notes", () => view.notes === first ? null : entries(), (value) => setNotes(value ? read(value) : first));
    Object.assign(viewer.commands, { note: write, editNote: (note) => open(note, note), dropNote: (note) => setNotes(view.notes.filter((other) => other !== note)) });
    menu.action(SECTION, { label: "Write a note", key: "N", run: () => {
      viewer.commands.closeMenu();
      write();
    } });
    if (viewer.address !== null) menu.action(SECTION, { label: "Copy link to this view", run: (button) => copyText(viewer.link(), button, menu.element) });
    if (viewer.savePage) menu.action(SECTION, { label: "Save page with notes", run: () => viewer.savePage(entries()) });
  }
  function newNote(view, at) {
    const { pinned, gap, selection, tables } = view;
    const of = (start, end, lane) => ({ time: traceTime(view, start), end: end === null ? null : traceTime(view, end), stream: tables.lanes[lane]?.name ?? null, text: "" });
    if (pinned) return of(...timesOf(view, pinned), tables.rows[pinned.row].lane);
    if (gap) return of(gap.start, gap.end, gap.lane);
    if (selection) return of(selection.start, selection.end, -1);
    return of(at, null, -1);
  }

  // lod.js
  var BIN_PX = 1.5;
  var ITEM_ARRAYS = {
    row: Int32Array,
    first: Int32Array,
    last: Int32Array,
    left: Float64Array,
    right: Float64Array,
    count: Float64Array,
    busy: Float64Array
  };
  var ITEM_COLUMNS = Object.keys(ITEM_ARRAYS);
  function binWidth(nsPerPx) {
    const wanted = BIN_PX * nsPerPx;
    let width = 1;
    while (width < wanted) {
      if (width > 1 && width * 1.5 >= wanted) return width * 1.5;
      width *= 2;
    }
    return width;
  }
  var LodItems = class {
    constructor(capacity = 4096) {
      this.length = 0;
      for (const [name, kind] of Object.entries(ITEM_ARRAYS)) this[name] = new kind(capacity);
    }
    push(row, left, right, first, last, count, busy) {
      if (this.length === this.row.length) for (const name of ITEM_COLUMNS) this[name] = grown(this[name], 2 * this.length, this.length);
      const place = this.length++;
      this.row[place] = row;
      this.left[place] = left;
      this.right[place] = right;
      this.first[place] = first;
      this.last[place] = last;
      this.count[place] = count;
      this.busy[place] = busy;
    }
  };
  function decimate(store, code, x0, x1, bin, out) {
    const row = store.row(code);
    const begin = row.firstEndingFrom(x0);
    if (begin >= row.length) return;
    const first = row.firstFrom(Math.floor(row.start[begin] / bin) * bin, begin);
    if (row.overlaps || 2 * row.slack >= bin) walkItems(row, first, x0, x1, bin, out);
    else gallopItems(row, first, x0, x1, bin, out);
  }
  function gallopItems(row, begin, x0, x1, bin, out) {
    const { start, end, length, slack } = row;
    let step = 1;
    for (let index = begin; index < length && start[index] <= x1; ) {
      if (end[index] - start[index] >= bin) {
        if (end[index] >= x0) pushItem(row, index, index, end[index], out);
        index++;
        continue;
      }
      let last = gallop(start, (Math.floor(start[index] / bin) + 1) * bin, index + 1, length, step) - 1;
      step = Math.max(1, last - index >> 1);
      if (slack) last = lastBeforeLong(row, index, last, bin);
      if (end[last] - start[last] >= bin) last--;
      if (end[last] >= x0) pushItem(row, index, last, end[last], out);
      index = last + 1;
    }
  }
  function lastBeforeLong({ start, end, slack }, first, last, bin) {
    const near = gallop(start, Math.floor(start[first] / bin) * bin + slack + 1, first, last + 1) - 1;
    return near >= first && end[near] - start[near] >= bin ? near : last;
  }
  function walkItems(row, begin, x0, x1, bin, out) {
    const { start, end, length } = row;
    for (let index = begin; index < length && start[index] <= x1; ) {
      const limit = (Math.floor(start[index] / bin) + 1) * bin;
      let right = end[index], next = index + 1;
      if (right - start[index] < bin) {
        for (; next < length && start[next] < limit && end[next] - start[next] < bin; next++) right = Math.max(right, end[next]);
      }
      if (right >= x0) pushItem(row, index, next - 1, right, out);
      index = next;
    }
  }
  function pushItem(row, first, last, right, out) {
    out.push(row.code, row.start[first], right, first, last, row.countSum(first, last), row.busySum(first, last));
  }

  // memory.js
  function paintMemory(ctx, painter) {
    eachStrip(ctx, painter, (strip, box) => paintMemoryStrip(ctx, painter, strip, box));
  }
  function paintMemoryLabels(ctx, painter) {
    eachStrip(ctx, painter, (strip, { top }) => labelMemory(ctx, painter, strip, top));
  }
  function eachStrip(ctx, { view }, paint) {
    const shown = (view.tables.memory ?? []).filter(({ top, bottom }) => view.yAt(bottom) > view.lanesTop() && view.yAt(top) < view.lanesBottom());
    if (!shown.length) return;
    clipLanes(ctx, view, view.frame.left, () => {
      for (const strip of shown) paint(strip, { top: view.yAt(strip.top) + 2, bottom: view.yAt(strip.bottom) - 1 });
    });
  }
  function paintMemoryStrip(ctx, { view, theme }, strip, { top, bottom }) {
    const most = strip.most || 1, y = (value) => bottom - (bottom - top) * value / most;
    for (const line of strip.lines) {
      const path = memoryPath(view, line, y);
      if (!path) continue;
      ctx.lineWidth = line.filled ? 1 : 1.5;
      ctx.strokeStyle = line.filled ? theme.memory : theme.soft;
      if (line.filled) {
        const area = new Path2D(path.line);
        area.lineTo(path.to, bottom);
        area.lineTo(path.from, bottom);
        ctx.fillStyle = theme.memory;
        ctx.globalAlpha = 0.6;
        ctx.fill(area);
        ctx.globalAlpha = 1;
      }
      ctx.stroke(path.line);
    }
  }
  function labelMemory(ctx, { view, theme, texts }, strip, top) {
    setPen(ctx, theme.paper, 11, "right");
    ctx.textBaseline = "top";
    const text = `max ${strip.most_text}`, width = texts.width(ctx, text);
    ctx.globalAlpha = 0.8;
    ctx.fillRect(view.frame.right - width - 8, top, width + 6, 13);
    ctx.globalAlpha = 1;
    ctx.fillStyle = theme.soft;
    ctx.fillText(text, view.frame.right - 5, top + 1);
  }
  function memoryPath(view, { time, value }, y) {
    const line = new Path2D(), first = Math.max(0, upperBound(time, view.x0, 0, time.length) - 1);
    if (!time.length || time[first] > view.x1) return null;
    const from = nearPx(view, view.pxAt(Math.max(time[first], view.x0)));
    let level = y(value[first]), x = from;
    line.moveTo(from, level);
    for (let i = first + 1; i < time.length && time[i] <= view.x1; i++) {
      x = view.pxAt(time[i]);
      line.lineTo(x, level);
      line.lineTo(x, level = y(value[i]));
    }
    const to = nearPx(view, view.pxAt(Math.min(view.x1, view.extent().end)));
    line.lineTo(Math.max(x, to), level);
    return { line, from, to: Math.max(x, to) };
  }
  function memoryAt(view, px, py) {
    const { frame } = view;
    if (px < frame.left || px > frame.right || py < view.lanesTop() || py >= view.lanesBottom()) return null;
    const strip = (view.tables.memory ?? []).find(({ top, bottom }) => py >= view.yAt(top) && py < view.yAt(bottom));
    if (!strip) return null;
    const at = view.timeAt(px);
    const facts = strip.lines.map(({ label, time, value }) => {
      const index = upperBound(time, at, 0, time.length) - 1;
      return [label, index < 0 ? "" : `${formatBytes(value[index])}, since ${formatNs(time[index])}`];
    }).filter(([, text]) => text);
    return facts.length ? { lane: strip.lane, at, facts: [["at", exactTime(at)], ...facts.reverse()] } : null;
  }

  // paint_bars.js
  var WIDE_PX = 4;
  var LABEL_MIN_PX = 12;
  var NUMBERS = /(?<![^\s_\-#:/.=[(])[0-9]+(?![^\s_\-:/.,\])])/g;
  var MIN_LABELLED_PX = 11;
  var HALF_TEXT_PX = 6;
  var LEAST_LETTERS = 4;
  var LONELY_PX = 3;
  var MOMENT_PX = 5;
  var FADE_PX = 4;
  var FADE_STEPS = 4;
  var LEAST_LOAD_PX = 2;
  var STRAY_PX = 8;
  var HIT_PX2 = 2;
  var LEAST_HIT_PX = 5;
  function paintBars(ctx, painter) {
    const { view, items, ratio } = painter, segments = collectItems(view, items);
    view.painted.segments.push(...segments);
    clipLanes(ctx, view, view.frame.left, () => {
      ctx.setTransform(1, 0, 0, 1, 0, 0);
      const boxes = placeItems(painter, segments);
      fillBoxes(ctx, painter, segments, boxes);
      if (view.matches) paintHits(ctx, painter, segments, boxes);
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      labelBoxes(ctx, painter, segments, boxes);
      paintStrays(ctx, painter, segments, boxes);
      paintMoments(ctx, painter, segments, boxes);
    });
  }
  function collectItems(view, items) {
    const { store, tables } = view, bin = binWidth(view.nsPerPx), segments = [];
    for (const lane of view.visibleLanes()) {
      for (const row of view.laneRows[lane]) {
        const top = view.yAt(tables.rows[row].top), bottom = view.yAt(tables.rows[row].bottom), from = items.length;
        if (bottom <= view.lanesTop() || top >= view.lanesBottom()) continue;
        decimate(store, row, view.x0, view.x1, bin, items);
        if (items.length > from) segments.push({ row, columns: store.row(row), from, to: items.length, top, bottom });
      }
    }
    return segments;
  }
  function placeItems(painter, segments) {
    const { view, items, ratio } = painter;
    if (!painter.boxes || painter.boxes.x.length < items.length)
      painter.boxes = { x: new Int32Array(items.length * 2), w: new Int32Array(items.length * 2), ns: new Float64Array(items.length * 2) };
    const { x, w, ns } = painter.boxes, scale = ratio / view.nsPerPx, origin = view.frame.left * ratio;
    const beyond = 24 * ratio, low = Math.floor(view.frame.left * ratio - beyond), high = Math.ceil(view.frame.right * ratio + beyond);
    const least = Math.max(1, Math.round(ratio));
    for (const { from, to } of segments) {
      for (let i = from; i < to; i++) {
        const gap = i + 1 < to ? items.left[i + 1] - items.right[i] : Infinity, isJoined = gap >= 0 && gap * scale < 1;
        const until = isJoined ? items.left[i + 1] : items.right[i];
        const left = Math.max(low, Math.round((items.left[i] - view.x0) * scale + origin));
        const right = Math.min(high, Math.round((until - view.x0) * scale + origin));
        x[i] = left;
        w[i] = Math.max(least, right - left);
        ns[i] = Math.max(until - items.left[i], (isJoined ? least : w[i]) / scale);
      }
      widenLonely(painter.boxes, from, to, ratio, scale);
    }
    return painter.boxes;
  }
  function widenLonely({ x, w, ns }, from, to, ratio, scale) {
    const wanted = LONELY_PX * ratio;
    for (let i = from; i < to; i++) {
      if (w[i] >= wanted) continue;
      const isLonely = (i === from || x[i - 1] + w[i - 1] + wanted <= x[i]) && (i === to - 1 || x[i] + 2 * wanted <= x[i + 1]);
      if (!isLonely) continue;
      ns[i] = Math.max(ns[i], wanted / scale);
      w[i] = Math.round(wanted);
    }
  }
  function eachItem(segments, visit) {
    for (const segment of segments) for (let i = segment.from; i < segment.to; i++) visit(i, segment);
  }
  var isMatch = ({ view, items }, { row }, i) => view.store.matchCount(row, items.first[i], items.last[i]) > 0;
  var isOne = ({ first, last }, i) => first[i] === last[i];
  function fillBoxes(ctx, painter, segments, { x, w, ns }) {
    const { view, items, looks, ratio, hatches } = painter, edge = Math.max(1, Math.round(ratio)), pale = openShade(painter.theme);
    const isNarrow = (i) => w[i] < WIDE_PX * ratio || !isOne(items, i);
    paintNarrow(ctx, painter, segments, { x, w, ns }, { isNarrow, edge, pale });
    eachItem(segments, (i, segment) => {
      if (isNarrow(i)) return;
      const { columns, top, height } = devicePx(segment, ratio), at = items.first[i], shape = looks.shape(columns, at);
      const isDim = view.matches && !isMatch(painter, segment, i);
      const full = shape === OPEN || columns.isPale ? isDim ? 1 : pale : isDim ? DIM_SHADE : SHADES;
      const code = looks.code(columns, at), box = { left: x[i], top, width: w[i] - edge, height, edge };
      if (shape === HOLLOW && columns.isPale && !isDim) {
        ctx.fillStyle = looks.shades[code][pale + 2];
        ctx.fillRect(x[i], top, w[i] - edge, height);
      }
      if (shape !== SOLID) outlineBox(ctx, box, isDim ? looks.shades[code][DIM_SHADE] : looks.lines[code], shape === OPEN);
      if (shape === HOLLOW) return;
      ctx.fillStyle = looks.shades[code][full];
      if (shape === OPEN) openBox(ctx, box, looks.shades[code], full, ratio);
      else ctx.fillRect(x[i], top, w[i] - edge, height);
      if (isDim || !painter.hasHatch(looks.hatch(columns, at))) return;
      ctx.fillStyle = hatches.get(ctx, looks.hatch(columns, at), ratio);
      ctx.fillRect(x[i], top, w[i] - edge, height);
    });
  }
  function paintNarrow(ctx, painter, segments, { x, w, ns }, { isNarrow, edge, pale }) {
    const { view, items, looks, ratio } = painter, { frame: { left, right } } = view, [originX, originY] = [left, view.lanesTop()].map((px) => Math.round(px * ratio));
    const pixels = painter.narrow ??= new Pixels();
    pixels.resize(Math.max(1, Math.round(right * ratio) - originX), Math.max(1, Math.round(view.lanesBottom() * ratio) - originY));
    eachItem(segments, (i, segment) => {
      if (!isNarrow(i)) return;
      const { columns, top, height } = devicePx(segment, ratio), at = items.first[i];
      const isDim = view.matches && !isMatch(painter, segment, i), share = Math.min(1, items.busy[i] / ns[i]);
      const isHollow = !view.tables.lanes[columns.lane].host && (columns.isPale || looks.shape(columns, at) === OPEN);
      const load = Math.max(Math.min(height, Math.round(LEAST_LOAD_PX * ratio)), Math.round(share * height)), y = top + height - load - originY, code = looks.load(columns, at);
      pixels.rect(x[i] - originX, y, w[i], load, looks.shades[code][isDim ? isHollow ? 1 : DIM_SHADE : isHollow ? pale : SHADES]);
      if (isHollow) for (const line of [y, y + load - edge]) pixels.rect(x[i] - originX, line, w[i], edge, isDim ? looks.shades[code][DIM_SHADE] : looks.lines[code]);
    });
    ctx.drawImage(pixels.paint(), originX, originY);
  }
  function paintHits(ctx, painter, segments, { x, w }) {
    const least = Math.round(LEAST_HIT_PX * painter.ratio), high = Math.round(HIT_PX2 * painter.ratio);
    ctx.fillStyle = painter.theme.accent;
    eachItem(segments, (i, segment) => {
      if (!isMatch(painter, segment, i)) return;
      const wide = Math.max(least, w[i] - 1);
      ctx.fillRect(Math.round(x[i] + (w[i] - wide) / 2), Math.round(segment.bottom * painter.ratio) - high, wide, high);
    });
  }
  function outlineBox(ctx, { left, top, width, height, edge }, colour, isOpen) {
    ctx.fillStyle = colour;
    for (const y of [top, top + height - edge]) ctx.fillRect(left, y, width, edge);
    if (!isOpen) for (const x of [left, left + width - edge]) ctx.fillRect(x, top, edge, height);
  }
  function openBox(ctx, { left, top, width, height, edge }, shades, full, ratio) {
    const step = Math.min(Math.round(FADE_PX * ratio), Math.floor(width / (2 * FADE_STEPS + 2))), fade = step * FADE_STEPS;
    ctx.fillRect(left + fade, top + edge, width - 2 * fade, height - 2 * edge);
    for (let place = 0; place < FADE_STEPS && step; place++) {
      ctx.fillStyle = shades[Math.round(full * (place + 1) / (FADE_STEPS + 2))];
      for (const x of [left + place * step, left + width - (place + 1) * step]) ctx.fillRect(x, top + edge, step, height - 2 * edge);
    }
  }
  function devicePx({ columns, top, bottom }, ratio) {
    const first = Math.round(top * ratio);
    return { columns, top: first, height: Math.max(1, Math.round(bottom * ratio) - first) };
  }
  function labelBoxes(ctx, painter, segments, { x, w }) {
    const { view, view: { frame }, items, ratio } = painter, low = view.lanesTop() + HALF_TEXT_PX, high = view.lanesBottom() - HALF_TEXT_PX;
    setPen(ctx, BAR_INK, 11);
    eachItem(segments, (i, { columns, top, bottom }) => {
      if ((top + bottom) / 2 < low || (top + bottom) / 2 > high) return;
      if (view.isUnderFold((x[i] + w[i]) / ratio, bottom) || bottom - top < MIN_LABELLED_PX || w[i] < LABEL_MIN_PX * ratio || !isOne(items, i)) return;
      const left = Math.max(x[i] / ratio, frame.left) + 2, right = Math.min((x[i] + w[i]) / ratio, frame.right) - 3;
      labelBar(ctx, painter, columns, items.first[i], { left, room: right - left, middle: (top + bottom) / 2 });
    });
  }
  function labelBar(ctx, painter, columns, at, { left, room, middle }) {
    const { view, looks, texts, theme } = painter, text = barText(ctx, texts, view.tables.names[columns.name[at]] ?? "", room);
    if (!text) return;
    const used = texts.width(ctx, text), isDim = view.matches && !columns.isMatch(at, view.matches), isSolid = looks.shape(columns, at) === SOLID;
    const from = left + (room - used) / 2;
    if (isSolid && !isDim && painter.hasHatch(looks.hatch(columns, at))) {
      ctx.fillStyle = looks.fills[looks.code(columns, at)];
      ctx.fillRect(from - 2, middle - 7, used + 4, 14);
    }
    ctx.fillStyle = isDim ? theme.soft : isSolid ? BAR_INK : theme.ink;
    ctx.fillText(text, from, middle + 0.5);
  }
  function barText(ctx, texts, name, room) {
    if (texts.width(ctx, name) <= room) return name;
    const short = shortName(name), number = short.match(NUMBERS)?.at(-1);
    if (short !== name && texts.width(ctx, short) <= room) return short;
    if (number === void 0) return leastFit(texts.fit(ctx, short, room));
    return texts.width(ctx, number) <= room ? number : "";
  }
  var shortName = (name) => {
    const plain2 = name.replace(/^(memcpy|memset|void)\s+/i, "");
    return plain2.includes("::") || /<.*>/.test(plain2) ? plain2.match(/^[\w:]+/)?.[0].split("::").at(-1) || plain2 : plain2;
  };
  var leastFit = (text) => text.length < LEAST_LETTERS && text.endsWith("…") ? "" : text;
  function paintStrays(ctx, { items, ratio, theme }, segments, { x, w }) {
    let corners = "";
    eachItem(segments.filter(({ columns }) => columns.hasWork), (i, { columns, top, bottom }) => {
      if (!isStray(columns, items.first[i])) return;
      const size = Math.min(STRAY_PX, bottom - top), right = Math.max(x[i] / ratio + size / 2, (x[i] + w[i]) / ratio - 1);
      corners += `M${right - size} ${top}h${size}v${size}z`;
    });
    paintShape(ctx, corners, theme.stray, theme.paper, 1.5);
  }
  function paintMoments(ctx, painter, segments, { x, w }) {
    const { view, items, looks, ratio } = painter, lonely = Math.round(LONELY_PX * ratio);
    eachItem(segments, (i, segment) => {
      if (items.right[i] > items.left[i] || !isOne(items, i) || w[i] < lonely) return;
      if (view.matches && !isMatch(painter, segment, i)) return;
      const { columns, top, bottom } = segment, half = Math.min(MOMENT_PX, (bottom - top) / 2), left = x[i] / ratio + LONELY_PX / 2;
      const path = `M${left - half} ${(top + bottom) / 2}l${half} ${-half}l${half} ${half}l${-half} ${half}z`;
      paintShape(ctx, path, looks.fills[looks.code(columns, items.first[i])], painter.theme.ink, 1);
    });
  }
  function paintShape(ctx, path, fill, line, width) {
    const shape = new Path2D(path);
    Object.assign(ctx, { fillStyle: fill, strokeStyle: line, lineWidth: width });
    ctx.fill(shape);
    ctx.stroke(shape);
  }

  // paint_marks.js
  var MARK_DASHES = { layout: [5, 3], mark: [1.5, 3], cell: [1.5, 3] };
  var MARK_RANKS = { layout: 0, mark: 1, cell: 2 };
  var MARK_HIT_PX = 4;
  var LINE_GAP_PX = 2;
  var markColour = (kind, theme) => kind === "layout" ? theme.warn : kind === "mark" ? theme.accent : theme.soft;
  var markRank = ({ kind }) => MARK_RANKS[kind];
  function paintMarks(ctx, painter) {
    const { view } = painter, marks = marksBetween(view.tables.marks, view.x0, view.x1).sort((a, b) => markRank(a) - markRank(b) || a.time - b.time);
    paintMarkLines(ctx, painter, marks);
    const taken = view.tables.mark_rows.map(() => []);
    if (!taken.length) return;
    for (const mark of marks) labelMark(ctx, painter, mark, taken);
  }
  var marksBetween = (marks, from, to) => marks.filter(({ time }) => time >= from && time <= to);
  var markPx = (view, mark) => Math.round(view.pxAt(mark.time)) + 0.5;
  function paintMarkLines(ctx, { view, theme }, marks) {
    const drawn = /* @__PURE__ */ new Set();
    ctx.save();
    ctx.lineWidth = 1.5;
    for (const mark of marks) {
      const x = markPx(view, mark);
      if (drawn.has(x)) continue;
      for (let off = 1 - LINE_GAP_PX; off < LINE_GAP_PX; off++) drawn.add(x + off);
      ctx.strokeStyle = markColour(mark.kind, theme);
      ctx.setLineDash(MARK_DASHES[mark.kind]);
      ctx.beginPath();
      ctx.moveTo(x, view.frame.top);
      ctx.lineTo(x, view.frame.top + view.parts.innerPx);
      ctx.stroke();
    }
    ctx.restore();
  }
  function labelMark(ctx, { view, theme, texts }, mark, taken) {
    setPen(ctx, theme.paper, 11, "left", "bold");
    const x = markPx(view, mark), width = texts.width(ctx, mark.text) + 8;
    const isRight = x + width <= view.frame.right, begin = isRight ? x : x - width, end = begin + width;
    if (begin < view.frame.left - 1) return;
    const row = taken.findIndex((labels) => labels.every(([from, to]) => end <= from || begin >= to));
    if (row < 0) return;
    taken[row].push([begin, end]);
    const middle = view.frame.top + view.tables.mark_rows[row];
    ctx.fillRect(isRight ? x + 2 : begin, middle - 8, width - 2, 16);
    setPen(ctx, markColour(mark.kind, theme), 11, isRight ? "left" : "right", "bold");
    ctx.fillText(mark.text, isRight ? x + 4 : x - 4, middle);
  }
  function marksAt(view, px, py) {
    const { frame, nsPerPx } = view, at = view.timeAt(px), slackNs = MARK_HIT_PX * nsPerPx;
    if (px < frame.left - MARK_HIT_PX || px > frame.right + MARK_HIT_PX || py < frame.top || py > frame.top + view.parts.innerPx) return [];
    const near = marksBetween(view.tables.marks, Math.max(at - slackNs, view.x0), Math.min(at + slackNs, view.x1));
    return near.sort((a, b) => markRank(a) - markRank(b) || Math.abs(a.time - at) - Math.abs(b.time - at));
  }
  function paintOpen(ctx, painter) {
    const { view, theme } = painter, { frame, tables } = view, now = Math.round(view.pxAt(view.nowNs)), right = Math.min(frame.right, now);
    if (!view.isLive || now < frame.left) return;
    clipLanes(ctx, view, frame.left, () => {
      for (const [lane, name, since, count] of view.openWork) {
        const { top, bottom } = tables.rows[view.laneRows[lane]?.[0]] ?? tables.lanes[lane] ?? {}, left = Math.max(frame.left - 2, Math.round(view.pxAt(since)));
        if (top === void 0 || right <= left) continue;
        Object.assign(ctx, { strokeStyle: theme.ink, lineWidth: 1 }).setLineDash([4, 2]);
        ctx.beginPath();
        for (const [x, y] of [[right, top], [left, top], [left, bottom - 1], [right, bottom - 1]]) ctx.lineTo(x + 0.5, Math.round(view.yAt(y)) + 0.5);
        ctx.stroke();
        ctx.setLineDash([]);
        const text = `${tables.names[name] ?? ""}${count > 1 ? ` + ${count - 1} more` : ""}, not ended`;
        paintPill(ctx, painter, text, (left + right) / 2, view.yAt((top + bottom) / 2), { fill: theme.paper, ink: theme.ink, line: theme.soft, right: right - 36 });
      }
    });
    if (now > frame.right) return;
    ctx.fillStyle = theme.accent;
    ctx.fillRect(now, frame.top, 1, view.parts.innerPx);
    paintPill(ctx, painter, "now", now, frame.top + view.parts.innerPx - (view.canScroll ? 35 : 11), { fill: theme.accent, ink: theme.paper });
  }

  // went.js
  function addWent(viewer) {
    const { view } = viewer, element = makeNode("section", { class: "gsl-went", "aria-label": "Where the time went", hidden: true }), key = makeNode("small");
    viewer.element.prepend(element);
    const told = () => ({ pieces: [], said: "", ...view.why?.went }), buttons = () => [...element.querySelectorAll(".gsl-share")];
    const show = () => {
      const { pieces, said } = told(), light = (piece) => view.set("lit", view.lit === piece ? null : piece);
      element.hidden = !pieces.length;
      if (view.lit && !pieces.includes(view.lit)) view.set("lit", null);
      element.replaceChildren(makeNode("h3", { text: "Where the time went" }), makeNode("div", { class: "gsl-shares" }, ...pieces.map((piece) => pieceNode(piece, () => light(piece)))), makeNode("p", {}, said, key));
      fit();
      press();
    };
    const fit = () => {
      for (const button of buttons()) delete button.dataset.letter;
      const narrow = buttons().filter((button) => [...button.querySelectorAll("span, b")].some(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth));
      narrow.forEach((button, place) => {
        button.dataset.letter = String.fromCharCode(97 + place);
      });
      key.replaceChildren(...narrow.flatMap(({ dataset: { letter: text }, textContent }) => [makeNode("b", { text }), ` ${textContent}`.replaceAll(" ", " ") + "  "]));
    };
    const press = () => buttons().forEach((button, place) => button.setAttribute("aria-pressed", String(view.lit === told().pieces[place])));
    view.on("look", (property) => {
      if (property === "why") show();
      else if (property === "lit") press();
    });
    show();
    const observer = new ResizeObserver(fit);
    observer.observe(element);
    viewer.atEnd(() => observer.disconnect());
  }
  function pieceNode({ label, about, fill, ns }, onclick) {
    const text = `${label} ${formatNs(ns)}`, title = `${text}: ${about}. Click to see where`;
    const button = makeNode("button", { type: "button", class: "gsl-share", title, "aria-label": title, onclick }, makeNode("span", { class: "gsl-what" }, makeNode("span", { text: label }), " ", makeNode("b", { text: formatNs(ns) })));
    button.style.flexGrow = String(ns);
    button.style.setProperty("--gsl-fill", fill === "none" ? "transparent" : fill);
    button.classList.toggle("gsl-nothing", fill === "none");
    return button;
  }
  function paintLit(ctx, { view, theme }) {
    if (!view.lit) return;
    const { frame } = view;
    ctx.fillStyle = theme.accent;
    for (const [start, end] of view.lit.places) {
      const left = Math.max(frame.left, view.pxAt(start)), right = Math.min(frame.right, view.pxAt(end)), wide = Math.max(1, right - left);
      if (right < frame.left || left > frame.right) continue;
      ctx.globalAlpha = 0.18;
      ctx.fillRect(left, frame.top, wide, view.parts.innerPx);
      ctx.globalAlpha = 1;
      ctx.fillRect(left, frame.top, wide, 3);
    }
  }

  // paint.js
  var Painter = class {
    constructor(view, theme) {
      this.view = view;
      this.hatches = new Hatches();
      this.texts = new Texts();
      this.items = new LodItems();
      this.setTheme(theme);
    }
    setTheme(theme) {
      this.theme = theme;
      this.looks = null;
    }
    // Whether a hatch is drawn: it is the second sign of those who ask for one, or need it.
    hasHatch = (sign) => (this.view.hasHatches || this.theme.needsHatches) && sign in HATCH_LINES;
    // Names may have come since.
    currentLooks() {
      const { tables } = this.view;
      const key = JSON.stringify([colourBy(this.view), tables.names.length]);
      if (this.looks?.tables !== tables || this.looksKey !== key) this.looks = new Looks(this.view, this.theme);
      this.looksKey = key;
      return this.looks;
    }
    // The picture below the marks that follow the pointer. `ratio` is device px per CSS px.
    paintMain(ctx, ratio) {
      const { view } = this;
      this.ratio = ratio;
      this.currentLooks();
      this.hatches.anchor(view.pxAt(0) * ratio % 65536, (view.frame.top - view.scrollPx) * ratio);
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.items.length = 0;
      view.painted = { items: this.items, segments: [] };
      paintShades(ctx, this);
      paintEdges(ctx, this);
      paintBars(ctx, this);
      paintMemory(ctx, this);
      paintLaneLabels(ctx, this);
      paintCard(ctx, this);
      paintMarks(ctx, this);
      paintGroups(ctx, this);
      paintOpen(ctx, this);
      paintMemoryLabels(ctx, this);
      paintIdle(ctx, this);
      paintAxisBase(ctx, this);
      if (view.store.length ? !this.items.length : !view.openWork.length) paintEmpty(ctx, this);
    }
    paintOverlay(ctx, ratio) {
      this.ratio = ratio;
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      paintLit(ctx, this);
      paintOwnEdges(ctx, this);
      paintOwnLaunches(ctx, this);
      paintSelection(ctx, this);
      paintWhy(ctx, this);
      paintOutlines(ctx, this);
      paintSigns(ctx, this);
      paintMoreLanes(ctx, this);
    }
  };
  function paintAxisBase(ctx, painter) {
    const { view, theme, texts } = painter, { frame } = view, base = tickBase(view.x0, view.x1 - view.x0), hidden = painter.hiddenEdges;
    const waits = `${formatCount(hidden)} waits hidden`, words2 = base ? [`from ${formatBase(base)} on`, `${formatBase(base)} +`] : hidden ? [`${waits}: point at a span`, waits] : [];
    setPen(ctx, base ? theme.ink : theme.soft, 11, "right");
    ctx.fillText(firstFit(ctx, texts, words2, frame.left - 26), frame.left - 22, frame.top - 13);
  }
  function paintIdle(ctx, { view, theme }) {
    const { idle } = view.tables;
    if (!idle) return;
    clipLanes(ctx, view, 0, () => {
      const middle = view.yAt((idle.top + idle.bottom) / 2);
      setPen(ctx, theme.soft, 11);
      paintCaret(ctx, view.frame.left + 7, middle, true);
      ctx.fillText(idle.text, view.frame.left + 16, middle);
    });
  }
  function paintEmpty(ctx, { view, theme, texts }) {
    const { store, frame: { left, right } } = view, x = (left + right) / 2, y = (view.lanesTop() + view.lanesBottom()) / 2;
    const text = !store.length ? view.tables.header.empty : store.filter ? "No shown name ran here" : "Nothing ran here: fit the window to see all";
    setPen(ctx, theme.paper, 14, "center");
    const width = Math.min(right - left, texts.width(ctx, text));
    ctx.fillRect(x - width / 2, y - 10, width, 20);
    ctx.fillStyle = theme.soft;
    ctx.fillText(text, x, y, width);
  }

  // scroll.js
  var DRAG_PX = 4;
  var WHEEL_PX = 400;
  function addScrolling(viewer) {
    addBar(viewer);
    useWheel(viewer);
    useDrag(viewer);
  }
  function addBar(viewer) {
    const { view, figureElement } = viewer, inner = makeNode("div");
    const bar = makeNode("div", { class: "gsl-scroll", tabindex: "-1", "aria-hidden": "true" }, inner);
    figureElement.append(bar);
    const place = () => {
      bar.hidden = !view.canScroll;
      const top = view.lanesTop();
      Object.assign(bar.style, { left: `${view.frame.right + 3}px`, top: `${top}px`, height: `${view.lanesBottom() - top}px` });
      inner.style.height = `${view.tables.height_px - view.parts.headPx}px`;
      if (Math.abs(bar.scrollTop - view.scrollPx) >= 1) bar.scrollTop = view.scrollPx;
    };
    view.on("look", (property) => property === "scrollPx" && place());
    view.on("data", place);
    viewer.onPainted(place);
    bar.addEventListener("scroll", () => view.scrollTo(bar.scrollTop));
  }
  function useWheel(viewer) {
    const { view, figureElement } = viewer;
    const wheel = (event) => {
      const { x, y } = viewer.pointOf(event);
      const stepPx = event.deltaMode === 1 ? 24 : event.deltaMode === 2 ? view.lanesPx : 1;
      const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey;
      const isBeside = x < view.frame.left || x > view.frame.right, hasKey = event.ctrlKey || event.metaKey;
      if (hasKey) event.preventDefault();
      if (isSideways && !isBeside) {
        event.preventDefault();
        view.panBy(event.deltaX * stepPx / (view.frame.right - view.frame.left));
      } else if (!isBeside && !event.shiftKey && (hasKey || y < view.frame.top)) {
        event.preventDefault();
        view.zoomBy(Math.exp(event.deltaY * stepPx / WHEEL_PX), view.timeAt(x));
      } else if (!hasKey && (isBeside || event.shiftKey || !pageScrolls()) && view.canScroll && y < view.lanesBottom()) {
        const before = view.scrollPx;
        view.scrollTo(before + (event.deltaY || event.deltaX) * stepPx);
        if (view.scrollPx !== before) event.preventDefault();
      }
    };
    figureElement.addEventListener("wheel", wheel, { capture: true, passive: false });
  }
  function pageScrolls() {
    const { scrollHeight, clientHeight } = document.documentElement;
    return window.parent !== window || scrollHeight > clientHeight + 1 || Boolean(document.querySelector(".jp-Notebook, .jp-RenderedHTMLCommon"));
  }
  function useDrag(viewer) {
    const { view, figureElement } = viewer, held = /* @__PURE__ */ new Map();
    const canvas = viewer.plotView.canvas_view.events_el;
    canvas.style.touchAction = "pan-y";
    const middle = () => {
      const places = [...held.values()], [first, last] = [places[0], places.at(-1)];
      return { x: (first.x + last.x) / 2, y: (first.y + last.y) / 2, spread: Math.hypot(first.x - last.x, first.y - last.y) };
    };
    const down = (event) => {
      const place = viewer.pointOf(event);
      if (event.button || held.size > 1 || !view.isOver(place)) return;
      held.set(event.pointerId, { ...place, from: place, isMoving: event.pointerType === "touch" });
    };
    const move = (event) => {
      const one = held.get(event.pointerId);
      if (!one) return;
      const place = viewer.pointOf(event);
      one.isMoving ||= Math.hypot(place.x - one.from.x, place.y - one.from.y) >= DRAG_PX;
      if (!one.isMoving) return;
      const before = middle(), time = view.timeAt(before.x), { left, right } = view.frame;
      Object.assign(one, place);
      const after = middle(), width = (view.x1 - view.x0) * (before.spread && after.spread ? before.spread / after.spread : 1);
      const begin = time - (after.x - left) / (right - left) * width;
      view.setRange(begin, begin + width);
      if (event.pointerType !== "touch" || held.size > 1) view.scrollTo(view.scrollPx + before.y - after.y);
    };
    const up = (event) => held.delete(event.pointerId);
    listen(figureElement, { pointerdown: down, pointermove: move, pointerup: up, pointercancel: up }, false);
    const touched = (event) => {
      if (event.touches.length > 1 && event.cancelable) event.preventDefault();
    };
    figureElement.addEventListener("touchmove", touched, { passive: false });
  }

  // query.js
  var UNIT_NS = { ns: 1, us: 1e3, "µs": 1e3, "μs": 1e3, ms: 1e6, s: 1e9, min: 6e10 };
  var UNITS = Object.keys(UNIT_NS).join("|");
  var FIELD = /^(stream|lane|kind|partition|thread|name|is):(.*)$/is;
  var SOME_FIELD = /^([a-z]+):(?!:)/i;
  var LIMIT = new RegExp(`^([<>])=?(\\d+(?:\\.\\d+)?|\\.\\d+)(${UNITS})$`, "i");
  var SPACED_LIMIT = new RegExp(`([<>]=?)\\s*([\\d.]+)\\s*(${UNITS})(?=\\s|$)`, "gi");
  var WORDS = /(?:[^\s"]|"[^"]*"?)+/g;
  function compileSearch(text, tables) {
    const asked = parseSearch(text);
    if (!asked) return null;
    const isFound = (texts, tests) => tests.every((test) => [texts].flat().some((text2) => test(String(text2))));
    const found = (values, tests) => Uint8Array.from(values, (value) => isFound(value, tests));
    const laneNames = tables.lanes.map(({ name, label }) => [name, label]), also = [];
    let matches = found(tables.names, asked.name);
    if (!matches.includes(1) && found(laneNames, asked.name).includes(1)) {
      asked.lane.push(...asked.name.splice(0));
      matches = found(tables.names, asked.name);
    }
    const lanes = found(laneNames, asked.lane);
    if (asked.lane.length) also.push((row) => lanes[row.lane]);
    const columns = { kind: tables.kinds, partition: tables.partitions.map(({ text: text2 }) => text2), thread: tables.threads };
    for (const [column, values] of Object.entries(columns)) {
      const codes = found(values, asked[column]);
      if (asked[column].length) also.push((row, i) => codes[row[column][i]]);
    }
    if (asked.is.length) also.push(isFound("stray", asked.is) ? isStray : () => false);
    for (const isWithin of asked.limits) also.push((row, i) => isWithin(row.end[i] - row.start[i]));
    return Object.assign(matches, { rowCount: tables.rows.length, also: also.length ? (row, i) => also.every((test) => test(row, i)) : null });
  }
  function searchProblem(text, { names }) {
    const isInName = (word) => names.some((name) => name.toLowerCase().includes(word.toLowerCase()));
    const odd = searchWords(text).find((word) => !FIELD.test(word) && !LIMIT.test(word) && (SOME_FIELD.test(word) || /^[<>]=?[^<>=]/.test(word)) && !isInName(word));
    if (!odd) return "";
    const field = odd.match(SOME_FIELD);
    return field ? `no field ${field[1]}: name, stream, kind, partition, thread, is:stray` : `${odd} is not a duration: >1ms, <5us`;
  }
  function partTest(part) {
    const plain2 = part.replaceAll('"', "").toLowerCase();
    return (text) => text.toLowerCase().includes(plain2);
  }
  var searchWords = (text) => text.replace(SPACED_LIMIT, "$1$2$3").match(WORDS) ?? [];
  function parseSearch(text) {
    const asked = { name: [], lane: [], kind: [], partition: [], thread: [], is: [], limits: [] }, plain2 = [];
    for (const word of searchWords(text)) {
      const [, field, value] = word.match(FIELD) ?? [], [, way, size, unit] = word.match(LIMIT) ?? [];
      if (value?.replaceAll('"', "")) asked[field.toLowerCase().replace("stream", "lane")].push(partTest(value));
      else if (field || /^([<>]=?|"*)$/.test(word)) continue;
      else if (way) {
        const limitNs = Number(size) * UNIT_NS[unit.toLowerCase()];
        asked.limits.push(way === ">" ? (ns) => ns >= limitNs : (ns) => ns <= limitNs);
      } else plain2.push(word);
    }
    if (plain2.length) asked.name.push(partTest(plain2.join(" ").replace(/^"(.*?)"?$/s, "$1")));
    return Object.values(asked).some((tests) => tests.length) ? asked : null;
  }
  function searchIsStale(matches, tables) {
    return matches.length !== tables.names.length || matches.rowCount !== tables.rows.length;
  }

  // search.js
  var SEARCH_EVERY_MS = 120;
  var RECOUNT_EVERY_MS = 500;
  function addSearch(viewer) {
    const { view } = viewer;
    const box = makeNode("input", {
      type: "search",
      placeholder: "Search  /",
      "aria-label": "Search spans",
      "aria-keyshortcuts": "/",
      spellcheck: "false",
      autocomplete: "off",
      title: "A part of a name, or stream:decode, kind:copy, partition:prefill, thread:main, is:stray, >1ms, <5us; Enter goes to the next, Shift+Enter to the previous"
    });
    const says = makeNode("output", { class: "gsl-problem", "aria-live": "polite", hidden: true }), found = makeNode("output", { class: "gsl-found", "aria-live": "polite" });
    const step = (text, label, key, direction) => makeButton(text, { label, key, class: "gsl-step", onclick: () => go(direction), hidden: true });
    const steps = [step("‹", "Previous match", "Shift+Enter", -1), step("›", "Next match", "Enter", 1)];
    const form = makeNode("div", { class: "gsl-search", role: "search" }, box, makeNode("div", {}, found, ...steps), says);
    viewer.bar.append(form);
    let total = 0, problem = "";
    function run() {
      problem = searchProblem(box.value, view.tables);
      box.setAttribute("aria-invalid", String(Boolean(problem)));
      view.set("matches", problem ? null : compileSearch(box.value, view.tables));
      steps.forEach((button) => {
        button.hidden = !view.matches;
      });
      recount();
    }
    function recount() {
      total = countMatches(view.store);
      tell();
    }
    function tell() {
      says.textContent = problem;
      says.hidden = !problem;
      found.textContent = !view.matches ? "" : total ? matchPlace(view, total) : "none found";
    }
    function go(direction) {
      if (isStale()) run();
      if (!total) return;
      const hit = nextMatch(view.store, matchOrigin(view, direction), direction) ?? nextMatch(view.store, null, direction);
      if (!hit) return;
      view.show(hit.row, hit.index);
      tell();
    }
    function clear() {
      box.value = "";
      run();
    }
    const isStale = () => view.matches ? searchIsStale(view.matches, view.tables) : Boolean(problem);
    const again = throttled(viewer, () => isStale() ? run() : view.matches && recount(), RECOUNT_EVERY_MS);
    const keyed = (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") {
        run();
        go(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        clear();
        viewer.focus();
      } else return;
      event.preventDefault();
      event.stopPropagation();
    };
    box.addEventListener("input", throttled(viewer, run, SEARCH_EVERY_MS));
    box.addEventListener("keydown", keyed);
    box.addEventListener("search", () => box.value || run());
    view.on("data", again);
    view.on("look", tell);
    const commands = viewer.commands;
    commands.search = () => {
      box.focus({ preventScroll: true });
      box.select();
    };
    commands.searchFor = (text) => {
      box.value = text;
      run();
      commands.search();
    };
    view.keep("search", () => box.value || null, (text) => {
      box.value = text ?? "";
      run();
    });
    commands.clearSearch = () => Boolean(box.value) && (clear(), true);
  }
  function matchPlace({ pinned, store, matches }, total) {
    if (!pinned || !isSpan(pinned) || !store.row(pinned.row).isMatch(pinned.index, matches)) return `${formatCount(total)} found`;
    return `${formatCount(countMatches(store, pinned))} of ${formatCount(total)}`;
  }
  function matchOrigin({ pinned, x0, x1 }, direction) {
    if (!pinned) return { time: direction > 0 ? x0 : x1 };
    return { row: pinned.row, index: pinned.index ?? (direction > 0 ? pinned.last : pinned.first) };
  }

  // select.js
  var SELECT_MIN_PX = 3;
  var SNAP_PX = 6;
  function addSelect(viewer) {
    const { view, figureElement: figure, commands } = viewer;
    let from = null;
    const take = (event) => {
      event.preventDefault();
      event.stopImmediatePropagation();
    };
    const down = (event) => {
      const point = viewer.pointOf(event);
      if (!event.shiftKey || event.button || !view.isOver(point)) return;
      take(event);
      viewer.focus();
      commands.hideTip();
      from = { x: point.x, time: timeUnder(view, point) };
      figure.setPointerCapture(event.pointerId);
    };
    const move = (event) => {
      if (!from) return;
      take(event);
      const point = viewer.pointOf(event), times = [from.time, timeUnder(view, point)].sort((a, b) => a - b);
      if (Math.abs(point.x - from.x) >= SELECT_MIN_PX && times[0] < times[1]) view.set("selection", { start: times[0], end: times[1] });
    };
    const end = (event) => {
      if (!from) return;
      take(event);
      from = null;
      const { selection } = view;
      if (selection) viewer.announce(`Selected ${formatNs(selection.end - selection.start)}, from ${formatNs(selection.start)} on`);
    };
    listen(figure, { pointerdown: down, pointermove: move, pointerup: end, pointercancel: end });
  }
  function timeUnder(view, { x, y }) {
    const time = view.timeAt(Math.max(view.frame.left, Math.min(view.frame.right, x))), hit = view.hitAt(x, y);
    if (!hit || !isSpan(hit)) return time;
    const row = view.store.row(hit.row), near = (at) => Math.abs(at - time);
    const edge = near(row.start[hit.index]) <= near(row.end[hit.index]) ? row.start[hit.index] : row.end[hit.index];
    return near(edge) <= SNAP_PX * view.nsPerPx ? edge : time;
  }

  // tips.js
  var TIP_GAP_PX = 12;
  var TIP_MARKS = 5;
  var TIP_WAITS = 2;
  var MARK_WORDS = { layout: "SMs shared out anew", cell: "cell", mark: "mark" };
  function addTips(viewer) {
    const { view, figureElement: figure } = viewer;
    const tip = makeNode("div", { class: "gsl-tip", role: "tooltip", popover: "manual" });
    viewer.element.append(tip);
    const state = { key: "", pointer: null, frame: 0 };
    const hide = () => {
      state.key = "";
      tip.hidePopover();
      if (view.hovered) view.set("hovered", null);
    };
    const refresh = () => {
      state.frame = 0;
      const told = state.pointer && tip.isConnected && toldAt(view, viewer.pointOf(state.pointer)), { key, hit = null } = told || {};
      if (!told || hit && viewer.drawer.isOpen && key === keyOf(view, view.pinned)) return hide();
      if (key !== state.key) {
        state.key = key;
        tip.replaceChildren(...told.nodes());
        if (hit || view.hovered) view.set("hovered", hit);
      }
      tip.togglePopover(true);
      placeTip(tip, tipRoom(viewer, hit, state.pointer.clientY), state.pointer);
    };
    const later = () => {
      state.frame ||= requestAnimationFrame(refresh);
    };
    const leave = () => {
      state.pointer = null;
      later();
    };
    figure.addEventListener("pointermove", (event) => {
      state.pointer = event.buttons || event.pointerType === "touch" ? null : event;
      later();
    }, true);
    figure.addEventListener("pointerdown", leave, true);
    figure.addEventListener("pointerleave", leave);
    for (const event of ["range", "data"]) view.on(event, () => state.pointer && later());
    view.on("look", (property) => {
      if (property === "scrollPx" && state.pointer) later();
    });
    viewer.commands.hideTip = () => {
      state.pointer = null;
      hide();
    };
    viewer.atEnd(viewer.commands.hideTip);
  }
  function toldAt(view, { x, y }) {
    const sign = signAt(view, x, y), hit = sign ? null : view.hitAt(x, y), marks = sign || hit ? [] : marksAt(view, x, y);
    if (sign) return plain(signTitle(view, sign.piece), [], [sign.piece.text, sign.piece.fix, moreText(sign.more)]);
    if (hit) return { hit, key: keyOf(view, hit), nodes: () => hitNodes(view, hit) };
    if (marks.length) return { key: JSON.stringify(marks.map(({ time, text }) => [time, text])), nodes: () => markNodes(marks) };
    const memory = memoryAt(view, x, y);
    if (memory) return plain(`Memory of ${laneText(view.tables.lanes[memory.lane])}`, memory.facts);
    const name = nameAt(view, x, y), [title, facts, hint] = (name ? nameFacts(view, name) : cardAt(view, x, y)) ?? [];
    return title === void 0 ? null : plain(title, facts, [hint]);
  }
  var keyOf = (view, hit) => JSON.stringify([hit, view.store.length]);
  var plain = (...told) => ({ key: JSON.stringify(told), nodes: () => tipNodes(...told) });
  function tipNodes(title, facts, lines = []) {
    const below = lines.filter(Boolean).map((text) => makeNode("p", { text, dir: "auto" }));
    return [makeNode("strong", { text: title, dir: "auto" }), ...facts.length ? [factList(facts)] : [], ...below];
  }
  function signTitle(view, { number, sign }) {
    const { head } = reasonsOf(view).findings[number - 1];
    return sign === String(number) ? `${sign}. ${head}` : head;
  }
  var hitNodes = (view, hit) => tipNodes(hitTitle(view, hit), [...hitFacts(view, hit), ...waitFacts(view, hit).filter(([label]) => label === "waited for").slice(0, TIP_WAITS)], isSpan(hit) ? [] : ["Too narrow to draw apart: zoom in"]);
  function markNodes(marks) {
    const more = moreText(marks.length - TIP_MARKS);
    return [
      ...marks.slice(0, TIP_MARKS).flatMap(({ text, time, kind }) => tipNodes(text, [["time", exactTime(time)], ["what", MARK_WORDS[kind] ?? kind]])),
      ...more ? [makeNode("p", { text: more })] : []
    ];
  }
  var moreText = (count) => count > 0 ? `${formatCount(count)} more here: zoom in` : "";
  function tipRoom({ view, figureElement }, hit, y) {
    if (!hit) return [y, y];
    const lift = figureElement.getBoundingClientRect().top + view.frame.top - view.scrollPx, row = view.tables.rows[hit.row];
    return [Math.min(row.top + lift, y), Math.max(row.bottom + lift, y)];
  }
  function placeTip(tip, [top, bottom], { clientX, clientY }) {
    const wide = tip.offsetWidth, high = tip.offsetHeight;
    const limit = document.documentElement;
    let x = Math.min(clientX + TIP_GAP_PX, limit.clientWidth - wide - 4);
    let y = bottom + TIP_GAP_PX;
    if (y + high > limit.clientHeight - 4) y = top - TIP_GAP_PX - high;
    if (y < 4) {
      y = Math.max(4, Math.min(clientY - high / 2, limit.clientHeight - high - 4));
      x = clientX + TIP_GAP_PX;
      if (x + wide > limit.clientWidth - 4) x = clientX - TIP_GAP_PX - wide;
    }
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${y}px`;
  }

  // viewer.js
  var RIM_PX2 = 2;
  var NEWS_PX = 18;
  var GUTTER_PX = 30;
  var AXIS_PX = 24;
  var PHONE_PX = 560;
  var LEAST_FIGURE_PX = 240;
  var LEAST_PHONE_PX = 340;
  var CELL_SHARE = 0.72;
  var ABOVE = /* @__PURE__ */ new Set(["lit", "hovered", "pinned", "selection", "gap", "reason", "why", "notes"]);
  var NARROW_BORDER = 0.3;
  var CONTROLS = [addWent, addMenu, addColours, addLanes, addTips, addNotes, addFindings, addDetails, addGaps, addSearch, addKeys, addSelect, addLegend, addFollow, addAddress];
  var Viewer = class {
    constructor({ element, Bokeh, item, tables, store, live = false, askWhy = null, fills = false, opens = false, address = null, notes = null, savePage = null }) {
      Object.assign(this, { Bokeh, item, askWhy, fills, opens, address, notes, savePage });
      this.makeFrame(element);
      this.commands = {};
      this.view = new View(tables, store);
      this.view.isLive = live;
      this.view.isFollowing = live;
      this.theme = readTheme(this.element);
      this.painter = new Painter(this.view, this.theme);
      this.paintListeners = /* @__PURE__ */ new Set();
      this.element.dataset.fills = fills;
      this.ending = new AbortController();
    }
    makeFrame(parent) {
      const make = (name, facts, ...children) => makeNode("div", { class: `gsl-${name}`, ...facts }, ...children);
      const part = (name, ...children) => make(name, {}, ...children);
      this.tools = part("tools");
      this.bar = part("bar", this.tools);
      this.news = part("news");
      this.figureElement = part("figure", this.news);
      this.body = part("body", this.figureElement, part("minimap"));
      this.status = makeNode("div", { class: "gsl-status gsl-out", role: "status", "aria-live": "polite" });
      const about = { tabindex: "0", role: "region", "aria-label": "Timeline. Press question mark for its keys." };
      this.element = make("viewer", about, this.bar, this.body, this.status);
      this.element.querySelector(".gsl-minimap").style.minHeight = `${MINIMAP_PX}px`;
      parent.append(this.element);
    }
    get signal() {
      return this.ending.signal;
    }
    get isDestroyed() {
      return this.signal.aborted;
    }
    atEnd(action) {
      this.signal.addEventListener("abort", action);
    }
    focus() {
      this.element.focus({ preventScroll: true });
    }
    announce(text) {
      this.status.textContent = text;
    }
    // To the screen reader: what changed where nothing that has the focus did.
    // Where a pointer is in the figure, in its px.
    pointOf({ clientX, clientY }) {
      const { left, top } = this.figureElement.getBoundingClientRect();
      return { x: clientX - left, y: clientY - top };
    }
    // Show everything. BokehJS insists on an element that is in the page, and notebooks make elements before they show them.
    async start() {
      while (!this.figureElement.isConnected && !this.isDestroyed) await new Promise((done) => setTimeout(done, 50));
      if (this.isDestroyed) return this;
      addDrawer(this);
      this.document = this.Bokeh.require("document/document").Document.from_json(structuredClone(this.item.doc));
      this.plot = this.document.roots()[0];
      this.preparePlot();
      this.views = await this.Bokeh.embed.add_document_standalone(this.document, this.figureElement, [this.figureElement]);
      if (this.isDestroyed) {
        this.dropPlot();
        return this;
      }
      this.plotView = this.views.roots.find((view) => view.model === this.plot);
      this.connect();
      this.view.fit();
      for (const add of CONTROLS) add(this);
      this.minimap.request();
      return this;
    }
    preparePlot() {
      const { plot, view } = this;
      plot.renderers = [];
      plot.above[0].formatter = tickFormatter(this.Bokeh, view);
      leaveViewport(plot);
      this.layers = addLayers(this.Bokeh, plot, view, this.painter);
      this.sizePlot();
      plot.x_range.setv({ start: view.x0, end: view.x1 });
      this.useTheme();
    }
    // Room for the names and the lanes there are now. Setting what is set already does nothing.
    sizePlot() {
      const { plot, view } = this, width = this.figureElement.clientWidth || 1200;
      const below = view.isLive ? NEWS_PX : RIM_PX2;
      view.setRoom(Math.round(this.figureRoom() - AXIS_PX - below));
      const { innerPx } = view.parts, height = innerPx + AXIS_PX + below, namesPx = Math.max(90, this.drawer.leastPx * NARROW_BORDER);
      const left = Math.round(Math.min(this.gutterPx(), namesPx));
      plot.setv({ height, min_border_top: AXIS_PX, min_border_bottom: below, min_border_left: left });
      if (!this.plotView) view.frame = { left, top: AXIS_PX, right: width, bottom: AXIS_PX + innerPx };
      plot.y_range.setv({ start: innerPx, end: 0 });
      this.figureElement.style.minHeight = `${height}px`;
    }
    // How wide the names need to be that are shown; two timelines that are compared have what both need.
    gutterPx() {
      const { tables, laneOrder } = this.view, ctx = this.measuring ??= document.createElement("canvas").getContext("2d");
      if (tables.shares_border) return tables.border_px;
      ctx.font = `12px ${FONT}`;
      const texts = [...laneOrder.map((code) => [tables.lanes[code].label, tables.lanes[code].detail].filter(Boolean).join(" · ")), ...tables.card_rows.map(({ label }) => label), "kernels captured"];
      return Math.max(...(tables.capture?.shown ? texts : texts.slice(0, -1)).map((text) => this.painter.texts.width(ctx, text)), 40) + GUTTER_PX + (tables.groups.length ? BAND_PX : 0);
    }
    // How high the figure may be, so that its axis and the controls are in view together. A page fills the window.
    figureRoom() {
      const { element, figureElement } = this, own = element.getBoundingClientRect(), besides = element.offsetHeight - figureElement.offsetHeight;
      const leastPx = element.clientWidth < PHONE_PX ? LEAST_PHONE_PX : LEAST_FIGURE_PX;
      if (!this.fills) return Math.max(leastPx, CELL_SHARE * hostHeight() - besides);
      const above = own.top + window.scrollY, below = document.body.getBoundingClientRect().bottom - own.bottom;
      return Math.max(leastPx, document.documentElement.clientHeight - above - below - besides);
    }
    connect() {
      const { view, plot, plotView } = this;
      paintEachFrame(plotView);
      plotView.repainted.connect(() => this.paintListeners.forEach((listener) => listener()));
      this.sizePlot();
      this.minimap = new Minimap(this, this.element.querySelector(".gsl-minimap"));
      view.on("range", () => plot.x_range.setv({ start: view.x0, end: view.x1 }));
      view.on("look", (property) => ABOVE.has(property) ? plotView.request_paint(this.layers.overlay) : plotView.request_paint());
      view.on("data", (detail) => {
        if (detail === "tables") this.sizePlot();
        plotView.request_paint();
      });
      this.onPainted(() => this.minimap.keepUp());
      watchTheme(() => this.useTheme(), this.signal);
      addScrolling(this);
      this.watchSize();
    }
    // Call back after each paint of the figure.
    onPainted(listener) {
      this.paintListeners.add(listener);
    }
    useTheme() {
      const theme = readTheme(this.element);
      this.element.classList.toggle("gsl-hatched", theme.needsHatches || this.view.hasHatches);
      if (this.themedKey === theme.key) return;
      this.themedKey = theme.key;
      this.theme = theme;
      this.painter.setTheme(theme);
      themePlot(this.plot, theme);
      if (!this.plotView) return;
      this.plotView.request_paint();
      if (matchMedia("print").matches) this.plotView.repaint();
      this.minimap.request();
    }
    watchSize() {
      let due = 0;
      const observer = new ResizeObserver(() => {
        this.sizePlot();
        this.minimap.request();
        clearTimeout(due);
        due = setTimeout(() => reviveCanvases(this.figureElement), 400);
      });
      for (const element of [this.bar, ...this.body.children, ...this.fills ? [document.documentElement] : []]) observer.observe(element);
      window.addEventListener("resize", () => this.sizePlot(), { signal: this.signal });
      this.atEnd(() => {
        clearTimeout(due);
        observer.disconnect();
      });
    }
    dropPlot() {
      if (!this.document) return;
      this.document.clear();
      for (const view of this.views.roots) view.remove();
      const { documents } = this.Bokeh, place = documents.indexOf(this.document);
      if (place >= 0) documents.splice(place, 1);
    }
    destroy() {
      if (this.isDestroyed) return;
      this.ending.abort();
      if (this.plotView) this.dropPlot();
      this.view.listeners.clear();
      this.paintListeners.clear();
      this.element.remove();
      this.view.store = new SpanStore();
    }
  };
  function hostHeight() {
    try {
      return window.parent.innerHeight;
    } catch {
      return window.screen.availHeight;
    }
  }
  function reviveCanvases(element) {
    if (!element.clientWidth || allCanvases(element).every((canvas) => canvas.width && canvas.height)) return;
    element.style.width = "calc(100% - 1px)";
    setTimeout(() => {
      element.style.width = "";
    }, 200);
  }
  var allCanvases = (root) => [...root.querySelectorAll("*")].flatMap(
    (element) => element.tagName === "CANVAS" ? [element] : element.shadowRoot ? allCanvases(element.shadowRoot) : []
  );
  return __toCommonJS(index_exports);
})();
