import { readFileSync } from "node:fs";

/** Resident memory of a process of this host. */
export function rssKib(pid: number): number {
  return kib(readFileSync(`/proc/${pid}/status`, "utf8"), "VmRSS");
}

/** What the kernel holds in its own small objects, sockets among them. */
export function slabKib(): number {
  return kib(readFileSync("/proc/meminfo", "utf8"), "Slab");
}

/** What of this host's memory is in use, and what could be had without swapping. */
export function hostMemoryKib(): { readonly used: number; readonly available: number } {
  const text = readFileSync("/proc/meminfo", "utf8");
  const available = kib(text, "MemAvailable");
  return { used: kib(text, "MemTotal") - available, available };
}

function kib(text: string, field: string): number {
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB`, "m").exec(text)?.[1]);
}
