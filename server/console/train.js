// The form for a new job: its data, pasted or from a file, its settings, a look at both before it starts.
import { post, upload } from "./api.js";
import { model } from "./model.js";
import { openJob } from "./jobs.js";
import { $, el, bytes, number, seconds, say } from "./dom.js";

let uploaded = null; // {file, id}: a file is sent once, however often it is checked

// ---- data -----------------------------------------------------------------------------------------------------------

// Pasted rows: a JSON array, or one value a line. A text alone is a row, too.
export function parseRows(text) {
  const row = (value, where) => {
    if (typeof value === "string") return { text: value };
    if (value !== null && typeof value === "object" && !Array.isArray(value)) return value;
    throw new Error(`${where} is no JSON object.`);
  };
  if (text.trimStart().startsWith("[")) {
    try {
      return JSON.parse(text).map((value, i) => row(value, `Row ${i + 1}`));
    } catch (e) {
      if (!(e instanceof SyntaxError)) throw e;
      throw new Error(`The rows are no JSON array: ${e.message}.`);
    }
  }
  const rows = [];
  text.split(/\r?\n/).forEach((line, i) => {
    if (!line.trim()) return;
    let value;
    try {
      value = JSON.parse(line);
    } catch {
      throw new Error(`Line ${i + 1} is no JSON object. Plain text can be trained from a .txt file.`);
    }
    rows.push(row(value, `Line ${i + 1}`));
  });
  return rows;
}

async function dataset() {
  const file = $("train-file").files[0];
  if (!file) {
    const rows = parseRows($("train-rows").value);
    if (!rows.length) throw new Error("Choose a file or paste rows first.");
    return { rows };
  }
  if (uploaded?.file !== file) {
    say($("train-busy"), `Uploading ${file.name} …`);
    uploaded = { file, id: (await upload(file)).id };
  }
  return { file: uploaded.id };
}

function showFile() {
  const file = $("train-file").files[0];
  $("train-file-name").textContent = file ? `${file.name}, ${bytes(file.size)}` : ".jsonl, .json or .txt; or paste rows";
  $("train-file-clear").hidden = !file;
  $("train-rows").hidden = Boolean(file);
}

// ---- the request ----------------------------------------------------------------------------------------------------

const HYPER = { epochs: "train-epochs", learning_rate: "train-rate", batch_tokens: "train-batch", eval_fraction: "train-held" };
const LORA = { lora_r: "train-rank", lora_alpha: "train-alpha" };

// Empty fields are left to the daemon.
async function requestBody() {
  const method = $("train-method").value, name = $("train-name").value.trim(), hyperparameters = {};
  for (const [field, id] of Object.entries(method === "full" ? HYPER : { ...HYPER, ...LORA })) {
    if (!Number.isNaN($(id).valueAsNumber)) hyperparameters[field] = $(id).valueAsNumber;
  }
  const body = { method, dataset: await dataset(), hyperparameters };
  if (name) body.serve_as = name;
  return body;
}

// One thing at a time; errors are shown in the form.
async function during(what, action) {
  const buttons = [$("train-go"), $("train-check")];
  if (buttons[0].disabled) return;
  for (const button of buttons) button.disabled = true;
  say($("train-error"), "");
  $("train-busy").hidden = false;
  try {
    const body = await requestBody();
    say($("train-busy"), what);
    await action(body);
  } catch (e) {
    say($("train-error"), e.message);
  }
  say($("train-busy"), "");
  for (const button of buttons) button.disabled = false;
}

// ---- looking at the data --------------------------------------------------------------------------------------------

function sentences({ dataset: d, plan, estimate }) {
  const counts = [`${d.kept} of ${d.rows} rows`];
  if (d.skipped) counts.push(`${d.skipped} skipped`);
  if (d.duplicates) counts.push(`${d.duplicates} duplicate${d.duplicates === 1 ? "" : "s"} left out`);
  if (d.truncated) counts.push(`${d.truncated} cut to length`);
  counts.push(`${number(d.tokens)} tokens, ${number(d.trained_tokens)} of them trained`);
  const work = [`${estimate.steps} step${estimate.steps === 1 ? "" : "s"}`,
    `${bytes(plan.state_bytes + plan.activation_bytes)} of memory`];
  if (estimate.seconds) work.push(`about ${seconds(estimate.seconds)}`);
  return [`${d.format}: ${counts.join(", ")}`, work.join(", ")];
}

function showReport(found) {
  const box = $("train-report"), [data, work] = sentences(found);
  const problems = found.dataset.problems.map(p => el("li", {}, `Line ${p.line}: ${p.what}`));
  const rows = found.rows.map(row => el("p", { class: "preview" },
    ...row.segments.map(s => el("span", { class: s.trained ? "trained" : "given" }, s.text))));
  box.replaceChildren(el("p", {}, el("b", {}, data)), el("p", {}, work),
    ...(problems.length ? [el("ul", { class: "problems" }, ...problems)] : []),
    ...(rows.length ? [el("p", { class: "hint" }, "The first rows; what is ", el("span", { class: "trained" }, "marked"), " is trained:"), ...rows] : []));
  box.hidden = false;
}

// ---- start ----------------------------------------------------------------------------------------------------------

function showMethod() {
  const method = $("train-method").value, full = method === "full";
  for (const field of document.querySelectorAll("#train-form .lora")) field.hidden = full;
  $("train-rate").placeholder = full ? "0.00005" : method === "lora" || method === "qlora" ? "0.0002" : "0.00001";
}

// What the served weights allow; the daemon would say the same, later.
function showMethods() {
  const quantised = /^(int|nf)/.test(model.info?.model_dtype ?? "");
  for (const option of $("train-method").options) {
    if (option.value === "qlora") option.disabled = !quantised;
    if (option.value === "full") option.disabled = quantised;
  }
}

export function openForm(open) {
  $("train-form").hidden = !open;
  $("train-new").setAttribute("aria-expanded", open);
  $("train-new").textContent = open ? "Close" : "New job";
}

export function startTraining() {
  $("train-new").addEventListener("click", () => {
    openForm($("train-form").hidden);
    if (!$("train-form").hidden) $("train-rows").focus();
  });
  $("train-file").addEventListener("change", showFile);
  $("train-file-clear").addEventListener("click", () => {
    $("train-file").value = "";
    showFile();
    $("train-file").focus();
  });
  $("train-method").addEventListener("change", showMethod);
  $("train-check").addEventListener("click", () => {
    if ($("train-form").reportValidity()) during("Reading …", async body => showReport(await post("train/validate?rows=3", body)));
  });
  $("train-form").addEventListener("submit", e => {
    e.preventDefault();
    during("Starting …", async body => {
      const job = await post("train", body);
      $("train-report").hidden = true;
      openForm(false);
      await openJob(job.id);
    });
  });
  model.addEventListener("change", showMethods);
}
