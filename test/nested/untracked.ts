import hooks from "node:async_hooks";
import { writeSync } from "node:fs";

/**
 * Loaded before tests: Node's runner follows every promise and timer from then on, to tell which test an error is of that nobody
 * has caught. Where JavaScript is interpreted that makes them twenty times as dear.
 */
const { createHook } = hooks;
const made: hooks.AsyncHook[] = [];
hooks.createHook = (callbacks) => {
  const hook = createHook(callbacks);
  made.push(hook);
  return hook;
};

/** Called when all tests are defined, for which suites are followed (one that is defined later belongs to none): from here on such an
 *  error ends the run. */
export function untrack(): void {
  hooks.createHook = createHook;
  if (made.length === 0) return;
  for (const hook of made) hook.disable();
  for (const event of ["uncaughtException", "unhandledRejection"]) process.on(event, end);
}

function end(error: unknown): void {
  writeSync(2, `An error that no test has caught: ${error instanceof Error ? error.stack : error}\n`);
  process.exit(1);
}
