import { metric } from "../e2e/host.ts";
import { until } from "../e2e/start.ts";
import { type Content, FRESH, type Told, wrongIn } from "./content.ts";
import { type State, type Subject, stateOf } from "./operations.ts";
import { Violation } from "./violation.ts";
import type { World } from "./world.ts";

export const LIFE_S = 3600;
const CLONES = 'aenv_ready_machines{kind="clone"}';

/** A sandbox as it has to be. */
export interface Known {
  state: "running" | "paused";
  content: Content;
}

/** The sandboxes there have to be. All that it does itself is done undisturbed, and has to work. */
export class Model {
  readonly sandboxes = new Map<string, Known>();
  readonly #world: World;
  #seeds = 0;

  constructor(world: World) {
    this.#world = world;
  }

  /** A sandbox that is so, one of those there are where possible and not taken, with bytes of its own. */
  async subject(kind: Subject, taken: ReadonlySet<string | undefined>, random: () => number): Promise<string> {
    const fitting = this.#ids(stateOf(kind)).filter((id) => !taken.has(id));
    const found = fitting[Math.floor(random() * fitting.length)];
    if (found !== undefined && kind === "paused") return found;
    // The copy of one that was paused long ago may be gone.
    const isOld = found !== undefined && (kind === "running" || kind === "frozen");
    const id = isOld ? found : await this.create();
    await this.write(id);
    if (stateOf(kind) === "paused") await this.pause(id);
    if (kind === "frozen") await this.#world.reaches("aenv_frozen_sandboxes", this.#ids("running").length);
    return id;
  }

  /** Has so many sandboxes there at least. */
  async atLeast(count: number): Promise<void> {
    while (this.sandboxes.size < count) await this.create();
  }

  /** Has a clone stand ready: the next create uses it. */
  async ready(): Promise<void> {
    // The first one is made after a start without.
    if ((await metric(this.#world.server, CLONES)) === 0) await this.create();
    await this.#world.reaches(CLONES, 1);
  }

  /** Ends all, with a swap file left in which nothing is. */
  async leaveSwap(): Promise<void> {
    await this.create();
    await until("a swap file", () => this.#world.swap().length > 0);
    await this.empty();
  }

  async empty(): Promise<void> {
    for (const id of [...this.sandboxes.keys()]) await this.kill(id);
  }

  /** Builds the template anew. */
  async build(): Promise<void> {
    const status = await this.#world.build();
    if (status !== "ready") throw new Violation("wrong", `undisturbed, a build became ${status}`);
  }

  async create(): Promise<string> {
    const { sandboxID } = await this.#must<{ sandboxID: string }>("POST", "/v2/sandboxes", createBody());
    this.sandboxes.set(sandboxID, { state: "running", content: FRESH });
    return sandboxID;
  }

  /** Starts from every snapshot of a sandbox, looks at what came of it, and removes it all. Returns how many there were. */
  async useSnapshots(of: string, content: Content): Promise<number> {
    const found = await this.#must<{ snapshotID: string }[]>("GET", `/snapshots?sandboxID=${of}`);
    for (const { snapshotID } of found) {
      const body = { templateID: snapshotID, timeout: LIFE_S };
      const { sandboxID } = await this.#must<{ sandboxID: string }>("POST", "/v2/sandboxes", body);
      this.add(sandboxID, content);
      await this.verify(sandboxID);
      await this.kill(sandboxID);
      await this.#must("DELETE", `/templates/${snapshotID}`);
    }
    return found.length;
  }

  async write(id: string): Promise<void> {
    const known = this.#known(id);
    this.#seeds += 1;
    known.content = { seed: `${this.#seeds}`, writes: known.content.writes + 1 };
    await this.#world.ask(id, known.content.seed);
  }

  async pause(id: string): Promise<void> {
    await this.#must("POST", `/sandboxes/${id}/pause`);
    this.#known(id).state = "paused";
  }

  async resume(id: string): Promise<void> {
    await this.#must("POST", `/sandboxes/${id}/connect`, { timeout: LIFE_S });
    this.#known(id).state = "running";
  }

  async kill(id: string): Promise<void> {
    await this.#must("DELETE", `/sandboxes/${id}`);
    this.sandboxes.delete(id);
  }

  /** Takes in what an operation has made of its subject, which is among what it may have made of it. */
  settle(id: string, state: State): void {
    if (state === "gone") this.sandboxes.delete(id);
    else this.#known(id).state = state;
  }

  /** Takes in a new sandbox. */
  add(id: string, content: Content): void {
    this.sandboxes.set(id, { state: "running", content });
  }

  /** Every byte of a running sandbox is what it has to be. */
  async verify(id: string): Promise<void> {
    const wrong = wrongIn(await this.told(id), this.#known(id).content);
    if (wrong !== undefined) throw new Violation("wrong", `sandbox ${id}: ${wrong}`);
  }

  /** What a running sandbox tells, which has to answer. */
  async told(id: string): Promise<Told> {
    try {
      return await this.#world.ask(id);
    } catch (error) {
      throw new Violation("wrong", `sandbox ${id}: ${error instanceof Error ? error.message : error}`);
    }
  }

  #ids(state: Known["state"]): string[] {
    return [...this.sandboxes].flatMap(([id, known]) => (known.state === state ? [id] : []));
  }

  #known(id: string): Known {
    const known = this.sandboxes.get(id);
    if (known === undefined) throw new Error(`${id} is not in the model`);
    return known;
  }

  async #must<T>(method: string, path: string, body?: unknown): Promise<T> {
    const answer = await this.#world.call<T>(method, path, body);
    if (answer.status >= 200 && answer.status < 300) return answer.body as T;
    const said = "error" in answer ? String(answer.error) : JSON.stringify(answer.body);
    throw new Violation("wrong", `undisturbed, ${method} ${path} answered ${answer.status}: ${said}`);
  }
}

export function createBody(): unknown {
  return { templateID: "chaos", timeout: LIFE_S };
}
