import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { osRelease } from "./packages.ts";

interface Source {
  readonly uri: string;
  readonly suites: readonly string[];
}

/**
 * Lines of a sources.list for `suite` from the mirrors this Debian uses itself; empty on other distributions and where none is
 * found, which leaves the choice to mmdebstrap.
 */
export function debianSources(suite: string, aptDir = "/etc/apt", os = osRelease()): string[] {
  const codename = os.VERSION_CODENAME;
  if (os.ID !== "debian" || codename === undefined) return [];
  const sources = readSources(aptDir);
  const uriOf = (wanted: string): string | undefined => sources.find(({ suites }) => suites.includes(wanted))?.uri;
  const main = uriOf(codename);
  if (main === undefined) return [];
  const security = uriOf(`${codename}-security`);
  return [
    `deb ${main} ${suite} main`,
    `deb ${main} ${suite}-updates main`,
    ...(security === undefined ? [] : [`deb ${security} ${suite}-security main`]),
  ];
}

function readSources(aptDir: string): Source[] {
  const parts = join(aptDir, "sources.list.d");
  const inParts = existsSync(parts) ? readdirSync(parts).map((name) => join(parts, name)) : [];
  const paths = [join(aptDir, "sources.list"), ...inParts].filter((path) => existsSync(path));
  const found = paths.flatMap((path) => {
    const text = readFileSync(path, "utf8");
    if (path.endsWith(".sources")) return parseStanzas(text);
    return path.endsWith(".list") ? parseLines(text) : [];
  });
  return found.filter(({ uri }) => /^https?:/.test(uri));
}

/** The one-line format: deb [options] URI SUITE COMPONENT… */
function parseLines(text: string): Source[] {
  return text.split("\n").flatMap((line) => {
    const match = /^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)/.exec(line);
    return match?.[1] === undefined || match[2] === undefined ? [] : [{ uri: match[1], suites: [match[2]] }];
  });
}

/** The format of .sources files: stanzas of fields. */
function parseStanzas(text: string): Source[] {
  const withoutComments = text.replace(/^#.*\n/gm, "");
  return withoutComments.split(/\n\s*\n/).flatMap((stanza) => {
    const field = (name: string): string[] =>
      new RegExp(`^${name}:(.*)$`, "im").exec(stanza)?.[1]?.trim().split(/\s+/) ?? [];
    if (!field("Types").includes("deb") || field("Enabled").includes("no")) return [];
    return field("URIs").map((uri) => ({ uri, suites: field("Suites") }));
  });
}
