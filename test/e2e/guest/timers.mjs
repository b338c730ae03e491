// A server on Node's event loop: a count in memory, an interval, one connection to itself that is kept open.
import { Agent, createServer, get } from "node:http";

let [hits, ticks] = [0, 0];
const own = new Set();
const agent = new Agent({ keepAlive: true, maxSockets: 1 });
const server = createServer((request, response) => {
  if (request.url === "/self") {
    own.add(request.socket);
    response.end();
    return;
  }
  get({ port: 8301, path: "/self", agent }, (answer) => {
    answer.resume().on("end", () => {
      hits += 1;
      response.end(JSON.stringify({ pid: process.pid, hits, ticks, connections: own.size }));
    });
  }).on("error", (error) => response.writeHead(500).end(String(error)));
});
setInterval(() => {
  ticks += 1;
}, 50);
// Its connections end only with it, however long it is asked nothing.
server.keepAliveTimeout = 0;
server.listen(8301);
