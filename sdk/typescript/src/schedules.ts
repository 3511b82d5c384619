/** Schedules: cron, intervals and one-off times. */

import { checked } from "./check.js";
import { type JsonObject, needText, type WireRecord, withCamelCase } from "./models.js";
import type { Transport } from "./transport.js";
import { del, EXEC_MS_MAX, get, given, post, segment } from "./wire.js";

/** Target of a run: `{ type: "http", url }`, `{ type: "command", cmd, sandbox_id }` and others. */
export type ScheduleTarget = {
  type: "http" | "command" | "sandbox" | "app" | "function" | "sql" | "template";
} & JsonObject;

/** Timing, target and options. One of `cron`, `everySeconds` and `at`; `target` or `functionId`. */
export interface ScheduleOptions {
  /** Five fields, or a name such as `@daily`. */
  cron?: string;
  /** IANA name. Default: `UTC`. */
  timezone?: string;
  /** Seconds from one run to the next. */
  everySeconds?: number;
  /** Once, at this RFC 3339 time. */
  at?: string;
  /** Target of the runs. */
  target?: ScheduleTarget;
  /** Short for a target of type `function`. */
  functionId?: string;
  /** Made or left resting. */
  paused?: boolean;
  /** A run is due while an earlier one is in progress. */
  overlap?: "skip" | "queue" | "replace" | "allow";
  /** Times that passed while no server ran. */
  missed?: "skip" | "run_once" | "run_all";
  /** Most runs of `run_all`. */
  missedMax?: number;
  /** With `missed: "skip"`, how late a run may begin. */
  startingDeadlineSeconds?: number;
  /** Begins up to this much later. */
  jitterSeconds?: number;
  /** Of one try. */
  timeoutSeconds?: number;
  /** Number of retries of a failed run. */
  retries?: number;
  /** Wait before the first of them. */
  retryDelaySeconds?: number;
  /** Whom to tell when runs keep failing. */
  alert?: { url: string; after_failures: number };
  /** Pause after this many failures in a row. */
  pauseAfterFailures?: number;
}

/** A schedule's fields. */
export interface ScheduleFields {
  id: string;
  name: string;
  function_id: string;
  cron: string;
  timezone: string;
  every_seconds?: number;
  at?: string;
  target: ScheduleTarget;
  paused: boolean;
  paused_reason?: string;
  consecutive_failures: number;
  last_run_at?: string;
  next_run_at?: string;
  created_at: string;
  updated_at: string;
  workspace?: string;
  overlap?: "skip" | "queue" | "replace" | "allow";
  missed?: "skip" | "run_once" | "run_all";
  missed_max?: number;
  starting_deadline_seconds?: number;
  jitter_seconds?: number;
  timeout_seconds?: number;
  retries?: number;
  retry_delay_seconds?: number;
  alert?: { url: string; after_failures: number };
  pause_after_failures?: number;
}
/** A schedule. */
export type ScheduleInfo = WireRecord<ScheduleFields>;

/** A run's fields. */
export interface ScheduleRunFields {
  id: string;
  /** Alias of `id`. */
  run_id?: string;
  schedule_id: string;
  status: "queued" | "running" | "success" | "error" | "timeout" | "skipped" | "cancelled";
  origin: "schedule" | "manual";
  scheduled_for: string;
  attempt: number;
  exit_code: number;
  http_status?: number;
  stdout: string;
  stderr: string;
  truncated: boolean;
  error?: string;
  missed: number;
  duration_ms: number;
  started_at: string;
  ended_at?: string;
  sandbox_id?: string;
  /** The function it invoked, if that was its target. */
  function_id?: string;
}
/** A run of a schedule. A schedule has at most one run for a time. */
export type ScheduleRun = WireRecord<ScheduleRunFields>;

/** Next run times of a schedule, also in its time zone. */
export interface NextRuns {
  items: string[];
  local: string[];
  timezone: string;
}

