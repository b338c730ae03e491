import { join } from "node:path";
import { localRunner } from "#lib/spawn";
import type { SlotTools } from "#network";

/** What slots are made with where no server runs. */
export function slotTools(): SlotTools {
  const { AENV_TEST_BIN_DIR } = process.env;
  if (!AENV_TEST_BIN_DIR) throw new Error("AENV_TEST_BIN_DIR is not set: run it by `npm test`");
  return { runner: localRunner(), netslotPath: join(AENV_TEST_BIN_DIR, "netslot") };
}
