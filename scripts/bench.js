import { runScript } from "./setup/node.js";

await runScript("./bench.ts");
