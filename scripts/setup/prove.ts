import { join } from "node:path";
import { root } from "./node.js";
import { run } from "./run.ts";
import { progress } from "./steps.ts";

/** How the CLI is told where to go. */
export interface Access {
  readonly url: string;
  readonly key: string;
}

/** Logs the CLI in for whoever runs it without further settings. */
export async function login({ url, key }: Access): Promise<void> {
  await cli(["auth"], { url, key });
}

/** Goes once through a sandbox's life by the CLI: what works here works for the person. */
export async function prove(access: Access): Promise<void> {
  const aenv = (...args: string[]): Promise<string> => cli(args, access);
  const made: string[] = [];
  const expectOutput = async (id: string, expected: string, ...command: string[]): Promise<void> => {
    const said = (await aenv("exec", id, ...command)).trim();
    if (said !== expected) throw new Error(`${command.join(" ")} in sandbox ${id} said ${JSON.stringify(said)}`);
  };
  try {
    const id = await progress("create a sandbox", async () =>
      sandboxId(await aenv("start", "base", "--detach", "--json")),
    );
    made.push(id);
    await progress("run a command in it", () => expectOutput(id, "42", "python3", "-c", "print(6 * 7)"));
    await progress("leave something in memory", () => aenv("exec", id, "sh", "-c", "echo kept >/dev/shm/proof"));
    await progress("pause it", () => aenv("pause", id));
    await progress("resume it", () => aenv("resume", id));
    await progress("find it as it was", () => expectOutput(id, "kept", "cat", "/dev/shm/proof"));
    const fork = await progress("fork it", async () => sandboxId(await aenv("fork", id, "--count", "1", "--json")));
    made.push(fork);
    await progress("find the fork as it was", () => expectOutput(fork, "kept", "cat", "/dev/shm/proof"));
  } finally {
    const left = made.splice(0);
    if (left.length > 0) await progress("delete them", () => Promise.all(left.map((id) => aenv("delete", id))));
  }
}

async function cli(args: readonly string[], { url, key }: Access): Promise<string> {
  const argv = [join(root, "bin", "aenv"), ...args];
  return await run(argv, { env: { AENV_URL: url, AENV_API_KEY: key }, asOwner: true, timeoutMs: 60_000 });
}

/** The first sandbox id in what the API answered: an object, or a list of `{ sandbox }`. */
function sandboxId(json: string): string {
  const answer = JSON.parse(json) as unknown;
  const first = (Array.isArray(answer) ? answer[0] : answer) as
    | { sandboxID?: string; sandbox?: { sandboxID?: string } }
    | undefined;
  const id = first?.sandboxID ?? first?.sandbox?.sandboxID;
  if (id === undefined) throw new Error(`no sandbox in the answer ${json.slice(0, 300)}`);
  return id;
}
