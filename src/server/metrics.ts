import type { NodeStats } from "#domain";

export interface MetricsInput {
  readonly stats: NodeStats;
  readonly freeBytes: number;
  readonly uptimeS: number;
}

/** Prometheus' text format. */
export function metricsText({ stats, freeBytes, uptimeS }: MetricsInput): string {
  const { ready } = stats;
  const rows: readonly [name: string, help: string, values: readonly [labels: string, value: number][]][] = [
    [
      "aenv_sandboxes",
      "Sandboxes on this node",
      [
        ['{state="running"}', stats.running],
        ['{state="paused"}', stats.paused],
      ],
    ],
    ["aenv_frozen_sandboxes", "Of the running sandboxes, those that are idle and stand still", [["", stats.frozen]]],
    [
      "aenv_slots",
      "Network slots",
      [
        ['{state="free"}', stats.slotsFree],
        ['{state="all"}', stats.slotsTotal],
      ],
    ],
    [
      "aenv_ready_machines",
      "Frozen machines: clones for sandboxes to come, copies of paused ones",
      [
        ['{kind="clone"}', ready.clones],
        ['{kind="copy"}', ready.copies],
      ],
    ],
    ["aenv_ready_memory_bytes", "Memory that these machines hold", [["", ready.memoryBytes]]],
    [
      "aenv_starts_total",
      "Sandboxes started from a template, by what was there for them",
      [
        ['{from="clone"}', ready.hotStarts],
        ['{from="snapshot"}', ready.coldStarts],
      ],
    ],
    [
      "aenv_resumes_total",
      "Paused sandboxes resumed, by what was there of them",
      [
        ['{from="copy"}', ready.warmResumes],
        ['{from="checkpoint"}', ready.coldResumes],
      ],
    ],
    ["aenv_host_free_memory_bytes", "Memory of the host that is free", [["", freeBytes]]],
    ["aenv_uptime_seconds", "Since aenvd started", [["", Math.round(uptimeS)]]],
    ["aenv_process_resident_memory_bytes", "Resident memory of aenvd", [["", process.memoryUsage.rss()]]],
  ];
  return rows
    .map(([name, help, values]) => {
      const samples = values.map(([labels, value]) => `${name}${labels} ${value}\n`).join("");
      return `# HELP ${name} ${help}\n# TYPE ${name} ${typeOf(name)}\n${samples}`;
    })
    .join("");
}

function typeOf(name: string): "counter" | "gauge" {
  return name.endsWith("_total") ? "counter" : "gauge";
}
