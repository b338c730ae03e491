import assert from "node:assert/strict";
import type { TestServer } from "./start.ts";

export interface Detail {
  readonly sandboxID: string;
  readonly state: string;
  readonly startedAt: string;
  readonly endAt: string;
  readonly [field: string]: unknown;
}

export interface Answer<T> {
  readonly status: number;
  readonly body: T;
}

/** One call of the API, as it is: any status, the body as JSON. */
export async function call<T = { message: string }>(
  server: Pick<TestServer, "url" | "apiKey">,
  method: string,
  path: string,
  body?: unknown,
): Promise<Answer<T>> {
  const response = await fetch(server.url + path, {
    method,
    headers: { "X-API-Key": server.apiKey, ...(body !== undefined && { "Content-Type": "application/json" }) },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, body: (text === "" ? undefined : JSON.parse(text)) as T };
}

export interface LogEntry {
  readonly timestamp: string;
  readonly level: string;
  readonly message: string;
  readonly fields: Readonly<Record<string, string>>;
}

/** All that the server has of a sandbox's log, oldest first; of a level and those above. */
export async function logsOf(
  server: Pick<TestServer, "url" | "apiKey">,
  id: string,
  { level }: { readonly level?: string } = {},
): Promise<LogEntry[]> {
  const path = `/v2/sandboxes/${id}/logs?direction=forward${level === undefined ? "" : `&level=${level}`}`;
  const { status, body } = await call<{ logs: LogEntry[] }>(server, "GET", path);
  assert.equal(status, 200, JSON.stringify(body));
  return body.logs;
}

/** What it says, without the rest. */
export async function messagesOf(...log: Parameters<typeof logsOf>): Promise<string[]> {
  return (await logsOf(...log)).map(({ message }) => message);
}

/** Each of these sandboxes' agents obeys whoever shows its own token, and nobody who shows another's. */
export async function assertOwnTokensOnly(server: TestServer, ids: readonly string[]): Promise<void> {
  const tokens = await Promise.all(ids.map(async (id) => String((await detailOf(server, id)).envdAccessToken)));
  assert.equal(new Set(tokens).size, ids.length, `the tokens are ${tokens}`);
  for (const id of ids) {
    const headers = { "E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "49983" };
    const statuses = await Promise.all(
      tokens.map(async (token) => {
        const path = "/files?path=/etc/hostname";
        const answer = await fetch(server.url + path, { headers: { ...headers, "X-Access-Token": token } });
        await answer.body?.cancel();
        return answer.status;
      }),
    );
    assert.deepEqual(
      statuses,
      ids.map((other) => (other === id ? 200 : 401)),
    );
  }
}

export async function detailOf(server: TestServer, id: string): Promise<Detail> {
  const { status, body } = await call<Detail>(server, "GET", `/sandboxes/${id}`);
  assert.equal(status, 200);
  return body;
}
