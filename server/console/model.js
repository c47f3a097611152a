// What is served: the model's facts and the adapters, kept for every tab. "change" is fired when either was read anew.
import { get } from "./api.js";

class Model extends EventTarget {
  info = null; // GET /info
  adapters = []; // GET /adapters
  adapterBytes = 0;

  async load(options) {
    this.info = await get("info", options);
    await this.loadAdapters(options);
  }

  async loadAdapters(options) {
    if (!this.info) return;
    const list = await get("adapters", options);
    this.adapters = list.adapters;
    this.adapterBytes = list.bytes;
    this.dispatchEvent(new Event("change"));
  }
}

export const model = new Model();
