/**
 * One sandbox: commands, files, forks, sleep.
 *
 * The object is a handle. Its fields are what the server said last; `refresh` asks again. Calls that
 * need the machine (exec, files, fork) wake a hibernated one on the server's side.
 */

import { checked } from "./check.js";
import type { PandaStack } from "./client.js";
import { runCommand, type SandboxExecOptions, streamCommand } from "./commands.js";
import { CodeContext } from "./contexts.js";
import { BadRequestError, NotFoundError } from "./errors.js";
import { type ExecStream, type OutputCallbacks, serverEvents } from "./exec-stream.js";
import { type Candidate, explore, type ExploreOptions, type ExploreResult } from "./explore.js";
import { SandboxFilesystem } from "./filesystem.js";
import type { AbortSignal } from "./globals.js";
import {
  type Checkpoints,
  checkpointsOf,
  type Egress,
  type ExecResult,
  type JsonObject,
  type Keep,
  type LifecycleInfo,
  type LineageInfo,
  needText,
  type NetworkPolicy,
  networkOf,
  type OnTimeout,
  parsePort,
  parseSandbox,
  type PortInfo,
  type PromoteResult,
  type SandboxEvent,
  type SandboxMetrics,
  type SandboxInfo,
  type SnapshotInfo,
  withCamelCase,
} from "./models.js";
import { previewUrl } from "./preview.js";
import { printed } from "./printed.js";
import { Process, startCall, type StartOptions } from "./process.js";
import { asyncDispose, uniqueKey } from "./runtime.js";
import { eventPayload, type ServerEvent } from "./sse.js";
import { Terminal, type TerminalOptions } from "./terminal.js";
import type { Transport } from "./transport.js";
import {
  type Call,
  type Command,
  type ExecOptions,
  get,
  given,
  MACHINE_MS_MAX,
  post,
  sandboxPath,
  STREAM_IDLE_MS_MAX,
} from "./wire.js";

/** Options of `setLifecycle`. */
export interface LifecycleChange {
  /** New time to live, from now. */
  ttlSeconds?: number;
  /** No end; it sleeps when idle. */
  persistent?: boolean;
  /** Idle seconds after which it sleeps, when persistent. */
  idleTimeoutSeconds?: number;
  /** Action at the end of its lifetime. */
  onTimeout?: OnTimeout;
  /** Snapshots that the platform takes by itself. */
  checkpoints?: Checkpoints;
}

/** Options of `snapshot`. */
export interface SnapshotOptions {
  /** Unique in the workspace; can be used instead of the ID. */
  name?: string;
  /** Take the name from the snapshot that has it. */
  replaceName?: boolean;
  /** Labels. */
  metadata?: Record<string, string>;
  /** Delete it after so long. */
  ttlSeconds?: number;
  /** Delete the oldest unnamed snapshots of this sandbox past this number. */
  keepLast?: number;
}

/** A sandbox: a virtual machine with its own kernel. */
export class Sandbox {
  /** The sandbox's files. */
  readonly filesystem: SandboxFilesystem;
  /** `commands.run` is an alias of {@link exec}. */
  readonly commands: { run: (cmd: Command, options?: SandboxExecOptions) => Promise<ExecResult> };
  readonly #client: PandaStack;
  readonly #transport: Transport;
  #info: SandboxInfo;

  /** @internal Made by `client.sandboxes`. */
  constructor(info: SandboxInfo, client: PandaStack, transport: Transport) {
    this.#info = info;
    this.#client = client;
    this.#transport = transport;
    this.filesystem = new SandboxFilesystem(transport, info.id);
    this.commands = { run: (cmd, options) => this.exec(cmd, options) };
  }

  /** The server's record, as it came last. */
  get info(): SandboxInfo {
    return this.#info;
  }
  /** The sandbox's id; also the credential of its previews. */
  get id(): string {
    return this.#info.id;
  }
  /** Its name, which is unique in the workspace. */
  get name(): string | undefined {
    return this.#info.name;
  }
  /** The template it was created from. */
  get template(): string {
    return this.#info.template;
  }
  /** `creating`, `running`, `paused`, `hibernated`, `stopping`, `failed` or `deleted`. */
  get status(): string {
    return this.#info.status;
  }
  /** Processors. */
  get cpu(): number {
    return this.#info.cpu;
  }
  /** Memory in MiB. */
  get memoryMb(): number {
    return this.#info.memory_mb;
  }
  /** Labels set at creation. */
  get metadata(): Record<string, string> {
    return this.#info.metadata;
  }
  /** Whether it has no time limit. */
  get persistent(): boolean {
    return this.#info.persistent === true;
  }
  /** When it was created. */
  get createdAt(): string | undefined {
    return this.#info.created_at;
  }
  /** Milliseconds until the machine was ready. */
  get bootMs(): number | undefined {
    return this.#info.boot_ms;
  }
  /** The engine that runs it. */
  get engine(): string | undefined {
    return this.#info.engine;
  }
  /** Isolation: `hardware` or `emulated`. */
  get isolation(): string | undefined {
    return this.#info.isolation;
  }

