import { runScript } from "./setup/node.js";

await runScript("./check.ts");
