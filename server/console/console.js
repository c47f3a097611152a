// The console: its tabs, and what starts everything else.
import { askKey } from "./api.js";
import { startAdapters } from "./adapters.js";
import { startChat } from "./chat.js";
import { startPrompt } from "./generate.js";
import { loadJobs, startJobs } from "./jobs.js";
import { Live } from "./live.js";
import { model } from "./model.js";
import { startTraining } from "./train.js";
import { $ } from "./dom.js";

const TABS = ["prompt", "chat", "training", "adapters", "model"];

// ---- tabs: the address has the one that is open ---------------------------------------------------------------------

function showTab() {
  const open = TABS.find(name => `#${name}` === location.hash) ?? TABS[0];
  for (const name of TABS) {
    const tab = $(`tab-${name}`);
    tab.setAttribute("aria-selected", name === open);
    tab.tabIndex = name === open ? 0 : -1;
    $(`panel-${name}`).hidden = name !== open;
  }
  $("sampling").hidden = open !== "prompt" && open !== "chat";
  $("tab-" + open).scrollIntoView({ block: "nearest", inline: "nearest" });
  if (open === "training") loadJobs();
  if (open === "adapters" && model.info) model.loadAdapters({ background: true }).catch(() => {});
}

function onTabKey(e) {
  const at = TABS.indexOf(e.target.id.slice(4)), last = TABS.length - 1;
  const next = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[e.key];
  if (at < 0 || next === undefined) return;
  e.preventDefault();
  location.hash = TABS[next];
  $(`tab-${TABS[next]}`).focus();
}

async function useAdapter(name) {
  await model.loadAdapters().catch(() => {}); // it may be new
  $("adapter").value = name;
  location.hash = "prompt";
  $("prompt-text").focus();
}

// ---- the server's state ---------------------------------------------------------------------------------------------

function onState({ detail: state }) {
  $("status").textContent = state;
  $("status").dataset.state = state;
  if (state === "ready") model.load({ background: true }).catch(e => console.warn(e.message));
}

// ---- start ----------------------------------------------------------------------------------------------------------

for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => (location.hash = name));
document.querySelector(".tabs").addEventListener("keydown", onTabKey);
addEventListener("hashchange", showTab);
$("key-open").addEventListener("click", () => askKey("").then(given => given && live.wake()));

startPrompt();
startChat();
startTraining();
startJobs(useAdapter);
startAdapters(useAdapter);
showTab();
const live = new Live();
live.addEventListener("state", onState);
