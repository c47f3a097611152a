// The chat tab: POST /v1/chat/completions in OpenAI's format. A model without a chat template has no chat: the tab says
// so, and the message goes to the prompt tab.
import { postStream } from "./api.js";
import { model } from "./model.js";
import { sampling, samplingGood, promptInstead, Timing, ENDS } from "./generate.js";
import { $, el, Growing, say } from "./dom.js";

let messages = []; // {role, content}, without the system message
let running = null; // AbortController

function requestBody() {
  const s = sampling(), system = $("chat-system").value.trim();
  const body = {
    model: s.adapter || model.info?.model_id || "",
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
  };
  if (s.maxTokens !== null) body.max_tokens = s.maxTokens;
  if (s.temperature !== null) body.temperature = s.temperature;
  if (s.topP !== null && s.topP < 1) body.top_p = s.topP;
  if (s.topK !== null) body.top_k = s.topK;
  if (s.seed !== null) body.seed = s.seed;
  if (s.repetition !== null && s.repetition !== 1) body.repetition_penalty = s.repetition;
  return body;
}

function bubble(role, who, content) {
  const text = el("p", { class: "said" }, content);
  const node = el("div", { class: `message ${role}` }, el("span", { class: "who" }, who), text);
  $("chat-log").append(node);
  $("chat-log").scrollTop = $("chat-log").scrollHeight;
  return { node, text };
}

function busy(is) {
  $("chat-go").disabled = is;
  $("chat-stop").disabled = !is;
  $("chat-clear").disabled = is;
  $("chat-log").setAttribute("aria-busy", is);
}

// Reads the answer into text, and what the model thought into thoughts; -> why it ended.
async function read(text, thoughts, timing) {
  let end = null;
  for await (const event of postStream("v1/chat/completions", requestBody(), running.signal)) {
    const choice = event.choices?.[0];
    if (choice?.delta?.reasoning_content) {
      timing.token();
      thoughts.add(choice.delta.reasoning_content);
    }
    if (choice?.delta?.content) {
      timing.token();
      text.add(choice.delta.content);
      $("chat-stats").textContent = timing.text();
    }
    if (choice?.finish_reason) end = ENDS[choice.finish_reason] ?? choice.finish_reason;
    if (event.usage) timing.tokens = event.usage.completion_tokens;
  }
  return end;
}

async function send() {
  const content = $("chat-text").value.trim(), timing = new Timing();
  if (running || !content || !samplingGood()) return;
  running = new AbortController();
  busy(true);
  say($("chat-error"), "");
  say($("chat-notice"), "");
  $("chat-text").value = "";
  $("chat-stats").textContent = "";
  messages.push({ role: "user", content });
  const asked = bubble("user", "You", content);
  const answer = bubble("assistant", sampling().adapter || model.info?.model_id || "model", "");
  const thoughts = new Growing(answer.node.insertBefore(el("p", { class: "hint" }), answer.text), $("chat-log"));
  const text = new Growing(answer.text, $("chat-log"));
  let end = null, failed = null;
  try {
    end = await read(text, thoughts, timing);
  } catch (e) {
    if (e.name === "AbortError") end = "stopped";
    else failed = e;
  }
  thoughts.flush();
  text.flush();
  $("chat-stats").textContent = timing.text(end);
  if (failed && !text.value) { // as if it had not been sent
    messages.pop();
    asked.node.remove();
    answer.node.remove();
    $("chat-text").value = content;
  } else {
    messages.push({ role: "assistant", content: text.value });
  }
  running = null;
  busy(false);
  if (failed) explain(failed, content);
}

function explain(e, content) {
  if (e.code !== "no_chat_template") {
    say($("chat-error"), e.message);
    return;
  }
  const reason = e.message[0].toUpperCase() + e.message.slice(1) + ".";
  say($("chat-notice"), reason);
  promptInstead(content, `${reason}\nYour message is here instead, as the beginning of a text.`);
  location.hash = "prompt";
}

export function startChat() {
  $("chat-form").addEventListener("submit", e => {
    e.preventDefault();
    send();
  });
  $("chat-text").addEventListener("keydown", e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      send();
    }
  });
  $("chat-stop").addEventListener("click", () => running?.abort());
  $("chat-clear").addEventListener("click", () => {
    messages = [];
    $("chat-log").replaceChildren();
    $("chat-stats").textContent = "";
    $("chat-text").focus();
  });
}
