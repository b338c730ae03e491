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

export async function detailOf(server: TestServer, id: string): Promise<Detail> {
  const { status, body } = await call<Detail>(server, "GET", `/sandboxes/${id}`);
  assert.equal(status, 200);
  return body;
}
