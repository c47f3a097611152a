// Asking the daemon: JSON, streams of events, and the key where it wants one. Paths are relative to the page, so that it
// also works below a proxy's prefix.
import { $, say } from "./dom.js";

export class ApiError extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status; // 0: no answer
    this.code = code; // the daemon's short word for it
  }
}

// ---- the key --------------------------------------------------------------------------------------------------------

const STORED = "tandem-key";
let key = "";
let asking = null; // the dialog that is open, as a promise
let declined = false; // it was closed without a key: what runs by itself does not open it again

try {
  key = sessionStorage.getItem(STORED) ?? "";
} catch {
  // no storage here: the key lives as long as the page
}

function keep(text) {
  key = text;
  try {
    if (text) sessionStorage.setItem(STORED, text);
    else sessionStorage.removeItem(STORED);
  } catch {
    // as above
  }
}

// Opens the dialog, or joins the one that is open. -> whether a key was entered
export function askKey(reason) {
  if (asking) return asking;
  const dialog = $("key-dialog");
  $("key-open").hidden = false;
  say($("key-reason"), reason);
  $("key-text").value = key;
  dialog.returnValue = "";
  dialog.showModal();
  $("key-text").select();
  asking = new Promise(resolve => {
    dialog.addEventListener("close", () => {
      asking = null;
      declined = dialog.returnValue !== "ok";
      if (!declined) keep($("key-text").value.trim());
      resolve(!declined);
    }, { once: true });
  });
  return asking;
}

// ---- requests -------------------------------------------------------------------------------------------------------

// The daemon's own words, whichever shape its error has: {"error": text} or {"error": {"message": text}}
export function errorText(body) {
  const error = body?.error;
  return typeof error === "string" ? error : typeof error?.message === "string" ? error.message : null;
}

async function failure(answer) {
  const text = await answer.text().catch(() => "");
  let message = null, code = null;
  try {
    const body = JSON.parse(text);
    message = errorText(body);
    code = body.error?.code ?? body.error_type ?? null;
  } catch {
    // not JSON: shown as it is
  }
  message ??= text.slice(0, 400) || `The server answered ${answer.status} ${answer.statusText}.`;
  const wait = answer.headers.get("Retry-After");
  return new ApiError(answer.status, answer.status === 429 && wait ? `${message} (try again in ${wait} s)` : message, code);
}

// -> a good answer; throws ApiError, or AbortError when options.signal says stop. options.background: nobody waits for it
export async function request(path, options = {}) {
  for (;;) {
    const headers = new Headers(options.headers), used = key;
    if (used) headers.set("Authorization", `Bearer ${used}`);
    let answer;
    try {
      answer = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (e) {
      if (e.name === "AbortError") throw e;
      throw new ApiError(0, "The server cannot be reached.");
    }
    if (answer.ok) return answer;
    const error = await failure(answer);
    if (answer.status !== 401) throw error;
    if (key !== used) continue; // another request was given one meanwhile
    if (options.background && declined) throw error;
    if (!(await askKey(error.message))) throw error;
  }
}

const sent = (method, body, options) =>
  ({ ...options, method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

export const get = async (path, options) => (await request(path, options)).json();
export const post = async (path, body, options) => (await request(path, sent("POST", body ?? {}, options))).json();
export const remove = async (path, options) => (await request(path, { ...options, method: "DELETE" })).json();

export async function upload(file) {
  const form = new FormData();
  form.append("purpose", "fine-tune");
  form.append("file", file, file.name);
  return (await request("v1/files", { method: "POST", body: form })).json();
}

// ---- streams of events ----------------------------------------------------------------------------------------------

// The events of an answer as they come: {type, data, id}. HTML Living Standard, 9.2.6; comments are the daemon's signs
// of life.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", event = { type: "message", data: null, id: null };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const held = rest.endsWith("\r") ? "\r" : ""; // its line feed may be on the way
      const lines = rest.slice(0, rest.length - held.length).split(/\r\n|\n|\r/);
      rest = lines.pop() + held;
      for (const line of lines) {
        if (line === "") {
          if (event.data !== null) yield event;
          event = { type: "message", data: null, id: event.id };
          continue;
        }
        const colon = line.indexOf(":"), name = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
        if (name === "data") event.data = event.data === null ? text : `${event.data}\n${text}`;
        else if (name === "event") event.type = text;
        else if (name === "id") event.id = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the reader of this left: so does the connection
  }
}

// A POST whose answer is a stream of JSON; an error in mid-stream is thrown. "[DONE]" ends it.
export async function* postStream(path, body, signal) {
  const answer = await request(path, sent("POST", body, { signal }));
  for await (const { data } of events(answer)) {
    if (data === "[DONE]") return;
    const value = JSON.parse(data), error = errorText(value);
    if (error !== null) throw new ApiError(0, error);
    yield value;
  }
}
