export { Cgroups, openCgroups } from "./cgroups.ts";
export type { CgroupStats } from "./limits.ts";
