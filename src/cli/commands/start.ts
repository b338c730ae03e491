import type { ApiClient, CreateSandbox, SandboxHandle } from "../api.ts";
import type { Command } from "../command.ts";
import type { Context } from "../context.ts";
import { EXIT } from "../errors.ts";
import { DEFAULT_TIMEOUT_S, timeoutOption } from "../options.ts";
import { createUninterrupted } from "../sandbox.ts";

export const start: Command = {
  name: "start",
  aliases: [],
  summary: "start a sandbox from a template and enter its shell",
  args: [{ name: "template", summary: "template name, name:tag, or id" }],
  options: [
    { flags: "-d, --detach", summary: "only start it, and print its id", kind: "flag" },
    timeoutOption(`how long it lives, or lives on after you leave (default: ${DEFAULT_TIMEOUT_S})`),
    {
      flags: "-e, --env <name=value>",
      summary: "environment variable of all its processes; may be repeated",
      kind: "pairs",
    },
    { flags: "-m, --metadata <name=value>", summary: "label to find it by; may be repeated", kind: "pairs" },
  ],
  examples: [
    "aenv start base",
    "ID=$(aenv start base --detach --timeout 3600)",
    "aenv start base -d -e TOKEN=x -m job=42",
  ],
  details: `The sandbox outlives the shell: it ends when its time is over or by \`aenv rm\`. \`aenv cn ID\` comes back to the shell.
--json prints the API's object and implies --detach. The exit code of an attached start is the shell's own.`,
  async run(context, input) {
    const timeoutS = input.number("timeout") ?? DEFAULT_TIMEOUT_S;
    const envVars = input.pairs("env");
    const metadata = input.pairs("metadata");
    const request: CreateSandbox = {
      templateID: input.arg(0),
      timeout: timeoutS,
      ...(envVars === undefined ? {} : { envVars }),
      ...(metadata === undefined ? {} : { metadata }),
    };
    const detach = input.flag("detach") || context.json;
    if (!detach) {
      const { requireTerminal } = await import("../shell/enter.ts");
      requireTerminal(context.io, `\`aenv start ${request.templateID} --detach\` starts it and prints its id`);
    }
    const api = await context.api();
    const sandbox = await createUninterrupted(context, api, request);
    if (!detach) return await enterNew(context, api, sandbox, timeoutS);
    if (context.json) await context.out.json(sandbox);
    else await context.out.line(sandbox.sandboxID);
    return EXIT.ok;
  },
};

/** A sandbox whose shell was never reached is of no use to the person who started it. */
async function enterNew(context: Context, api: ApiClient, sandbox: SandboxHandle, timeoutS: number): Promise<number> {
  const { enter } = await import("../shell/enter.ts");
  const id = sandbox.sandboxID;
  await context.out.note(`Started ${id}.`);
  let attached = false;
  const onAttached = (): void => {
    attached = true;
  };
  try {
    return await enter(context, api, sandbox, { timeoutS, onAttached });
  } finally {
    if (!attached) {
      const left = await api.deleteSandbox(id).catch((error: Error) => error);
      await context.out.note(
        left === undefined
          ? `Deleted ${id} again: its shell was never reached.`
          : `Could not delete ${id}, whose shell was never reached: ${left.message}`,
      );
    }
  }
}
