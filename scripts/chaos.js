import { runScript } from "./setup/node.js";

await runScript("./chaos.ts");
