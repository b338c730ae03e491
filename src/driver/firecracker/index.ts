export { createFirecrackerDriver } from "./driver.ts";
export type { FirecrackerOptions } from "./parts.ts";
