// GET /metrics each second, as charts: throughput, latency, KV cache, requests, training. Nothing is asked while the
// page is hidden.
import { request, ApiError } from "./api.js";
import { Chart } from "./chart.js";
import { $, number, seconds, percent } from "./dom.js";

const PERIOD = 1000; // ms
const SPAN = 120; // s, the charts' width
const WINDOW = 5; // polls over which latencies are taken: a single one holds few

// ---- Prometheus' text -----------------------------------------------------------------------------------------------

// -> Map from "name" or "name{labels}" to its value
export function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const end = line.lastIndexOf("}"), space = line.indexOf(" ", Math.max(end, 0));
    found.set(line.slice(0, space), Number(line.slice(space + 1).split(" ", 1)[0]));
  }
  return found;
}

// What a histogram gained between two readings: {count, sum, buckets: [[bound, count up to it]]}
function gained(name, now, before) {
  const difference = key => now.get(key) - (before.get(key) ?? 0);
  const buckets = [];
  for (const key of now.keys()) {
    const le = key.startsWith(`${name}_bucket{`) && /le="([^"]+)"/.exec(key);
    if (le) buckets.push([le[1] === "+Inf" ? Infinity : Number(le[1]), difference(key)]);
  }
  return { count: difference(`${name}_count`), sum: difference(`${name}_sum`), buckets };
}

// The value below which the part q lies, straight between two bounds; as Prometheus' histogram_quantile.
export function quantile({ count, buckets }, q) {
  let lower = 0, below = 0;
  for (const [bound, upTo] of buckets) {
    if (upTo >= q * count && upTo > below) {
      return bound === Infinity ? lower : lower + ((bound - lower) * (q * count - below)) / (upTo - below);
    }
    [lower, below] = [bound, upTo];
  }
  return null;
}

// ---- one sample -----------------------------------------------------------------------------------------------------

const rate = (name, now, before) => Math.max(0, (now.m.get(name) - before.m.get(name)) / (now.t - before.t));

function latency(name, now, then) {
  const h = gained(name, now.m, then.m);
  return h.count > 0 ? { mean: h.sum / h.count, high: quantile(h, 0.95) } : { mean: null, high: null };
}

// The lines of all charts at this moment, by name.
function sample(now, before, then) {
  const first = latency("tandem_time_to_first_token_seconds", now, then);
  const next = latency("tandem_inter_token_latency_seconds", now, then);
  const pages = now.m.get("tandem_kv_pages");
  return {
    t: now.t,
    generated: rate("tandem_generated_tokens_total", now, before),
    prompt: rate("tandem_prompt_tokens_total", now, before),
    firstMean: first.mean, firstHigh: first.high,
    nextMean: next.mean, nextHigh: next.high,
    used: now.m.get("tandem_kv_usage_ratio"),
    cached: pages ? now.m.get("tandem_kv_pages_cached") / pages : 0,
    running: now.m.get("tandem_requests_running"),
    waiting: now.m.get("tandem_requests_waiting"),
    trained: rate("tandem_train_tokens_total", now, before),
  };
}

const ago = t => (t > -0.5 ? "now" : t <= -SPAN ? "2 min ago" : `${Math.round(-t)} s ago`);

const CHARTS = [
  { id: "throughput", title: "Tokens per second", format: number, least: 1, now: true,
    lines: [["generated", "one", "generated"], ["prompt", "two", "prompt"]] },
  { id: "first", title: "Time to first token", format: seconds, least: 1e-3,
    lines: [["mean", "one", "firstMean"], ["95 %", "two", "firstHigh"]] },
  { id: "next", title: "Between tokens", format: seconds, least: 1e-3,
    lines: [["mean", "one", "nextMean"], ["95 %", "two", "nextHigh"]] },
  { id: "kv", title: "KV cache", format: percent, least: 0.1, now: true,
    lines: [["in use", "one", "used"], ["kept prefixes", "two", "cached"]] },
  { id: "queue", title: "Requests", format: number, least: 2, now: true,
    lines: [["running", "one", "running"], ["waiting", "two", "waiting"]] },
  { id: "trained", title: "Training", format: number, least: 1, now: true, lines: [["tokens per second", "one", "trained"]] },
];

// ---- the loop -------------------------------------------------------------------------------------------------------

export class Live extends EventTarget {
  readings = []; // {t, m}; the newest last, no more than the window needs
  samples = [];
  started = null; // of the process that answers
  state = "";

  constructor() {
    super();
    this.charts = CHARTS.map(c => {
      const lines = c.lines.map(([name, kind]) => ({ name, kind, area: kind === "one" }));
      const chart = new Chart({ ...c, lines, about: ago, place: ago });
      chart.node.id = `live-${c.id}`;
      return chart;
    });
    $("live-charts").append(...this.charts.map(chart => chart.node));
    document.addEventListener("visibilitychange", () => document.hidden || this.wake());
    this.poll();
  }

  wake() {
    clearTimeout(this.timer);
    if (!this.busy) this.poll();
  }

  async poll() {
    this.busy = true;
    try {
      const text = await (await request("metrics", { background: true, signal: AbortSignal.timeout(10000) })).text();
      this.take({ t: performance.now() / 1000, m: parseMetrics(text) });
    } catch (e) {
      this.tell(e instanceof ApiError && e.status ? (e.status === 401 ? "key needed" : `error ${e.status}`) : "unreachable");
    }
    this.busy = false;
    if (!document.hidden) this.timer = setTimeout(() => this.poll(), PERIOD);
  }

  take(reading) {
    const started = reading.m.get("process_start_time_seconds");
    if (started !== this.started) {
      this.readings = []; // another process counts from 0
      this.wasReady = false;
    }
    const again = this.started !== null && started !== this.started;
    this.started = started;
    const ready = reading.m.get("tandem_ready") === 1;
    this.wasReady ||= ready;
    this.tell(ready ? "ready" : this.wasReady ? "stopping" : "loading", again);
    const before = this.readings.at(-1);
    if (before && before.m.has("tandem_kv_pages")) {
      if (reading.t - before.t > 3 * PERIOD / 1000) this.samples.push({ t: before.t + 0.01, gap: true });
      this.samples.push(sample(reading, before, this.readings[0]));
    }
    this.readings.push(reading);
    // the window's first reading must not be of before the engine was there
    this.readings = this.readings.filter(r => r.m.has("tandem_kv_pages") || r === reading).slice(-WINDOW);
    this.samples = this.samples.filter(s => s.t > reading.t - SPAN - 2);
    this.show(reading);
  }

  tell(state, restarted = false) {
    if (state === this.state && !restarted) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }

  show(reading) {
    CHARTS.forEach((c, i) => {
      const series = c.lines.map(([, , name]) => this.samples.map(s => [s.t - reading.t, s.gap ? null : s[name] ?? null]));
      this.charts[i].set(series, [-SPAN, 0]);
    });
    $("live-trained").hidden = !(reading.m.get("tandem_train_tokens_total") > 0);
  }
}
