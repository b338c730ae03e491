import { existsSync } from "node:fs";
import { join } from "node:path";
import { cacheDir, cached } from "./cache.js";
import { run } from "./run.ts";
import type { Step } from "./steps.ts";

/** The Python SDKs that the tests drive, unmodified, from PyPI. */
const SDKS = ["e2b==2.63.0", "e2b-code-interpreter==2.11.5"];

/** A Python with E2B's SDKs, for the tests. */
export const pythonSdkStep: Step = {
  title: `Python SDKs ${SDKS.join(", ")}`,
  estimateS: 15,

  pending() {
    return Promise.resolve(existsSync(sdkDir()) ? undefined : "install into the cache");
  },

  async run() {
    await cached(sdkDir(), async (temp) => {
      await run([systemPython(), "-m", "venv", temp], { asOwner: true });
      const pip = [join(temp, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
      await run([...pip, ...SDKS], { asOwner: true });
    });
  },
};

/** Python that has the SDK. Only this program of the venv may be used: the others name the folder it was made in. */
export function sdkPython(): string {
  return join(sdkDir(), "bin", "python");
}

function sdkDir(): string {
  return join(cacheDir(), "venv", SDKS.map((sdk) => sdk.replace("==", "-")).join("-"));
}

/** The distribution's own, whose venv module is among the packages we install. */
export function systemPython(): string {
  return existsSync("/usr/bin/python3") ? "/usr/bin/python3" : "python3";
}
