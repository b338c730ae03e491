export { createGvisorDriver, type GvisorOptions } from "./driver.ts";
