import { runScript } from "./setup/node.js";

await runScript("./status.ts");