/** `client.schedules`. */
export class SchedulesAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Create a schedule. */
  async create(options: ScheduleOptions & { name: string }): Promise<ScheduleInfo> {
    return scheduleOf((await this.#transport.send(post("/schedules", bodyOf(options)))).record());
  }

  /** List schedules, oldest first. */
  async list(): Promise<ScheduleInfo[]> {
    return (await this.#transport.send(get("/schedules"))).records("schedules").map(scheduleOf);
  }

  /** Get a schedule. */
  async get(id: string): Promise<ScheduleInfo> {
    return scheduleOf((await this.#transport.send(get(path(id)))).record());
  }

  /** Update a schedule. Options that are left out stay unchanged. */
  async update(id: string, changes: ScheduleOptions & { name?: string }): Promise<ScheduleInfo> {
    const call = { ...post(path(id), bodyOf(changes)), method: "PATCH" };
    return scheduleOf((await this.#transport.send(call)).record());
  }

  /** Pause a schedule. */
  async pause(id: string): Promise<ScheduleInfo> {
    return await this.update(id, { paused: true });
  }

  /** Resume a schedule. Missed runs are not started. */
  async resume(id: string): Promise<ScheduleInfo> {
    return await this.update(id, { paused: false });
  }

  /** Delete a schedule and its history, and cancel runs in progress. */
  async delete(id: string): Promise<void> {
    await this.#transport.send(del(path(id)));
  }

  /** Run it now; unless `wait` is false, resolves when that run has ended. */
  async trigger(id: string, options: { wait?: boolean } = {}): Promise<ScheduleRun> {
    return runOf((await this.#transport.send(post(path(id, "/trigger"), given({ ...options }), EXEC_MS_MAX))).record());
  }

  /** List runs, newest first. */
  async runs(id: string, options: { limit?: number } = {}): Promise<ScheduleRun[]> {
    const query: Record<string, string> = options.limit === undefined ? {} : { limit: String(options.limit) };
    return (await this.#transport.send(get(path(id, "/runs"), query))).records("runs").map(runOf);
  }

  /** Get a run. */
  async getRun(id: string, runId: string): Promise<ScheduleRun> {
    return runOf((await this.#transport.send(get(path(id, `/runs/${segment(runId, "run id")}`)))).record());
  }

  /** Cancel a run. */
  async cancelRun(id: string, runId: string): Promise<ScheduleRun> {
    return runOf((await this.#transport.send(post(path(id, `/runs/${segment(runId, "run id")}/cancel`)))).record());
  }

  /** Get its next run times. */
  async next(id: string, count = 5): Promise<NextRuns> {
    return nextOf((await this.#transport.send(get(path(id, "/next"), { count: String(count) }))).record());
  }

  /** Preview the run times of a schedule without creating it. */
  async preview(timing: Pick<ScheduleOptions, "cron" | "timezone" | "everySeconds" | "at">, count = 5): Promise<NextRuns> {
    return nextOf((await this.#transport.send(post("/schedules/preview", { ...bodyOf(timing), count }))).record());
  }
}

checked({ SchedulesAPI });

function path(id: string, rest = ""): string {
  return `/schedules/${segment(id, "schedule id")}${rest}`;
}

/** Options under their wire names. */
function bodyOf(options: object): JsonObject {
  const named = Object.entries(options).map(([name, value]) => [
    name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    value,
  ]);
  return given(Object.fromEntries(named) as JsonObject);
}

function scheduleOf(record: JsonObject): ScheduleInfo {
  return withCamelCase({ ...record, id: needText(record, "id", "a schedule") }) as unknown as ScheduleInfo;
}

function runOf(record: JsonObject): ScheduleRun {
  return withCamelCase({ ...record, id: needText(record, "id", "a run") }) as unknown as ScheduleRun;
}

function nextOf(record: JsonObject): NextRuns {
  return record as unknown as NextRuns;
}