  /**
   * Run a command and wait for it to end. `cmd` is a line for `sh -c`, or a list whose items are passed on as they
   * are. A non-zero exit is a result, unless `check` is set. Aborting with `signal` kills the command, unless
   * `killOnAbort` is false.
   */
  async exec(cmd: Command, options: SandboxExecOptions = {}): Promise<ExecResult> {
    return await runCommand(this.#transport, this.id, cmd, options);
  }

  /**
   * Run a command and stream its output. With a callback: reads to the end and resolves to
   * the exit code. Without: resolves to an {@link ExecStream} to iterate over. Aborting kills the command.
   */
  async execStream(
    cmd: Command,
    options: ExecOptions & OutputCallbacks & ({ onStdout: (text: string) => unknown } | { onStderr: (text: string) => unknown }),
  ): Promise<number>;
  async execStream(cmd: Command, options?: ExecOptions): Promise<ExecStream>;
  async execStream(cmd: Command, options: ExecOptions & OutputCallbacks = {}): Promise<ExecStream | number> {
    const stream = await streamCommand(this.#transport, this.id, cmd, options);
    return options.onStdout || options.onStderr ? await stream.wait(options) : stream;
  }

  /**
   * Start a background process and return at once. It runs until it ends, is killed or times out. With `pty` and no
   * command it is the user's shell on a terminal.
   */
  async start(cmd: Command | undefined, options: StartOptions = {}): Promise<Process> {
    const answer = await this.#transport.send(startCall(this.#path("/processes"), cmd, options));
    return new Process(this.#transport, this.id, answer.record());
  }

  /** List running and recently ended processes. */
  async processes(): Promise<Process[]> {
    const answer = await this.#transport.send(get(this.#path("/processes")));
    return answer.records("processes").map((record) => new Process(this.#transport, this.id, record));
  }

  /** Get a handle for a process that was started earlier, by any client. */
  async process(id: number): Promise<Process> {
    const answer = await this.#transport.send(get(this.#path(`/processes/${Math.trunc(id)}`)));
    return new Process(this.#transport, this.id, answer.record());
  }

  /** Open a terminal with a shell, or attach to an existing one. It reconnects by itself. */
  terminal(options: TerminalOptions): Terminal {
    return new Terminal(this.#transport, this.#path("/exec/pty"), options);
  }

  /** Run source code: `python` or `shell`. State is not kept between calls. */
  async runCode(code: string, language = "python", options: SandboxExecOptions = {}): Promise<ExecResult> {
    const program = { python: "python3", shell: "bash", bash: "bash" }[language];
    if (!program) throw new BadRequestError(`language '${language}' is not supported`, { hint: "use 'python' or 'shell'" });
    return await this.exec([program, "-c", code], options);
  }

  /**
   * Create a code context, an interpreter that keeps its state between runs. Languages: `python`,
   * `javascript`, `typescript`, `bash`, `r` and `java`.
   */
  async createCodeContext(language = "python", options: { cwd?: string } = {}): Promise<CodeContext> {
    const known = ["py", "python3"].includes(language) ? "python" : language;
    const call = post(this.#path("/repl/sessions"), { language: known, ...given({ cwd: options.cwd }) }, MACHINE_MS_MAX);
    return new CodeContext(this.#transport, this.id, (await this.#transport.send(call)).record());
  }

  /** List all code contexts of the sandbox. */
  async codeContexts(): Promise<CodeContext[]> {
    const records = (await this.#transport.send(get(this.#path("/repl/sessions")))).records("items");
    return records.map((record) => new CodeContext(this.#transport, this.id, record));
  }

  /** Get the console log. With `follow`, stream new lines too. */
  async *logs(
    options: { stream?: "stdout" | "stderr" | "both"; follow?: boolean; signal?: AbortSignal } = {},
  ): AsyncGenerator<string> {
    const query = { stream: options.stream ?? "both", follow: options.follow ? "1" : "0" };
    const call: Call = { ...get(this.#path("/logs"), query), signal: options.signal };
    if (!options.follow) {
      const lines = (await this.#transport.send(call)).text().split(/\r?\n/);
      if (lines.at(-1) === "") lines.pop();
      yield* lines;
      return;
    }
    for await (const event of this.#follow(call)) {
      const payload = eventPayload(event);
      const said = payload?.line ?? payload?.chunk;
      yield (typeof said === "string" ? said : event.data).replace(/\n$/, "");
    }
  }

  /** List events of the sandbox, oldest first. With `tail`, only the last ones. */
  async events(options: { tail?: number } = {}): Promise<SandboxEvent[]> {
    const query: Record<string, string> = options.tail === undefined ? {} : { tail: String(options.tail) };
    return (await this.#transport.send(get(this.#path("/events"), query))).records("events");
  }

  /** Stream events until the caller stops or the sandbox is deleted. With `after`, start after that id. */
  async *followEvents(options: { after?: number } = {}): AsyncGenerator<SandboxEvent> {
    const extra: Record<string, string> = options.after === undefined ? {} : { "Last-Event-ID": String(options.after) };
    for await (const event of this.#follow({ ...get(this.#path("/events"), { follow: "1" }), extra })) {
      const payload = eventPayload(event);
      if (payload) yield payload;
    }
  }

  /** Get its current resource usage, as measured by the host and the guest. Does not wake it. */
  async metrics(): Promise<SandboxMetrics> {
    const record = (await this.#transport.send(get(this.#path("/metrics")))).record();
    return withCamelCase(record as { at: string; status: string; host: Record<string, number> });
  }

  /** Fork this sandbox: create a copy with the same memory, disk and processes. */
  async fork(options: { metadata?: Record<string, string> } = {}): Promise<Sandbox> {
    return await this.#client.sandboxes.fork(this.id, options);
  }

  /** Create several forks at the same point in time, as one tree. See {@link promote}. */
  async forkTree(options: { count: number; metadata?: Record<string, string> }): Promise<Sandbox[]> {
    return await this.#client.sandboxes.forkTree(this.id, options);
  }

  /**
   * Try each candidate, a shell command or a function, in a separate copy of this sandbox, keep the best copy
   * and delete the others. Throws {@link ExploreError} when no branch is worth keeping.
   *
   * ```ts
   * const { winner } = await sandbox.explore(["make -j1", "make -j4"], { scoreFn: (_, outcome) => -outcome.durationMs });
   * ```
   */
  async explore(candidates: Array<Candidate | string>, options: ExploreOptions = {}): Promise<ExploreResult> {
    return await explore(this, candidates, options);
  }

  /** Keep this fork and, on request, delete its siblings. */
  async promote(options: { cleanupSiblings?: boolean; treeId?: string } = {}): Promise<PromoteResult> {
    return await this.#client.sandboxes.promote(this.id, options);
  }

  /** Take a snapshot. Pass its `id` to `create({ fromSnapshot })` or `rollback`. */
  async snapshot(options: SnapshotOptions = {}): Promise<SnapshotInfo> {
    const body = given({
      name: options.name,
      replace_name: options.replaceName,
      metadata: options.metadata,
      ttl_seconds: options.ttlSeconds,
      keep_last: options.keepLast,
    });
    const isEmpty = Object.keys(body).length === 0;
    const call: Call = {
      ...post(this.#path("/snapshots"), isEmpty ? undefined : body, MACHINE_MS_MAX),
      // Keyed, but not repeated on refusal, since time has moved on by then.
      idempotencyKey: uniqueKey(),
    };
    const record = (await this.#transport.send(call)).record();
    const id = typeof record.id === "string" ? record.id : needText(record, "snapshot_id", "a snapshot");
    return withCamelCase({ ...record, id });
  }

  /** Put the sandbox to sleep on disk. It uses only disk space until the next call wakes it. */
  async hibernate(options: { keep?: Keep } = {}): Promise<void> {
    await this.#move("/hibernate", "hibernated", options.keep === undefined ? undefined : { keep: options.keep });
  }

  /** Roll back to one of this sandbox's snapshots, the newest by default. Its id and URL stay. */
  async rollback(snapshotId?: string): Promise<Sandbox> {
    const body = given({ snapshot_id: snapshotId });
    const record = (await this.#transport.send(post(this.#path("/rollback"), body, MACHINE_MS_MAX))).record();
    this.#info = parseSandbox(record);
    return this;
  }

  /** Get its ancestors, siblings and children. */
  async lineage(): Promise<LineageInfo> {
    const record = (await this.#transport.send(get(this.#path("/lineage")))).record();
    return withCamelCase({ ...record, id: needText(record, "id", "a lineage") }) as LineageInfo;
  }

  /** Keep it awake for this many seconds, for background work. 0 ends the lease. */
  async keepAwake(seconds: number): Promise<LifecycleInfo> {
    return lifecycleOf((await this.#transport.send(post(this.#path("/keep-awake"), { seconds }, MACHINE_MS_MAX))).record());
  }

  /** Wake the sandbox. Has no effect if it runs. */
  async wake(): Promise<void> {
    await this.#move("/wake", "running");
  }

  /** Pause the sandbox. Its memory stays on the host. */
  async pause(): Promise<void> {
    await this.#move("/pause", "paused");
  }

  /** Resume a paused sandbox. */
  async resume(): Promise<void> {
    await this.#move("/resume", "running");
  }

  /** Get its lifetime settings. */
  async lifecycle(): Promise<LifecycleInfo> {
    return lifecycleOf((await this.#transport.send(get(this.#path("/lifecycle")))).record());
  }

  /** Set its time to live, in seconds from now. */
  async setTtl(seconds: number): Promise<LifecycleInfo> {
    return await this.setLifecycle({ ttlSeconds: seconds });
  }

  /** Remove its time limit (it hibernates when idle), or set one again. */
  async setPersistent(persistent: boolean): Promise<LifecycleInfo> {
    return await this.setLifecycle({ persistent });
  }

  /** Update its lifetime and sleep settings. Settings that are left out stay unchanged. */
  async setLifecycle(change: LifecycleChange): Promise<LifecycleInfo> {
    const body = given({
      ttl_seconds: change.ttlSeconds,
      persistent: change.persistent,
      idle_timeout_seconds: change.idleTimeoutSeconds,
      on_timeout: change.onTimeout,
      checkpoints: change.checkpoints && checkpointsOf(change.checkpoints),
    });
    const call = { ...post(this.#path("/lifecycle"), body), method: "PATCH" };
    const lifecycle = lifecycleOf((await this.#transport.send(call)).record());
    if (change.persistent !== undefined) this.#info = { ...this.#info, persistent: change.persistent };
    return lifecycle;
  }

  /** Get its network policy. */
  async network(): Promise<NetworkPolicy> {
    return (await this.#transport.send(get(this.#path("/network")))).record() as NetworkPolicy;
  }

  /**
   * Replace its network policy at once: `none`, `all`, or lists. Applies to open connections too, and does
   * not wake the sandbox.
   */
  async setNetwork(network: NetworkPolicy | Egress): Promise<NetworkPolicy> {
    const call = { ...post(this.#path("/network"), networkOf(network)), method: "PUT" };
    return (await this.#transport.send(call)).record() as NetworkPolicy;
  }

  /** List listening ports and labelled ports. */
  async ports(): Promise<PortInfo[]> {
    const entries = (await this.#transport.send(get(this.#path("/ports")))).entries("ports");
    return entries.map(parsePort).filter((port): port is PortInfo => port !== undefined);
  }

  /** Get the public URL of a port. Anyone who knows it can reach the port: the id is the secret. */
  previewUrl(port: number, scheme?: "http" | "https"): string {
    return previewUrl(this.#client.baseUrl, this.id, port, { host: this.#client.previewHost, scheme });
  }

  /** Get the host name of a port's preview URL, without the scheme. */
  getHost(port: number): string {
    return this.previewUrl(port).replace(/^\w+:\/\//, "");
  }

  /** Get the public URL of every port. */
  async previewUrls(): Promise<Record<number, string>> {
    return Object.fromEntries((await this.ports()).map(({ port }) => [port, this.previewUrl(port)]));
  }

  /** Refresh this object with the server's current state. Resolves to it. */
  async refresh(): Promise<this> {
    this.#info = (await this.#client.sandboxes.get(this.id)).info;
    return this;
  }

  /** Delete the sandbox. Its snapshots and forks stay. */
  async delete(): Promise<void> {
    await this.#client.sandboxes.delete(this.id);
    this.#info = { ...this.#info, status: "deleted" };
  }

  /** The same as {@link delete}. */
  async kill(): Promise<void> {
    await this.delete();
  }

  /** For `await using`: deletes the sandbox, unless it is persistent or gone already. */
  async [asyncDispose](): Promise<void> {
    if (this.persistent || this.status === "deleted") return;
    try {
      await this.delete();
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
    }
  }

  #path(rest: string): string {
    return sandboxPath(this.id, rest);
  }

  async #move(rest: string, status: string, body?: JsonObject): Promise<void> {
    const record = (await this.#transport.send(post(this.#path(rest), body, MACHINE_MS_MAX))).record();
    this.#info = { ...this.#info, status: typeof record.status === "string" ? record.status : status };
  }

  async *#follow(call: Call): AsyncGenerator<ServerEvent> {
    const stream = await this.#transport.openStream({ ...call, accept: "text/event-stream" }, STREAM_IDLE_MS_MAX);
    yield* serverEvents(stream);
  }
}

function lifecycleOf(record: JsonObject): LifecycleInfo {
  return withCamelCase(record as { ttl_seconds: number; persistent: boolean; idle_seconds: number });
}

checked({ Sandbox });
printed(Sandbox, "Sandbox", ["id", "status", "template"]);
