import type { Command } from "../command.ts";
import { EXIT } from "../errors.ts";
import { quoteWords } from "../output.ts";
import { parsePort } from "../ports.ts";

export const url: Command = {
  name: "url",
  aliases: [],
  summary: "say how an HTTP service in a sandbox is reached",
  args: [
    { name: "id", summary: "sandbox" },
    { name: "port", summary: "that the service listens on" },
  ],
  options: [],
  examples: ["curl $(aenv url ID 8000)", "aenv url ID 8000 --json", "aenv port-forward ID 8000"],
  details: `With a server that is asked under its domain (https://api.DOMAIN) this is a URL of its own, https://PORT-ID.DOMAIN.
Otherwise the request itself names the sandbox, by two headers, which the printed curl command has: the path is the
service's own. For a browser, WebSockets or anything that sets no headers there is \`aenv port-forward\`.
--json prints {"url", "headers"}, where the headers have to go with every request.`,
  async run(context, input) {
    const id = input.arg(0);
    const port = parsePort(input.arg(1));
    const api = await context.api();
    const sandbox = await api.getSandbox(id);
    const headers: Record<string, string> = sandbox.domain
      ? {}
      : { "E2b-Sandbox-Id": id, "E2b-Sandbox-Port": String(port) };
    const address = sandbox.domain ? `https://${port}-${id}.${sandbox.domain}` : `${api.http.baseUrl}/`;
    if (context.json) await context.out.json({ url: address, headers });
    else if (sandbox.domain) await context.out.line(address);
    else {
      const words = Object.entries(headers).flatMap(([name, value]) => ["-H", `${name}: ${value}`]);
      await context.out.line(quoteWords(["curl", ...words, address]));
      await context.out.note(
        `The server was not asked under a domain of its own, so the headers name the sandbox.\n\`aenv port-forward ${id} ${port}\` gives the service an address here that needs none.`,
      );
    }
    if (sandbox.network?.allowPublicTraffic === false) {
      await context.out.note(
        "Its ports are not public: add the header e2b-traffic-access-token with the token that came when it was started.",
      );
    }
    if (sandbox.state === "paused") await context.out.note(`${id} is paused: \`aenv resume ${id}\` brings it back.`);
    return EXIT.ok;
  },
};
