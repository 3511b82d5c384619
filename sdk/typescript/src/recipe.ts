// Recipe of a template, in code instead of a Dockerfile.
import { BadRequestError } from "./errors.js";
import type { ReadyCheck, TemplateBuildStep } from "./template-builds.js";

/**
 * Steps of a template build, in order. Each method returns a longer recipe and leaves this one as it is.
 *
 * ```ts
 * const recipe = new TemplateRecipe("python:3.12").run("pip install flask").copy(["."], "/app");
 * await client.templates.build("my-app", { directory: "path/to/dir", recipe });
 * ```
 */
export class TemplateRecipe {
  /** A template, or a container image such as `python:3.12`. */
  readonly base: string;
  /** The steps so far. */
  readonly steps: readonly TemplateBuildStep[] = [];
  /** Command that runs in every sandbox from the start. */
  readonly startCommand: string | undefined;
  /** Check that the start command is ready. */
  readonly ready: ReadyCheck | undefined;

  constructor(base = "base") {
    if (typeof base !== "string" || !/^\S+$/.test(base)) {
      throw new BadRequestError(`base ${JSON.stringify(base)} is not the name of a template or image`);
    }
    this.base = base;
  }

  #with(change: Partial<Pick<TemplateRecipe, "steps" | "startCommand" | "ready">>): TemplateRecipe {
    return Object.assign(new TemplateRecipe(this.base), this, change);
  }

  #then(step: TemplateBuildStep): TemplateRecipe {
    return this.#with({ steps: [...this.steps, step] });
  }

  /**
   * Run a command. It finds `secrets` of the build in `/run/secrets`, by their ids. `noCache` runs it and the
   * next steps though an earlier build did.
   */
  run(
    command: string,
    options: { user?: string; secrets?: string[]; noCache?: boolean } = {},
  ): TemplateRecipe {
    return this.#then({ run: { ...options, command } });
  }

  /** Copy files of the build directory. `mode` is octal, such as `"755"`. */
  copy(
    sources: string[],
    dest: string,
    options: { owner?: string; mode?: string; noCache?: boolean } = {},
  ): TemplateRecipe {
    return this.#then({ copy: { ...options, sources, dest } });
  }

  /** Set environment variables. `$NAME` in a value is replaced. */
  env(variables: Record<string, string>): TemplateRecipe {
    return this.#then({ env: { ...variables } });
  }

  /** Set the working directory, and create it. */
  workdir(path: string): TemplateRecipe {
    return this.#then({ workdir: path });
  }

  /** Set the user of the next steps and of sandboxes. */
  user(name: string): TemplateRecipe {
    return this.#then({ user: name });
  }

  /** Run a command in every sandbox from the start. */
  start(command: string, options: { ready?: ReadyCheck } = {}): TemplateRecipe {
    return this.#with({ startCommand: command, ready: options.ready });
  }
}
