import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { run } from "./run.ts";

/** Folder: $1. A new file takes the name, whatever is there under it. */
const PLACE = `
umask 022
mkdir -p -m 700 -- "$1"
temp=$(mktemp -- "$1/.ca.pem.XXXXXX")
trap 'rm -f -- "$temp"' EXIT
cat >"$temp"
chmod 644 -- "$temp"
mv -fT -- "$temp" "$1/ca.pem"
`;

/** Copies the certificate of the server's authority to where whoever runs the SDKs can read it, beside the CLI's credentials:
 *  the data folder is root's alone. Returns the copy's path. */
export async function shareAuthority(path: string): Promise<string> {
  const dir = join(process.env.XDG_CONFIG_HOME || join(homedir(), ".config"), "aenv");
  // Every name on the way is that person's to bend to elsewhere, so it is written with no other rights than theirs.
  await run(["sh", "-ec", PLACE, "sh", dir], { asOwner: true, stdin: readFileSync(path, "utf8") });
  return join(dir, "ca.pem");
}
