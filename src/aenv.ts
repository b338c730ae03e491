/** The command line client. Everything it does is in `cli/`; the process ends here and nowhere else. */
import { processIo } from "./cli/io.ts";
import { main } from "./cli/main.ts";

process.exit(await main(process.argv.slice(2), processIo()));
