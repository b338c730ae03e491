import { runScript } from "./setup/node.js";

await runScript("./make-template.ts");
