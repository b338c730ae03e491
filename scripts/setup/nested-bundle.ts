import { SourceMap } from "node:module";
import { root } from "./node.js";

/** Files of the checkout with all that they import. */
export interface Bundle {
  /** Hangs on nothing else of the checkout; what only comments say is not in it. */
  readonly script: string;
  /** A line with the places in the sources instead of those in the script, which is known by its `name`. */
  readable(line: string, name: string): string;
}

/**
 * Makes one script of modules, for a machine whose processor is emulated: to find and read some hundred files takes it seconds. As
 * CommonJS, for Node loads what few programs use (its own `fetch`) with each ES module that imports `node:http`.
 *
 * Errors: what cannot be in one file, such as a module that asks where it lies.
 */
export async function bundle(files: readonly string[]): Promise<Bundle> {
  // Of node_modules, which setting up may have yet to bring when this module is loaded.
  const { build } = await import("esbuild");
  const { outputFiles, warnings } = await build({
    stdin: { contents: entry(files), resolveDir: root },
    ...{ bundle: true, platform: "node", format: "cjs", target: `node${process.versions.node}` },
    ...{ outfile: "bundle.cjs", write: false, sourcemap: "external", absWorkingDir: root, logLevel: "silent" },
    // As in modules.
    banner: { js: '"use strict";' },
  });
  const [warning] = warnings;
  if (warning !== undefined) throw new Error(`${warning.location?.file}: ${warning.text}, in one script of ${files}`);
  const [map, script] = outputFiles;
  if (map === undefined || script === undefined) throw new Error(`there is no script of ${files}`);
  const sources = new SourceMap(JSON.parse(map.text));
  return {
    script: script.text,
    readable: (line, name) =>
      line.replaceAll(new RegExp(`[^\\s(]*${RegExp.escape(name)}:(\\d+):(\\d+)`, "g"), (place, row, column) => {
        const origin = sources.findOrigin(Number(row), Number(column));
        return "fileName" in origin ? `${origin.fileName}:${origin.lineNumber}:${origin.columnNumber}` : place;
      }),
  };
}

function entry(files: readonly string[]): string {
  const imports = files.map((file) => `import ${JSON.stringify(`./${file}`)};`);
  return ['import { untrack } from "./test/nested/untracked.ts";', ...imports, "untrack();"].join("\n");
}
