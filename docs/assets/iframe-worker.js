// Search in a manual that was opened from disk: browsers start no worker for file:// pages, so the index is searched
// in a hidden frame instead. Its place is mkdocs.yml (extra.polyfills); a site that is served never takes this path.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.ready = new Promise((resolve) => frame.addEventListener("load", () => resolve(frame.contentWindow)))
      window.answerOfSearch = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      frame.srcdoc =
        "<script>self.postMessage = (data) => parent.answerOfSearch(data)</script>" + `<script src="${url}"></script>`
      document.body.append(frame)
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {}
  }
}
