import type { NodeStats } from "#domain";

export interface MetricsInput {
  readonly stats: NodeStats;
  readonly freeBytes: number;
  readonly uptimeS: number;
}

/** Prometheus' text format. */
export function metricsText({ stats, freeBytes, uptimeS }: MetricsInput): string {
  const rows: readonly [name: string, help: string, values: readonly [labels: string, value: number][]][] = [
    [
      "aenv_sandboxes",
      "Sandboxes on this node",
      [
        ['{state="running"}', stats.running],
        ['{state="paused"}', stats.paused],
      ],
    ],
    [
      "aenv_slots",
      "Network slots",
      [
        ['{state="free"}', stats.slotsFree],
        ['{state="all"}', stats.slotsTotal],
      ],
    ],
    ["aenv_host_free_memory_bytes", "Memory of the host that is free", [["", freeBytes]]],
    ["aenv_uptime_seconds", "Since aenvd started", [["", Math.round(uptimeS)]]],
    ["aenv_process_resident_memory_bytes", "Resident memory of aenvd", [["", process.memoryUsage.rss()]]],
  ];
  return rows
    .map(([name, help, values]) => {
      const samples = values.map(([labels, value]) => `${name}${labels} ${value}\n`).join("");
      return `# HELP ${name} ${help}\n# TYPE ${name} gauge\n${samples}`;
    })
    .join("");
}
