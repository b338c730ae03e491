import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { describe, test } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));

/**
 * The direction of imports: a room under src/ → the rooms it may know. The control side (api, proxy, cluster, builder) and the
 * node side (orchestrator, driver, network, store, guest, telemetry) meet only in domain. Everybody may import generated code, except domain.
 */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  domain: [],
  lib: [],
  catalog: ["domain", "lib"],
  store: ["domain", "lib"],
  network: ["domain", "lib"],
  guest: ["domain", "lib"],
  telemetry: ["domain", "lib"],
  driver: ["domain", "lib"],
  doctor: ["domain", "lib", "driver"],
  orchestrator: ["domain", "lib", "catalog", "store", "network", "guest", "telemetry", "driver"],
  builder: ["domain", "lib", "catalog"],
  cluster: ["domain", "lib", "catalog"],
  proxy: ["domain", "lib", "cluster"],
  api: ["domain", "lib", "catalog", "cluster", "builder"],
  cli: ["domain", "lib"],
  console: ["domain", "lib"],
};

/** Modules right under src/ ("") and those of `server` put rooms together: they may enter all of them, also by their paths. */
const ASSEMBLY = ["", "server"];
/** Of those only the server may name an implementation of a contract. */
const NAMES_IMPLEMENTATIONS = "server";
const IMPLEMENTATIONS = ["#driver/fake", "#driver/gvisor", "#driver/firecracker"];

/** Who may read the environment, and why it is not config. */
const READS_ENV: Readonly<Record<string, string>> = {
  "src/config.ts": "the one typed configuration",
  "src/cli/io.ts": "the command line client has no server configuration",
  "src/server/api-key.ts": "the first key is a secret, no field of the configuration",
  "src/server/faults.ts": "faults are for tests: no configuration can arm them",
};
const STARTS_PROCESSES = ["src/lib/spawn.ts"];

const LONG_LINES = 300;
const LIMIT_LINES = 500;

interface Source {
  /** From the root of the checkout: src/driver/driver.ts. */
  readonly path: string;
  readonly text: string;
  /** Folder under src/, "" for modules right under it. */
  readonly room: string;
  /** Test code may reach further: fakes, suites and helpers of other rooms. */
  readonly isTest: boolean;
}

