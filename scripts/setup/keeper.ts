import { request } from "node:http";
import type { DataDir } from "./data-dir.ts";

export interface KeptService {
  readonly name: string;
  readonly state?: string;
  readonly restarts?: number;
}

/** What the keeper of a data folder says about its services (Connect's JSON over its socket); empty while none answers. */
export async function keptServices(data: DataDir): Promise<readonly KeptService[]> {
  try {
    const answer = await post(data.keeperSocket, "/aenv.keeper.v1.Keeper/Status");
    return (JSON.parse(answer) as { services?: KeptService[] }).services ?? [];
  } catch {
    return [];
  }
}

function post(socketPath: string, path: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const headers = { "Content-Type": "application/json" };
    const call = request({ socketPath, path, method: "POST", headers, timeout: 2000 }, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (part: string) => {
        text += part;
      });
      response.on("end", () => (response.statusCode === 200 ? resolve(text) : reject(new Error(text))));
      response.on("error", reject);
    });
    call.on("timeout", () => call.destroy(new Error("the keeper does not answer")));
    call.on("error", reject);
    call.end("{}");
  });
}
