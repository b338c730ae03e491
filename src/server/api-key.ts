import { readFile } from "node:fs/promises";
import { AenvError, newApiKey } from "#domain";
import { isMissing, writeFileAtomic } from "#lib/files";

/** The operator's key: what lies in the file, else `AENV_API_KEY`, else a new one; kept in the file, for its owner only. */
export async function loadOrMakeApiKey(path: string, wanted = process.env.AENV_API_KEY): Promise<string> {
  try {
    const key = (await readFile(path, "utf8")).trim();
    if (key !== "") return checked(key, path);
    throw new AenvError("invalid", `${path} is empty`, {
      hint: "write your key into it, or remove it to get a new one",
    });
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
  const key = wanted === undefined || wanted.trim() === "" ? newApiKey() : checked(wanted.trim(), "AENV_API_KEY");
  await writeFileAtomic(path, `${key}\n`, { mode: 0o600, durable: true });
  return key;
}

/** A key travels in a header: spaces at its ends would be lost, other characters cannot be sent. */
function checked(key: string, source: string): string {
  if (/^[\x21-\x7e]+$/.test(key)) return key;
  throw new AenvError("invalid", `the API key in ${source} has to be printable ASCII without spaces`);
}
