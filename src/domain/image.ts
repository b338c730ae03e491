/** The parts of an OCI image configuration that matter to who runs it. */
export interface ImageConfig {
  readonly env: Readonly<Record<string, string>>;
  readonly entrypoint: readonly string[];
  readonly cmd: readonly string[];
  readonly user: string;
  readonly workingDir: string;
}

/** An image on this node. */
export interface Image {
  /** `sha256:` and 64 hex. */
  readonly digest: string;
  readonly sizeBytes: number;
  readonly config: ImageConfig;
  readonly layers: number;
}

/** What a build starts from. */
export type ImageSource =
  | {
      readonly kind: "registry";
      readonly reference: string;
      readonly credentials?: { readonly username: string; readonly password: string };
    }
  /** Already on the node, by digest (`sha256:…`). */
  | { readonly kind: "local"; readonly digest: string };

export interface PullProgress {
  readonly phase: "resolving" | "downloading" | "converting" | "done";
  readonly doneBytes: number;
  /** 0 while unknown. */
  readonly totalBytes: number;
  readonly layersDone: number;
  readonly layersTotal: number;
}
