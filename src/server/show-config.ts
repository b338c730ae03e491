import { loadConfig } from "../config.ts";

/** Prints every field with its value and source. There are no secrets among them. */
export async function run(argv: readonly string[]): Promise<number> {
  const { config, sources } = loadConfig(argv);
  const rows = Object.entries(config).map(([field, value]) => [
    field,
    JSON.stringify(value),
    sources[field as keyof typeof config] ?? "default",
  ]);
  const widths = [0, 1].map((column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  for (const [field = "", value = "", source = ""] of rows) {
    process.stdout.write(`${field.padEnd(widths[0] ?? 0)}  ${value.padEnd(widths[1] ?? 0)}  ${source}\n`);
  }
  return 0;
}
