/** What a crash must never do. lost: something that was there, or was promised, is gone. doubled: something is there twice, or
 *  nobody asked for it. wrong: bytes or states are not what they have to be. orphan: something of the server belongs to nothing. */
export type Harm = "lost" | "doubled" | "wrong" | "orphan";

export class Violation extends Error {
  readonly harm: Harm;
  constructor(harm: Harm, message: string) {
    super(`${harm}: ${message}`);
    this.name = "Violation";
    this.harm = harm;
  }
}
