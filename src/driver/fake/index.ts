export { createFakeDriver, type FakeOptions } from "./driver.ts";
export { type FakeAgent, FakeHost, type FakeOperation } from "./host.ts";
