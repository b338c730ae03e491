import { runProgram } from "./node.js";

await runProgram();
