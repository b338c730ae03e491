import { fail, replaceBy } from "./node.js";
import { has } from "./run.ts";
import { say } from "./steps.ts";

/** Settings that are handed through sudo; by name, for its command line can be read by others. */
const KEPT =
  /^(?:HOME|CI|AENV_\w+|XDG_\w+|https?_proxy|no_proxy|SSL_CERT_\w+|NODE_EXTRA_CA_CERTS|npm_\w+|PIP_\w+|GO\w+)$/i;

/** Goes on as root: returns when we are, else hands this run over to sudo. */
export async function ensureRoot(why: string): Promise<void> {
  if (process.getuid?.() === 0) return;
  if (!(await has("sudo"))) fail(new Error(`Root is needed ${why}, and there is no sudo: run this as root.`));
  say(`Root is needed ${why}: going on with sudo.`);
  const kept = `--preserve-env=${Object.keys(process.env)
    .filter((name) => KEPT.test(name))
    .join(",")}`;
  const script = process.argv[1] ?? "";
  await replaceBy("sudo", [
    kept,
    "--",
    "env",
    `PATH=${process.env.PATH ?? ""}`,
    process.execPath,
    script,
    ...process.argv.slice(2),
  ]);
}
