// The sampling controls, and the prompt tab: POST /generate_stream in TGI's format.
import { postStream } from "./api.js";
import { model } from "./model.js";
import { $, el, Growing, number, seconds, say } from "./dom.js";

// ---- sampling, for both tabs ----------------------------------------------------------------------------------------

const FIELDS = { temperature: "temperature", topP: "top-p", topK: "top-k", repetition: "repetition", seed: "seed", maxTokens: "max-tokens" };

// What the controls say: numbers, null where a field is empty; adapter: a name or "".
export function sampling() {
  const values = { adapter: $("adapter").value };
  for (const [name, id] of Object.entries(FIELDS)) values[name] = Number.isNaN($(id).valueAsNumber) ? null : $(id).valueAsNumber;
  return values;
}

// False, with the browser's words beside the field, when a number is not one.
export const samplingGood = () => $("sampling").reportValidity();

function tgiParameters(s) {
  const p = { details: true, max_new_tokens: s.maxTokens ?? undefined };
  if (s.temperature === null || s.temperature > 0) {
    Object.assign(p, { do_sample: true, temperature: s.temperature ?? 1 });
    if (s.topP !== null && s.topP < 1) p.top_p = s.topP;
    if (s.topK !== null) p.top_k = s.topK;
    if (s.seed !== null) p.seed = s.seed;
  }
  if (s.repetition !== null && s.repetition !== 1) p.repetition_penalty = s.repetition;
  if (s.adapter) p.adapter_id = s.adapter;
  return p;
}

function showAdapters() {
  const select = $("adapter"), chosen = select.value, names = model.adapters.map(a => a.name);
  select.replaceChildren(el("option", { value: "" }, "none"), ...names.map(name => el("option", { value: name }, name)));
  select.value = names.includes(chosen) ? chosen : "";
}

// ---- how long it took -----------------------------------------------------------------------------------------------

export class Timing {
  start = performance.now();
  first = null;
  last = null;
  tokens = 0;

  token() {
    this.last = performance.now();
    this.first ??= this.last;
    this.tokens++;
  }

  text(end) {
    if (!this.tokens) return end ?? "";
    const all = (this.last - this.start) / 1000, first = (this.first - this.start) / 1000;
    const parts = [`${this.tokens} token${this.tokens === 1 ? "" : "s"} in ${seconds(all)}`, `first after ${seconds(first)}`];
    if (all > 0) parts.push(`${number(this.tokens / all)} tokens/s`);
    if (end) parts.push(end);
    return parts.join(" · ");
  }
}

export const ENDS = { length: "ended at max tokens", eos_token: "the model ended it", stop_sequence: "stop sequence", stop: "the model ended it" };

// ---- the prompt tab -------------------------------------------------------------------------------------------------

let running = null; // AbortController

function busy(is) {
  $("prompt-go").disabled = is;
  $("prompt-stop").disabled = !is;
  $("prompt-out").setAttribute("aria-busy", is);
}

async function generate() {
  const prompt = $("prompt-text").value, out = $("prompt-out"), timing = new Timing();
  if (running || !samplingGood()) return;
  running = new AbortController();
  busy(true);
  say($("prompt-error"), "");
  $("prompt-stats").textContent = "";
  const answer = el("span", { class: "answer" });
  out.replaceChildren(el("span", { class: "given" }, prompt), answer);
  const text = new Growing(answer, out);
  let end = null;
  try {
    const body = { inputs: prompt, parameters: tgiParameters(sampling()) };
    for await (const event of postStream("generate_stream", body, running.signal)) {
      timing.token();
      if (!event.token.special) text.add(event.token.text);
      if (event.details) end = ENDS[event.details.finish_reason] ?? event.details.finish_reason;
      if (!event.details) $("prompt-stats").textContent = timing.text();
    }
  } catch (e) {
    if (e.name === "AbortError") end = "stopped";
    else say($("prompt-error"), e.message);
  }
  text.flush();
  $("prompt-stats").textContent = timing.text(end);
  running = null;
  busy(false);
}

// Sends a text here from another tab, with the reason.
export function promptInstead(text, reason) {
  if (text) $("prompt-text").value = text;
  say($("prompt-notice"), reason);
}

export function startPrompt() {
  $("prompt-form").addEventListener("submit", e => {
    e.preventDefault();
    generate();
  });
  $("sampling").addEventListener("submit", e => e.preventDefault());
  $("sampling-reset").addEventListener("click", () => $("sampling").reset());
  $("prompt-stop").addEventListener("click", () => running?.abort());
  $("prompt-text").addEventListener("keydown", e => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) {
      e.preventDefault();
      generate();
    }
  });
  model.addEventListener("change", showAdapters);
}
