import { runScript } from "./setup/node.js";

await runScript("./down.ts");
