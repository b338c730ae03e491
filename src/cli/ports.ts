import { CliError, EXIT } from "./errors.ts";

/** Throws CliError (usage). `min`: 0 where any free port is meant by it. */
export function parsePort(text: string, min = 1): number {
  const port = Number(text);
  if (/^\d{1,5}$/.test(text) && port >= min && port <= 65_535) return port;
  throw new CliError(EXIT.usage, `'${text}' is no port`, { hint: `it is a number from ${min} to 65535` });
}
