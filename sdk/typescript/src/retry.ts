/**
 * When a refused create is sent again, and after how long. Pure: clock and dice come from outside.
 *
 * Only refusals that promise "nothing was created" are repeated (503 with `Retry-After`, 507, 429 with
 * `Retry-After`), always with the same `Idempotency-Key`. Lost connections and timeouts are not
 * decided here: it is unknown what the server did.
 */

import type { PandaStackError } from "./errors.js";

/** Default time for which refused creates are retried. */
export const CREATE_RETRY_SECONDS_DEFAULT = 60;
/** A template being baked makes progress, so waiting for it has a budget of its own. */
export const TEMPLATE_BAKE_SECONDS_MAX = 900;
/** Least wait after 507, whose `Retry-After` is optional: disk space does not come back at once. */
const DISK_FULL_WAIT_SECONDS_MIN = 0.5;
/** Upper end of the random extra wait, by attempt; the last value repeats. */
const JITTER_SECONDS_MAX = [1, 2, 4, 8, 15];

/** Passed to `onCreateRetry` before each wait. */
export interface CreateRetryEvent {
  method: string;
  path: string;
  attempt: number;
  statusCode: number;
  error: string;
  delaySeconds: number;
  elapsedSeconds: number;
  retryAfterSeconds: number | undefined;
}

/** The retry state of one call. */
export class CapacityRetry {
  /** Repetitions so far. */
  attempt = 0;
  readonly #budgetSeconds: number;
  readonly #now: () => number;
  readonly #dice: () => number;
  readonly #startedAt: number;

  constructor(budgetSeconds: number, now: () => number = () => performance.now() / 1000, dice: () => number = Math.random) {
    this.#budgetSeconds = budgetSeconds;
    this.#now = now;
    this.#dice = dice;
    this.#startedAt = now();
  }

  /** Time since the first attempt began. */
  get elapsedSeconds(): number {
    return this.#now() - this.#startedAt;
  }

  /** Seconds to wait before the next attempt, or `undefined` to give up and throw `error`. */
  delayAfter(error: PandaStackError): number | undefined {
    const minimum = waitAskedFor(error);
    if (minimum === undefined || this.#budgetSeconds <= 0) return undefined;
    const isBaking = error.code === "template_baking";
    const budget = isBaking ? Math.max(this.#budgetSeconds, TEMPLATE_BAKE_SECONDS_MAX) : this.#budgetSeconds;
    const left = budget - this.elapsedSeconds;
    if (minimum > left) return undefined;
    const cap = JITTER_SECONDS_MAX[Math.min(this.attempt, JITTER_SECONDS_MAX.length - 1)] ?? 0;
    this.attempt += 1;
    return Math.min(minimum + this.#dice() * cap, left);
  }
}

function waitAskedFor(error: PandaStackError): number | undefined {
  if (error.status === 507) return Math.max(error.retryAfterSeconds ?? 0, DISK_FULL_WAIT_SECONDS_MIN);
  // By name, so that this file and errors.ts do not need each other at run time. A 429 without the
  // header is a used-up quota: waiting changes nothing.
  const isRefusal = error.name === "CapacityError" || error.name === "RateLimitError";
  return isRefusal ? error.retryAfterSeconds : undefined;
}

/** Seconds of a `Retry-After` header (a number or an HTTP date), or `undefined` if it makes no sense. */
export function parseRetryAfter(value: string | null, nowMs: number = Date.now()): number | undefined {
  const trimmed = value?.trim();
  if (!trimmed) return undefined;
  const seconds = /^[-+]?[\d.]+$/.test(trimmed) ? Number(trimmed) : (Date.parse(trimmed) - nowMs) / 1000;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : undefined;
}

/** The retry budget from the environment; nonsense means the default. */
export function parseBudget(value: string | undefined): number {
  const seconds = value?.trim() ? Number(value) : Number.NaN;
  return Number.isFinite(seconds) ? Math.max(0, seconds) : CREATE_RETRY_SECONDS_DEFAULT;
}
