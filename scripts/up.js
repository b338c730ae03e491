import { runScript } from "./setup/node.js";

await runScript("./up.ts");
