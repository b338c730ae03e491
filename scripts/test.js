import { runScript } from "./setup/node.js";

await runScript("./test.ts");
