import { type IncomingHttpHeaders, request } from "node:http";
import type { TestServer } from "./server.ts";

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

export interface Question {
  readonly method?: string;
  /** Sent as it is, whatever it is. */
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

/** One request, not prettified by `fetch`: any path, any Host. */
export function ask(server: TestServer, question: Question): Promise<Answer> {
  const { hostname, port } = new URL(server.url);
  const { method = "GET", path, body } = question;
  // Not every method's body gets a length by itself.
  const headers = { ...question.headers, ...(body !== undefined && { "Content-Length": Buffer.byteLength(body) }) };
  return new Promise((resolve, reject) => {
    const outgoing = request({ hostname, port, method, path, headers, agent: false }, (incoming) => {
      let text = "";
      incoming.setEncoding("utf8");
      incoming.on("data", (part: string) => {
        text += part;
      });
      incoming.on("end", () => resolve({ status: incoming.statusCode ?? 0, headers: incoming.headers, text }));
      incoming.on("error", reject);
    });
    outgoing.on("error", reject);
    outgoing.end(body);
  });
}

/** The same with the server's key, the body as JSON both ways. */
export async function api(
  server: TestServer,
  method: string,
  path: string,
  body?: unknown,
): Promise<{ readonly status: number; readonly headers: IncomingHttpHeaders; readonly json: unknown }> {
  const answer = await ask(server, {
    method,
    path,
    headers: { "X-API-Key": server.apiKey, ...(body !== undefined && { "Content-Type": "application/json" }) },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return { ...answer, json: answer.text === "" ? undefined : JSON.parse(answer.text) };
}

/** Headers that lead to a port of a sandbox. */
export function to(sandboxId: string, port: number): Record<string, string> {
  return { "E2b-Sandbox-Id": sandboxId, "E2b-Sandbox-Port": String(port) };
}
