// The training jobs: a list that is read again while something runs, and one opened job with its loss curve, which
// begins with GET /train/{id}/metrics and goes on with the stream of its events.
import { get, post, remove, request, events } from "./api.js";
import { Chart } from "./chart.js";
import { model } from "./model.js";
import { $, ask, el, number, percent, put, say, seconds } from "./dom.js";

const OVER = ["succeeded", "failed", "cancelled"];
const LIMIT = 50;
const LOG_LINES = 200;
const FEW = 30; // steps; a curve of more is also drawn smoothed

const shown = new Map(); // job id -> Row
let opened = null; // Row
let timer = 0;
let useAdapter = () => {};

// ---- words ----------------------------------------------------------------------------------------------------------

const when = t => new Date(t * 1000).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

function settings(job) {
  const h = job.hyperparameters, lora = job.method === "full" ? [] : [`rank ${h.lora_r}`];
  const long = h.max_steps ? `${h.max_steps} steps at most` : `${number(h.epochs)} epoch${h.epochs === 1 ? "" : "s"}`;
  return [{ lora: "LoRA", qlora: "QLoRA", full: "full" }[job.method], ...lora, long, `rate ${h.learning_rate}`, when(job.created_at)].join(" · ");
}

function progress(job) {
  if (job.error) return job.error.message;
  if (job.status === "queued") return "waits for its turn";
  if (job.phase === "preparing") return `preparing the data${job.prepared ? `, ${percent(job.prepared)}` : ""}`;
  if (job.phase === "publishing") return "saving and loading the adapter";
  const parts = [];
  if (job.steps) parts.push(`step ${job.step} of ${job.steps}`);
  if (job.loss != null) parts.push(`loss ${number(job.loss)}`);
  if (job.eval_loss != null) parts.push(`held out ${number(job.eval_loss)}`);
  if (job.status === "running" && job.tokens_per_s) parts.push(`${number(job.tokens_per_s)} tokens/s`);
  if (job.status === "running" && job.eta_s != null) parts.push(`${seconds(job.eta_s)} left`);
  if (OVER.includes(job.status) && job.started_at) parts.push(`took ${seconds(job.finished_at - job.started_at)}`);
  return parts.join(" · ");
}

const stateOf = job => (job.wanted ? { cancel: "cancelling", pause: "pausing" }[job.wanted] ?? job.status : job.status);

// A moving average over about a twentieth of the curve, without the pull of its start.
function smoothed(points) {
  const keep = 1 - 20 / Math.max(points.length, 100);
  let sum = 0, weight = 0;
  return points.map(([x, y]) => {
    if (Number.isFinite(y)) [sum, weight] = [keep * sum + y, keep * weight + 1];
    return [x, sum / weight];
  });
}

// ---- one job --------------------------------------------------------------------------------------------------------

