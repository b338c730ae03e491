/** The little of the HTTP API that the scripts call. */
export interface Api {
  readonly url: string;
  /** Throws with the server's own words unless it answers 2xx. Undefined for an empty answer. */
  call<T>(method: string, path: string, body?: unknown): Promise<T>;
  /** All sandboxes in a state. */
  sandboxes(state: "running" | "paused"): Promise<readonly { readonly sandboxID: string }[]>;
}

const CALL_TIMEOUT_MS = 120_000;

export function createApi(url: string, key: string): Api {
  const request = async (method: string, path: string, body?: unknown): Promise<Response> => {
    const response = await fetch(`${url}${path}`, {
      method,
      headers: { "X-API-Key": key, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      signal: AbortSignal.timeout(CALL_TIMEOUT_MS),
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    if (!response.ok)
      throw new Error(`${method} ${path} answered ${response.status}: ${(await response.text()).slice(0, 500)}`);
    return response;
  };
  return {
    url,
    async call<T>(method: string, path: string, body?: unknown): Promise<T> {
      const text = await (await request(method, path, body)).text();
      return (text === "" ? undefined : JSON.parse(text)) as T;
    },
    async sandboxes(state) {
      const all: { sandboxID: string }[] = [];
      let token = "";
      do {
        const page = token === "" ? "" : `&nextToken=${encodeURIComponent(token)}`;
        const response = await request("GET", `/v2/sandboxes?state=${state}&limit=100${page}`);
        all.push(...((await response.json()) as { sandboxID: string }[]));
        token = response.headers.get("X-Next-Token") ?? "";
      } while (token !== "");
      return all;
    },
  };
}

/** What GET /version says, undefined while nobody answers. */
export async function serverVersion(url: string): Promise<string | undefined> {
  try {
    const response = await fetch(`${url}/version`, { signal: AbortSignal.timeout(2000) });
    return response.ok ? ((await response.json()) as { commit: string }).commit : undefined;
  } catch {
    return undefined;
  }
}
