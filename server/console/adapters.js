// The adapters that requests can name, and what is known of the model.
import { post, remove } from "./api.js";
import { model } from "./model.js";
import { $, ask, el, bytes, number, seconds, say } from "./dom.js";

let useAdapter = () => {};

// ---- adapters -------------------------------------------------------------------------------------------------------

async function attempt(action) {
  say($("adapters-error"), "");
  try {
    await action();
    await model.loadAdapters();
  } catch (e) {
    say($("adapters-error"), e.message);
  }
}

async function unload(a) {
  const answer = await ask({ title: `Unload ${a.name}?`, text: "Requests that run with it end with it; new ones can no longer name it.",
    yes: "Unload", no: "Keep it", option: "Also delete its files from the data directory" });
  if (answer) await attempt(() => remove(`adapters/${encodeURIComponent(a.name)}${answer.checked ? "?files=true" : ""}`));
}

function row(a) {
  const facts = a.loaded === false ? [`of ${a.base}, which is not loaded`] : [
    `rank ${a.r}`, `alpha ${number(a.lora_alpha)}`, a.use_rslora ? "rsLoRA" : null, bytes(a.bytes), `version ${a.version}`,
    a.requests ? `${a.requests} request${a.requests === 1 ? "" : "s"} running` : null];
  return el("li", { class: "card job", "data-adapter": a.name },
    el("div", { class: "head" }, el("h3", { class: "open" }, a.name),
      el("div", { class: "actions" },
        el("button", { type: "button", "aria-label": `Use ${a.name}`, onclick: () => useAdapter(a.name) }, "Use"),
        el("button", { type: "button", class: "quiet", "aria-label": `Unload ${a.name}`, onclick: () => unload(a) }, "Unload"))),
    el("span", { class: "hint" }, facts.filter(Boolean).join(" · ")),
    el("span", { class: "hint" }, (a.target_modules ?? []).join(" ")));
}

function showAdapters() {
  const { adapters, info } = model;
  $("adapters").replaceChildren(...adapters.map(row));
  $("adapters-none").hidden = adapters.length > 0;
  $("adapters-sum").textContent = `${adapters.length} of at most ${info.max_adapters}, ${bytes(model.adapterBytes)}`;
}

// ---- the model ------------------------------------------------------------------------------------------------------

function groups(i) {
  const tokens = n => `${number(n)} tokens`;
  return [
    ["Model", [["Name", i.model_id], ["Family", i.model_family], ["Parameters", number(i.parameters)], ["Layers", i.layers],
      ["Hidden size", i.hidden_size], ["Vocabulary", i.vocab_size], ["Positions", number(i.max_model_len)]]],
    ["Memory", [["Weights", `${bytes(i.weight_bytes)} as ${i.model_dtype}`], ["KV cache", `${bytes(i.kv_bytes)} as ${i.kv_dtype}`],
      ["Pages", `${i.kv_pages} of ${i.page_tokens} tokens`], ["Holds", tokens(i.kv_pages * i.page_tokens)]]],
    ["Limits", [["One request", tokens(i.max_total_tokens)], ["Requests at once", i.max_seqs], ["Waiting at most", i.max_queue],
      ["One step", tokens(i.max_batch_tokens)], ["Adapters", i.max_adapters], ["Adapter rank", i.max_lora_rank]]],
    ["Server", [["Program", `${i.router} ${i.version}`], ["Device", i.device], ["Threads", i.threads], ["Loaded in", seconds(i.load_seconds)]]],
  ];
}

function showModel() {
  const i = model.info;
  $("facts").textContent = [i.model_id, `${number(i.parameters)} parameters`, i.model_dtype, i.device].join(" · ");
  document.title = `${i.model_id} · tandem`;
  $("model-facts").replaceChildren(...groups(i).map(([title, rows]) => el("section", { class: "card" },
    el("h2", { class: "title" }, title),
    el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])))));
}

export function startAdapters(use) {
  useAdapter = use;
  model.addEventListener("change", () => {
    showAdapters();
    showModel();
  });
  $("adapter-form").addEventListener("submit", e => {
    e.preventDefault();
    attempt(async () => {
      await post("adapters", { name: $("adapter-name").value.trim(), path: $("adapter-path").value.trim() });
      $("adapter-form").reset();
    });
  });
}
