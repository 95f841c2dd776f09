// Search from the file system: browsers start no worker from a file, so its script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.frame = new Promise((resolve) => {
        document.addEventListener("DOMContentLoaded", () => document.body.append(frame));
        if (document.body) document.body.append(frame);
        frame.addEventListener("load", () => resolve(frame.contentWindow), { once: true });
      });
      window.__workers = [...(window.__workers ?? []), this];
      const answer = `self.postMessage = (data) => parent.__workers[${window.__workers.length - 1}].dispatchEvent(
        new parent.MessageEvent("message", { data }))`;
      frame.srcdoc = `<script>${answer}</script><script src="${url}"></script>`;
    }

    async postMessage(data) {
      const inside = await this.frame;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
  };
  window.Worker = window.IFrameWorker;
}
