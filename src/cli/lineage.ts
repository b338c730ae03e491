import type { ListedSandbox, SnapshotInfo, SnapshotLineage, Template, TemplateDetail } from "./api.ts";
import { printable } from "./output.ts";

/** Three columns each; nobody follows a line through more. */
const DRAWN_LEVELS = 64;

/** What the server says of where things come from. */
export interface Origins {
  readonly sandboxes: readonly ListedSandbox[];
  readonly snapshots: readonly SnapshotInfo[];
  readonly templates: readonly Template[];
  /** Of those with several builds. */
  readonly details: readonly TemplateDetail[];
}

/** A sandbox, or a state that sandboxes start from, and what came of it. */
export interface LineageNode {
  readonly kind: "template" | "snapshot" | "sandbox";
  /** Of a sandbox: its id. Else of the captured state. */
  readonly id: string;
  /** What a create takes; of one that no tag points to any more, its template. Absent: unknown. */
  readonly name?: string;
  readonly templateID?: string;
  /** Of a sandbox: running, paused. Of the others: whether something can still be started from it. */
  readonly state: "running" | "paused" | "ready" | "replaced" | "deleted";
  readonly children: readonly LineageNode[];
}

type Made = Omit<LineageNode, "children"> & {
  /** Where it stands below, the nearest first; the first that is there counts. */
  readonly from: readonly (string | undefined)[];
};

/** Everything that runs, is paused or was captured, below what it comes from. A template that nothing came of is left out. */
export function buildForest(origins: Origins): LineageNode[] {
  const nodes = new Map<string, Made>();
  for (const made of [...statesOf(origins), ...origins.sandboxes.map(sandboxNode)]) {
    if (!nodes.has(made.id)) nodes.set(made.id, made);
  }
  // A state that is gone still holds together what came of it.
  for (const { from } of [...nodes.values()]) {
    const last = from.at(-1);
    if (last !== undefined && !nodes.has(last))
      nodes.set(last, { kind: "snapshot", id: last, state: "deleted", from: [] });
  }
  // Step by step: what is captured of what was captured, again and again, is deeper than calls may be.
  const grown = new Map(
    [...nodes].map(([id, { from: _, ...made }]) => [id, { ...made, children: [] as LineageNode[] }]),
  );
  const roots: LineageNode[] = [];
  for (const [id, node] of grown) {
    const parent = nodes.get(id)?.from.find((each) => each !== undefined && grown.has(each));
    const siblings = parent === undefined ? roots : grown.get(parent)?.children;
    siblings?.push(node);
  }
  return roots.filter(({ kind, children }) => kind !== "template" || children.length > 0);
}

/** The trees cut down to what `wanted` (an id or a name) comes from and leads to; undefined: it is in none. */
export function lineOf(forest: readonly LineageNode[], wanted: string): LineageNode[] | undefined {
  interface Seen {
    readonly node: LineageNode;
    readonly parent?: LineageNode;
  }
  const seen: Seen[] = forest.map((node) => ({ node }));
  // Grows while it is gone through; below what is found everything is shown.
  for (const { node } of seen) {
    if (!isCalled(node, wanted)) for (const child of node.children) seen.push({ node: child, parent: node });
  }
  const shown = new Map<LineageNode | undefined, LineageNode[]>();
  for (const { node, parent } of seen.reverse()) {
    const children = shown.get(node)?.reverse();
    if (children === undefined && !isCalled(node, wanted)) continue;
    const cut = children === undefined ? node : { ...node, children };
    const siblings = shown.get(parent);
    if (siblings === undefined) shown.set(parent, [cut]);
    else siblings.push(cut);
  }
  return shown.get(undefined)?.reverse();
}

/** One line for each, as a tree of lines. What is deeper than can be drawn stands at the left again, with its level. */
export function renderForest(forest: readonly LineageNode[]): string {
  const lines: string[] = [];
  // The next one last.
  const pending = forest.map((node) => ({ node, branch: "", indent: "", level: 0 })).reverse();
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    const { node, branch, indent, level } = next;
    lines.push(`${branch}${describe(node)}`);
    const left = level < DRAWN_LEVELS ? indent : `[${level + 1}] `;
    for (const child of node.children.toReversed()) {
      const isLast = child === node.children.at(-1);
      const [corner, below] = isLast ? ["└─ ", "   "] : ["├─ ", "│  "];
      pending.push({ node: child, branch: `${left}${corner}`, indent: `${indent}${below}`, level: level + 1 });
    }
  }
  return lines.join("\n");
}

function* statesOf({ snapshots, templates, details }: Origins): Generator<Made> {
  const snapshotTemplates = new Set(snapshots.map(({ templateID }) => templateID));
  for (const { templateID, names, builds } of details) {
    const isSnapshot = snapshotTemplates.has(templateID);
    const called = names?.[0] ?? templateID;
    for (const { lineage, tags = [] } of builds) {
      if (lineage === undefined) continue;
      const name = tags[0] === undefined ? called : nameOf(called, tags.includes("default") ? "default" : tags[0]);
      const state = tags.length > 0 ? "ready" : "replaced";
      yield { kind: isSnapshot ? "snapshot" : "template", ...stateNode(lineage), name, templateID, state };
    }
  }
  for (const { lineage, snapshotID, names, templateID } of snapshots) {
    const name = names.length === 0 ? snapshotID : snapshotID.slice(snapshotID.indexOf("/") + 1);
    yield { kind: "snapshot", ...stateNode(lineage), name: name.replace(/:default$/, ""), templateID, state: "ready" };
  }
  for (const { lineage, names, templateID } of templates) {
    if (lineage === undefined) continue;
    yield { kind: "template", ...stateNode(lineage), name: names?.[0] ?? templateID, templateID, state: "ready" };
  }
}

function stateNode({ snapshot, parent, sandboxID }: SnapshotLineage) {
  return { id: snapshot, from: parent === undefined ? [] : [sandboxID, parent] };
}

function sandboxNode({ sandboxID, templateID, state, lineage }: ListedSandbox): Made {
  return { kind: "sandbox", id: sandboxID, templateID, state, from: [lineage?.forkedFrom, lineage?.snapshot] };
}

function nameOf(called: string, tag: string): string {
  return tag === "default" ? called : `${called}:${tag}`;
}

function isCalled({ kind, id, name, templateID }: LineageNode, wanted: string): boolean {
  const plain = wanted
    .toLowerCase()
    .replace(/^[^/]*\//, "")
    .replace(/:default$/, "");
  return id === plain || (kind !== "sandbox" && (name === plain || templateID === plain));
}

function describe({ kind, id, name, state }: LineageNode): string {
  if (kind === "sandbox") return printable(`${id}  ${state}`);
  return printable(`${name ?? id}  ${kind}${state === "ready" ? "" : `, ${state}`}`);
}
