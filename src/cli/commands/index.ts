import type { Command, CommandGroup } from "../command.ts";

type Loader = () => Promise<Command | CommandGroup>;

/** Every command, in the order of `aenv --help`. One file each, loaded only when it is the one that is asked for. */
const COMMANDS: readonly { readonly words: readonly string[]; readonly load: Loader }[] = [
  { words: ["auth"], load: async () => (await import("./auth.ts")).auth },
  { words: ["pull"], load: async () => (await import("./pull.ts")).pull },
  { words: ["start"], load: async () => (await import("./start.ts")).start },
  { words: ["connect", "cn"], load: async () => (await import("./connect.ts")).connect },
  { words: ["exec"], load: async () => (await import("./exec.ts")).exec },
  { words: ["run"], load: async () => (await import("./run.ts")).run },
  { words: ["ps"], load: async () => (await import("./ps.ts")).ps },
  { words: ["attach"], load: async () => (await import("./attach.ts")).attach },
  { words: ["cp"], load: async () => (await import("./cp.ts")).cp },
  { words: ["url"], load: async () => (await import("./url.ts")).url },
  { words: ["port-forward"], load: async () => (await import("./port-forward.ts")).portForward },
  { words: ["logs"], load: async () => (await import("./logs.ts")).logs },
  { words: ["metrics"], load: async () => (await import("./metrics.ts")).metrics },
  { words: ["list", "ls"], load: async () => (await import("./list.ts")).list },
  { words: ["pause"], load: async () => (await import("./pause.ts")).pause },
  { words: ["resume"], load: async () => (await import("./resume.ts")).resume },
  { words: ["timeout"], load: async () => (await import("./timeout.ts")).timeout },
  { words: ["fork"], load: async () => (await import("./fork.ts")).fork },
  { words: ["snapshot"], load: async () => (await import("./snapshot.ts")).snapshot },
  { words: ["snapshots"], load: async () => (await import("./snapshots.ts")).snapshots },
  { words: ["tree"], load: async () => (await import("./tree.ts")).tree },
  { words: ["delete", "rm"], load: async () => (await import("./delete.ts")).remove },
  { words: ["template", "templates"], load: async () => (await import("./template.ts")).template },
];

/** The one command that `word` names; all of them when it names none, for help and suggestions. */
export async function loadCommands(word: string | undefined): Promise<readonly (Command | CommandGroup)[]> {
  const named = COMMANDS.find(({ words }) => word !== undefined && words.includes(word));
  if (named !== undefined) return [await named.load()];
  return await Promise.all(COMMANDS.map(({ load }) => load()));
}