class Row {
  constructor(job) {
    const id = `job-${job.id}`;
    this.id = job.id;
    this.title = el("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": id, onclick: () => this.toggle() });
    this.state = el("span", { class: "pill" });
    this.settings = el("span", { class: "hint" });
    this.bar = el("progress", { max: 1, "aria-label": "Progress" });
    this.progress = el("p", { class: "stats" });
    this.actions = el("div", { class: "actions" });
    this.detail = el("div", { id, class: "detail", hidden: true });
    this.node = el("li", { class: "card job", "data-job": job.id },
      el("div", { class: "head" }, this.title, this.state, this.actions), this.settings, this.bar, this.progress, this.detail);
    this.buttons = "";
    this.update(job);
  }

  update(job) {
    this.job = job;
    put(this.title, job.serve_as ?? job.id);
    put(this.state, stateOf(job));
    this.state.dataset.state = job.status;
    put(this.settings, settings(job));
    put(this.progress, progress(job));
    this.progress.classList.toggle("bad", Boolean(job.error));
    this.bar.hidden = OVER.includes(job.status);
    this.bar.value = job.progress;
    this.showActions();
    if (this === opened) this.showAdvice();
  }

  // The buttons are made anew only when they are others: the one that has the focus keeps it.
  showActions() {
    const { status, wanted, method } = this.job, can = [];
    if (status === "succeeded" && method !== "full") can.push(["Use", () => useAdapter(this.job.serve_as)]);
    if (["queued", "running"].includes(status) && !wanted) can.push(["Pause", () => this.act("pause")]);
    if (["paused", "failed"].includes(status)) can.push(["Resume", () => this.act("resume")]);
    if (!OVER.includes(status) && wanted !== "cancel") can.push(["Cancel", () => this.cancel()]);
    if (OVER.includes(status)) can.push(["Remove", () => this.remove()]);
    const names = can.map(([name]) => name).join();
    if (names === this.buttons) return;
    this.buttons = names;
    const focused = this.actions.contains(document.activeElement);
    this.actions.replaceChildren(...can.map(([name, run]) =>
      el("button", { type: "button", class: name === "Use" ? "" : "quiet", "aria-label": `${name} ${this.job.serve_as}`, onclick: run }, name)));
    if (focused) this.actions.firstElementChild?.focus();
  }

  // What the daemon's rules say about where the time of a step goes.
  showAdvice() {
    const lines = (this.job.usage?.advice ?? []).map(a =>
      el("li", {}, el("b", {}, a.rule), `: ${a.cause}: ${a.change}; up to ${a.gain.toFixed(2)} times the tokens per second`));
    this.advice.hidden = !lines.length;
    this.advice.replaceChildren(...lines);
  }

  async act(what) {
    say($("jobs-error"), "");
    try {
      this.update(await post(`train/${this.id}/${what}`));
      if (this === opened && what === "resume") this.follow();
    } catch (e) {
      say($("jobs-error"), e.message);
    }
    loadJobs();
  }

  async cancel() {
    const yes = await ask({ title: `Cancel ${this.job.serve_as}?`, text: "What it has learned so far is lost. A paused job can go on later.",
      yes: "Cancel the job", no: "Let it run" });
    if (yes) await this.act("cancel");
  }

  async remove() {
    const yes = await ask({ title: `Remove ${this.job.serve_as}?`, text: "The job, its curve and its checkpoints go. The adapter it made stays.",
      yes: "Remove", no: "Keep it" });
    if (!yes) return;
    try {
      await remove(`train/${this.id}`);
      this.close();
    } catch (e) {
      say($("jobs-error"), e.message);
    }
    loadJobs();
  }

  // ---- opened ----

  toggle() {
    if (this === opened) this.close();
    else this.open();
  }

  open() {
    opened?.close();
    opened = this;
    this.title.setAttribute("aria-expanded", "true");
    this.detail.hidden = false;
    this.loss = new Map(); // step -> value: a step that comes twice is the same
    this.held = new Map();
    this.rate = new Map();
    this.chart = new Chart({ title: "Loss", format: number, zero: false, about: step => `step ${step}`, place: step => `step ${step}`,
      lines: [{ name: "each step", kind: "one" }, { name: "smoothed", kind: "smooth", optional: true },
        { name: "held out", kind: "two", dots: true, optional: true }] });
    this.chart.node.classList.add("large");
    this.advice = el("ul", { class: "advice", "aria-label": "What bounds the job" });
    this.log = el("ol", { class: "log", "aria-label": "Events", tabindex: "0" });
    this.detail.replaceChildren(this.chart.node, this.advice, this.log);
    this.showAdvice();
    this.follow();
  }

  close() {
    this.leave?.abort();
    if (opened !== this) return;
    opened = null;
    this.title.setAttribute("aria-expanded", "false");
    this.detail.hidden = true;
    this.detail.replaceChildren();
  }

  async follow() {
    this.leave?.abort();
    const leave = (this.leave = new AbortController());
    let last = 0;
    try {
      const { metrics } = await get(`train/${this.id}/metrics`, { signal: leave.signal });
      for (const p of metrics.train_loss) this.loss.set(p.step, p.value);
      for (const p of metrics.eval_loss) this.held.set(p.step, p.value);
      this.draw();
      this.log.replaceChildren();
      while (!leave.signal.aborted) {
        last = await this.read(last, leave.signal);
        await loadJobs(); // the list's word on whether it is over: a stream also ends when the daemon does
        if (OVER.includes(shown.get(this.id)?.job.status ?? "cancelled")) break;
        await new Promise(resolve => setTimeout(resolve, 1000));
      }
    } catch (e) {
      if (e.name !== "AbortError") say($("jobs-error"), e.message);
    }
  }

  // Reads the stream from an event on, until it ends. -> the last event's id
  async read(last, signal) {
    const headers = { Accept: "text/event-stream", "Last-Event-ID": String(last) };
    const answer = await request(`train/${this.id}/events?stream=1`, { headers, signal });
    for await (const { type, data, id } of events(answer)) {
      last = Number(id);
      this.take(type, JSON.parse(data));
    }
    return last;
  }

  take(type, event) {
    if (type === "step") {
      const { step, steps, loss, tokens_per_s, eta_s } = event;
      this.loss.set(step, loss);
      // the stream begins with what is past; the list says the rest
      if (this.job.status === "running" && step >= this.job.step)
        this.update({ ...this.job, phase: "training", progress: event.progress, step, steps, loss, tokens_per_s, eta_s });
    } else {
      if (type === "eval") this.held.set(event.step, event.eval_loss);
      this.write(event);
    }
    this.draw();
    if (type === "state" && OVER.includes(event.status)) model.loadAdapters().catch(() => {});
  }

  write(event) {
    const time = new Date(event.created_at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    this.log.append(el("li", { class: event.level }, el("time", {}, time), ` ${event.message}`));
    if (this.log.children.length > LOG_LINES) this.log.firstChild.remove();
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  draw() {
    const sorted = map => [...map].sort((a, b) => a[0] - b[0]);
    const loss = sorted(this.loss), held = sorted(this.held);
    const least = loss[0]?.[0] ?? 1, last = Math.max(loss.at(-1)?.[0] ?? 0, held.at(-1)?.[0] ?? 0, least + 1);
    this.chart.node.classList.toggle("noisy", loss.length > FEW);
    this.chart.set([loss, loss.length > FEW ? smoothed(loss) : [], held], [least, last]);
  }
}

// ---- the list -------------------------------------------------------------------------------------------------------

function showList(jobs) {
  const list = $("jobs"), ids = new Set(jobs.map(job => job.id));
  for (const [id, row] of shown) {
    if (ids.has(id)) continue;
    row.close();
    row.node.remove();
    shown.delete(id);
  }
  jobs.forEach((job, i) => {
    const row = shown.get(job.id);
    if (row) row.update(job);
    else shown.set(job.id, new Row(job));
    const node = shown.get(job.id).node;
    if (list.children[i] !== node) list.insertBefore(node, list.children[i] ?? null);
  });
  $("jobs-none").hidden = jobs.length > 0;
}

export async function loadJobs(background = false) {
  clearTimeout(timer);
  try {
    const { data } = await get(`train?limit=${LIMIT}`, { background });
    const over = new Set(data.filter(job => OVER.includes(job.status)).map(job => job.id));
    const ended = [...shown.values()].some(row => over.has(row.id) && !OVER.includes(row.job.status));
    showList(data);
    if (ended) model.loadAdapters({ background: true }).catch(() => {});
    if (!background) say($("jobs-error"), "");
  } catch (e) {
    if (!background) say($("jobs-error"), e.message);
  }
  const active = [...shown.values()].some(row => !OVER.includes(row.job.status));
  clearTimeout(timer); // of another call that ended meanwhile
  if (!$("panel-training").hidden) timer = setTimeout(() => document.hidden || loadJobs(true), active ? 1000 : 10000);
}

export async function openJob(id) {
  await loadJobs();
  const row = shown.get(id);
  if (row && row !== opened) row.open();
  row?.node.scrollIntoView({ block: "nearest" });
}

export function startJobs(use) {
  useAdapter = use;
  document.addEventListener("visibilitychange", () => document.hidden || $("panel-training").hidden || loadJobs(true));
}
