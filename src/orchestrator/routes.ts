import type { Route, RouteChange, RouteSource, SandboxId } from "#domain";

/**
 * The node's route table. A slot's address must not go to another sandbox while a forwarder may still send the old one's
 * traffic there, so whoever gives a slot back waits for `settled` first.
 */
export class Routes implements RouteSource {
  readonly #routes = new Map<SandboxId, Route>();
  readonly #listeners = new Set<(change: RouteChange) => void>();
  /** forwarder → revision it has taken in. */
  readonly #forwarders = new Map<string, number>();
  /** Sandboxes that are to stand still, and who wants to hear that they are in use. */
  readonly #offers = new Map<SandboxId, () => void>();
  #waiting: { readonly revision: number; readonly resolve: () => void }[] = [];
  #revision = 0;

  get revision(): number {
    return this.#revision;
  }

  get(id: SandboxId): Route | undefined {
    return this.#routes.get(id);
  }

  set(route: Route): number {
    this.#routes.set(route.sandboxId, route);
    return this.#publish({ sandboxId: route.sandboxId, route });
  }

  remove(id: SandboxId): number {
    return this.#routes.delete(id) ? this.#publish({ sandboxId: id }) : this.#revision;
  }

  snapshot(): { readonly revision: number; readonly routes: readonly Route[] } {
    return { revision: this.#revision, routes: [...this.#routes.values()] };
  }

  subscribe(listener: (change: RouteChange) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  attach(forwarder: string): void {
    if (!this.#forwarders.has(forwarder)) this.#forwarders.set(forwarder, -1);
  }

  acknowledge(forwarder: string, revision: number, busy: readonly SandboxId[] = []): void {
    for (const id of busy) this.#offers.get(id)?.();
    const before = this.#forwarders.get(forwarder);
    if (before === undefined || revision <= before) return;
    this.#forwarders.set(forwarder, revision);
    this.#wake();
  }

  detach(forwarder: string): void {
    this.#forwarders.delete(forwarder);
    this.#wake();
  }

  /** Publishes a route by which nobody sends without asking first. Resolves true when that holds for all forwarders, false when the
   *  sandbox is in use, or one of them says nothing in time. Precondition: none is offered for this sandbox. */
  async offerRest(route: Route, withinMs: number): Promise<boolean> {
    const busy = Promise.withResolvers<boolean>();
    this.#offers.set(route.sandboxId, () => busy.resolve(false));
    const timer = setTimeout(() => busy.resolve(false), withinMs);
    try {
      return await Promise.race([this.settled(this.set(route)).then(() => true), busy.promise]);
    } finally {
      clearTimeout(timer);
      this.#offers.delete(route.sandboxId);
    }
  }

  /** Resolves when no forwarder sends by anything older than this revision. */
  settled(revision: number): Promise<void> {
    if (this.#isSettled(revision)) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push({ revision, resolve }));
  }

  #publish(change: Omit<RouteChange, "revision">): number {
    this.#revision += 1;
    for (const listener of this.#listeners) listener({ ...change, revision: this.#revision });
    return this.#revision;
  }

  #isSettled(revision: number): boolean {
    return [...this.#forwarders.values()].every((seen) => seen >= revision);
  }

  #wake(): void {
    const ready = this.#waiting.filter((waiter) => this.#isSettled(waiter.revision));
    this.#waiting = this.#waiting.filter((waiter) => !ready.includes(waiter));
    for (const waiter of ready) waiter.resolve();
  }
}
