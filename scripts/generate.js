import { runScript } from "./setup/node.js";

await runScript("./generate.ts");
