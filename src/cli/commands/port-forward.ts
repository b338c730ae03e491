import type { Command } from "../command.ts";
import { CliError, EXIT } from "../errors.ts";
import { parsePort } from "../ports.ts";
import { runningSandbox } from "../sandbox.ts";

export const portForward: Command = {
  name: "port-forward",
  aliases: [],
  summary: "make ports of a sandbox reachable on this machine",
  args: [
    { name: "id", summary: "sandbox" },
    {
      name: "ports",
      summary: "LOCAL:REMOTE; PORT for the same on both sides, :REMOTE for any free one here",
      many: true,
    },
  ],
  options: [],
  examples: ["aenv port-forward ID 8080:80", "aenv port-forward ID 5432", "aenv port-forward ID 3000 9229:9229 :6379"],
  details: `Listens on 127.0.0.1 and carries each connection into the sandbox byte for byte, whatever is spoken: HTTP, WebSockets,
databases. Services that listen on the sandbox's loopback only are reached too. Prints \`127.0.0.1:LOCAL -> ID:REMOTE\`
when it listens; Ctrl-C ends it. The sandbox's time is not prolonged by it (\`aenv timeout\`).`,
  async run(context, input) {
    const [id = "", ...words] = input.args;
    const wanted = words.map(parseForward);
    const { Forwarder } = await import("../forward.ts");
    const api = await context.api();
    const sandbox = await runningSandbox(api, id);
    await using forwarder = new Forwarder(context, api, sandbox);
    const open = await forwarder.listen(wanted);
    if (context.json) {
      await context.out.json(
        open.map(({ localPort, remotePort }) => ({ address: "127.0.0.1", port: localPort, sandboxPort: remotePort })),
      );
    } else {
      for (const { localPort, remotePort } of open) {
        await context.out.line(`127.0.0.1:${localPort} -> ${id}:${remotePort}`);
      }
    }
    return await forwarder.untilEnd();
  },
};

function parseForward(word: string): { readonly localPort: number; readonly remotePort: number } {
  const [local = "", remote, ...more] = word.split(":");
  if (more.length > 0) {
    throw new CliError(EXIT.usage, `'${word}' is no pair of ports`, {
      hint: "write LOCAL:REMOTE, for example 8080:80",
    });
  }
  if (remote === undefined) return { localPort: parsePort(local), remotePort: parsePort(local) };
  return { localPort: local === "" ? 0 : parsePort(local, 0), remotePort: parsePort(remote) };
}
