export * from "./builder.ts";
export { ImageBuilder, type ImageBuilderDeps } from "./image-builder.ts";