const sources: readonly Source[] = readdirSync(join(root, "src"), { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && entry.name.endsWith(".ts"))
  .map((entry) => {
    const path = relative(root, join(entry.parentPath, entry.name));
    const parts = path.split("/");
    return {
      path,
      text: readFileSync(join(root, path), "utf8"),
      room: parts.length > 2 ? (parts[1] ?? "") : "",
      isTest: /\.test\.ts$|(?:^|\/)testing(?:\.ts$|\/)/.test(path),
    };
  })
  .filter(({ room }) => room !== "gen");

const product = sources.filter(({ isTest }) => !isTest);

describe("architecture", () => {
  test("there are sources, and every room has its line", () => {
    assert.ok(sources.length > 20, `only ${sources.length} sources were found`);
    const unknown = new Set(
      sources.map(({ room }) => room).filter((room) => !ASSEMBLY.includes(room) && !(room in MAY_IMPORT)),
    );
    assert.deepEqual([...unknown], [], "add the new room to MAY_IMPORT and to docs/architecture.md");
  });

  test("imports go one way", () => {
    const wrong = product.flatMap((source) =>
      importsOf(source).flatMap((specifier) => {
        const target = roomOf(specifier);
        if (ASSEMBLY.includes(source.room) || target === undefined || target === source.room) return [];
        if (target === "gen") return source.room === "domain" ? [`${source.path} → ${specifier}`] : [];
        return MAY_IMPORT[source.room]?.includes(target) ? [] : [`${source.path} → ${specifier}`];
      }),
    );
    assert.deepEqual(wrong, []);
  });

  test("a room is entered by its door", () => {
    const wrong = sources.flatMap((source) =>
      importsOf(source)
        .filter((specifier) => specifier.startsWith("."))
        .filter((specifier) => {
          const target = relative(root, join(root, dirname(source.path), specifier));
          if (source.isTest && /(?:^|\/)testing(?:\.ts$|\/)/.test(target)) return false;
          return !ASSEMBLY.includes(source.room) && !target.startsWith(`src/${source.room}/`);
        })
        .map((specifier) => `${source.path} → ${specifier}`),
    );
    assert.deepEqual(wrong, [], "use the doors of package.json's imports (#domain, #lib/…)");
  });

  test("every door of package.json leads somewhere or to a room not built yet", () => {
    const { imports } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
      imports: Record<string, string>;
    };
    const used = new Set(sources.flatMap(importsOf).filter((specifier) => specifier.startsWith("#")));
    const doors = Object.keys(imports);
    const closed = [...used].filter(
      (specifier) =>
        !doors.some((door) => (door.endsWith("*") ? specifier.startsWith(door.slice(0, -1)) : specifier === door)),
    );
    assert.deepEqual(closed, []);
  });

  test("only the assembly names implementations", () => {
    const wrong = product
      .filter(({ room }) => room !== NAMES_IMPLEMENTATIONS)
      .flatMap((source) =>
        importsOf(source)
          .filter((specifier) => IMPLEMENTATIONS.includes(specifier))
          .map((specifier) => `${source.path} → ${specifier}`),
      );
    assert.deepEqual(wrong, []);
  });

  test("a driver knows none of the others", () => {
    const ofDriver = /^src\/driver\/(fake|firecracker|gvisor)\//;
    const wrong = sources.flatMap((source) => {
      const [, own] = ofDriver.exec(source.path) ?? [];
      return importsOf(source)
        .map((specifier) => relative(root, join(root, dirname(source.path), specifier)))
        .filter((target) => own !== undefined && ofDriver.test(target) && ofDriver.exec(target)?.[1] !== own)
        .map((target) => `${source.path} → ${target}`);
    });
    assert.deepEqual(wrong, [], "what a suite of the nested machine depends on leaves the other drivers out");
  });

  test("processes are started in one place", () => {
    const wrong = product.filter((source) =>
      importsOf(source).some((specifier) => /^(?:node:)?child_process$/.test(specifier)),
    );
    assert.deepEqual(
      wrong.map(({ path }) => path).filter((path) => !STARTS_PROCESSES.includes(path)),
      [],
      "use a CommandRunner (#lib/run): servers start processes through the keeper",
    );
  });

  test("the environment is read in the configuration", () => {
    const wrong = product.filter(({ path, text }) => /\bprocess\.env\b/.test(text) && !(path in READS_ENV));
    assert.deepEqual(
      wrong.map(({ path }) => path),
      [],
    );
  });

  test("files stay small", (context) => {
    const lengths = sources.map(({ path, text }) => ({ path, lines: text.split("\n").length - 1 }));
    for (const { path, lines } of lengths)
      if (lines > LONG_LINES) context.diagnostic(`long: ${path} has ${lines} lines`);
    assert.deepEqual(
      lengths.filter(({ lines }) => lines > LIMIT_LINES),
      [],
      `a file has at most ${LIMIT_LINES} lines`,
    );
  });
});

/** Specifiers of all static, re-exporting and dynamic imports. */
function importsOf({ text }: Pick<Source, "text">): readonly string[] {
  const statements = /(?:^|\n)\s*(?:import|export)\b[^;'"]*?\bfrom\s*["']([^"']+)["']/g;
  const bare = /(?:^|\n)\s*import\s*["']([^"']+)["']/g;
  const dynamic = /\bimport\(\s*["']([^"']+)["']/g;
  return [statements, bare, dynamic].flatMap((pattern) =>
    [...text.matchAll(pattern)].flatMap(([, specifier]) => specifier ?? []),
  );
}

/** The room a door leads to; undefined for what is not ours and for relative imports, which have a test of their own. */
function roomOf(specifier: string): string | undefined {
  return specifier.startsWith("#") ? specifier.slice(1).split("/")[0] : undefined;
}
