// Templates and their builds.
import { BadRequestError } from "./errors.js";
import { type JsonObject, needText, type WireRecord, withCamelCase } from "./models.js";
import type { TemplateRecipe } from "./recipe.js";
import { given } from "./wire.js";

/** A template that sandboxes start from. */
export type TemplateInfo = WireRecord<{
  name: string;
  rootfs_path?: string;
  size_bytes?: number;
  cpu?: number;
  memory_mb?: number;
  is_global?: boolean;
  workspace?: string;
  label?: string;
  description?: string;
  category?: string;
  base?: string;
  tools?: string[];
  meta?: Record<string, unknown>;
  /** Other names it answers to. */
  aliases?: string[];
  /** `ready`, `baking`, `unbaked` or `failed`. */
  status?: string;
  error?: string;
  /** The volume that each sandbox of it comes with. */
  volume?: JsonObject;
  /** Version that was built or published: `build_id`, `created_at`, `tags` and `config`. */
  version?: JsonObject;
  /** Sharing of your template: `public` and `workspaces`. */
  sharing?: JsonObject;
  /** The workspace that shares it with you. */
  shared_by?: string;
}>;

/** A template build and its progress; any status except `done` and `failed` means that it is in progress. */
export type TemplateBuild = WireRecord<{
  id: string;
  name: string;
  status: string;
  error?: string;
  started_at?: string;
  ended_at?: string;
  size_mb?: number;
  bytes?: number;
  image_ref?: string;
  /** Current step of the build. */
  phase?: string;
  log?: string[];
  /** Tags that the version gets, or has. */
  tags?: string[];
  /** Steps in all, once they are known. */
  steps?: number;
  /** Steps that came from an earlier build. */
  cached_steps?: number;
  /** Cause of a failure on the host; operator keys only. */
  detail?: string;
  /**
   * Place of the failure: `step`, `line`, `instruction`, `exit_code` and the last `output`; with `debug`, the
   * `snapshot_id` of its machine and the `config` of its commands.
   */
  failure?: JsonObject;
  /** The build that a rebuild repeats. */
  rebuild_of?: string;
  /** What a rebuild changed: base, size and `packages`, each with its value before and after. */
  changes?: JsonObject;
}>;

/** Who else may use a template: the workspaces of that name, or all of them. */
export interface ShareTemplateOptions {
  workspaces?: string[];
  public?: boolean;
}

/** A build step that is not text of a Dockerfile. `noCache` also holds for the steps that follow. */
export type TemplateBuildStep =
  | { run: { command: string; user?: string; secrets?: string[]; noCache?: boolean } }
  | { copy: { sources: string[]; dest: string; owner?: string; mode?: string; noCache?: boolean } }
  | { env: Record<string, string> }
  | { workdir: string }
  | { user: string };

/** How to tell that a start command is ready. */
export type ReadyCheck =
  | { port: number }
  | { url: string }
  | { file: string }
  | { process: string }
  | { command: string };

/** A step as the API takes it. */
export function stepRecord(step: TemplateBuildStep): unknown {
  if ("run" in step) {
    const { noCache, ...run } = step.run;
    return { run: given({ ...run, no_cache: noCache }) };
  }
  if ("copy" in step) {
    const { noCache, ...copy } = step.copy;
    return { copy: given({ ...copy, no_cache: noCache }) };
  }
  return step;
}

/** Specification of a build. */
export interface BuildTemplateOptions {
  /** A local directory whose files the Dockerfile can copy, but for those that its `.dockerignore` excludes. */
  directory?: string;
  /** Base, steps and start command from code, instead of a Dockerfile. */
  recipe?: TemplateRecipe;
  /** Content of the Dockerfile. Default: the one in `directory`. */
  dockerfile?: string;
  /** Steps that follow the Dockerfile. */
  steps?: TemplateBuildStep[];
  /** Tags of this version, besides `latest`. */
  tags?: string[];
  /** Leave `latest` as it is; only `tags` point to this version. */
  keepLatest?: boolean;
  /** Values of `ARG`s. */
  args?: Record<string, string>;
  /** Stage to build. Default: the last. */
  target?: string;
  /** Command that runs in every sandbox from the start. */
  startCommand?: string;
  /** Check that the start command is ready. */
  ready?: ReadyCheck;
  /** Virtual processors of its sandboxes. */
  cpu?: number;
  /** Memory of its sandboxes in MiB, in steps of 128. */
  memoryMb?: number;
  /** Run every step, though an earlier build did. */
  noCache?: boolean;
  /** Credentials for the registries of images in `FROM`; with `awsRegion`, an access key for Amazon ECR. */
  registries?: { registry: string; username: string; password: string; awsRegion?: string }[];
  /** Registries to reach over HTTP instead of HTTPS, such as `registry.local:5000`. */
  plainHttp?: string[];
  /** Contents by id for `RUN --mount=type=secret,id=ID`. No layer has them. */
  secrets?: Record<string, string>;
  /** Keep the files, secrets and credentials, so that the template can be rebuilt. */
  keepInputs?: boolean;
  /** Keep the machine of a step that fails for an hour: its snapshot is `failure.snapshot_id`. */
  debug?: boolean;
}

/** Credentials as the API takes them. */
export function credentialsRecord(one: NonNullable<BuildTemplateOptions["registries"]>[number]): unknown {
  const { awsRegion, ...login } = one;
  return given({ ...login, aws_region: awsRegion });
}

/** The options with the settings of the recipe, if there is one. */
export function withRecipe(options: BuildTemplateOptions): BuildTemplateOptions {
  const { recipe, ...others } = options;
  if (recipe === undefined) return options;
  if ([others.dockerfile, others.steps, others.startCommand, others.ready].some((one) => one !== undefined)) {
    throw new BadRequestError("a recipe has its own base, steps, start command and ready check");
  }
  const { base, steps, startCommand, ready } = recipe;
  const started = startCommand === undefined ? {} : { startCommand };
  const checked = ready === undefined ? {} : { ready };
  return { ...others, ...started, ...checked, dockerfile: `FROM ${base}\n`, steps: [...steps] };
}

/** A template from its record. */
export function templateOf(record: JsonObject): TemplateInfo {
  return withCamelCase({ ...record, name: needText(record, "name", "a template") });
}

/** A build from its record. */
export function buildOf(record: JsonObject): TemplateBuild {
  const id = needText(record, "id", "a build");
  const text = { name: String(record.name ?? ""), status: String(record.status ?? "") };
  return withCamelCase({ ...record, id, ...text });
}
