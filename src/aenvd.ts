import { AenvError } from "#domain";
import { describeError } from "#lib/log";

const HELP = `aenvd: the aenv server

Usage: aenvd COMMAND [flags]

Commands:
  serve     run the server (the keeper starts it; the edge is a service of its own)
  doctor    say what this host can do, what is missing and how to fix it (--json)
  config    print the configuration that holds, and where each value came from
  import    make an image from the root file system in a tar: aenvd import --tar FILE; prints {"digest": …}

Configuration: default < file (--config FILE) < AENV_* < flag. \`aenvd config\` lists the fields.

Examples:
  aenvd doctor
  aenvd config --data-dir /srv/aenv
  aenvd import --tar rootfs.tar
`;

const COMMANDS: Readonly<Record<string, () => Promise<{ run(argv: readonly string[]): Promise<number> }>>> = {
  serve: () => import("./server/serve.ts"),
  doctor: () => import("./server/doctor.ts"),
  config: () => import("./server/show-config.ts"),
  import: () => import("./server/import.ts"),
};

async function main(argv: readonly string[]): Promise<number> {
  const [name = "--help", ...rest] = argv;
  if (name === "--help" || name === "-h" || name === "help") {
    process.stdout.write(HELP);
    return 0;
  }
  const load = COMMANDS[name];
  if (load === undefined) throw new AenvError("invalid", `unknown command: ${name}`, { hint: "see aenvd --help" });
  return await (await load()).run(rest);
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  const known = error instanceof AenvError;
  process.stderr.write(`aenvd: ${known ? error.message : describeError(error)}\n`);
  if (known && error.hint !== undefined) process.stderr.write(`  ${error.hint}\n`);
  if (known && error.cause !== undefined) process.stderr.write(`  cause: ${describeError(error.cause)}\n`);
  process.exitCode = known && error.kind === "invalid" ? 2 : 1;
}
