/**
 * When a lost stream is resumed, and after how long.
 *
 * A process outlives every connection to it, and its output waits by offset, so a follower that
 * lost its stream requests the rest. Only failures unrelated to the process are retried.
 */

import { NetworkError, RequestTimeout, ServerError } from "./errors.js";

/** Time that a follower retries without progress. A restarted server is back in seconds. */
const RECONNECT_MS_MAX = 60_000;
/** Waits between attempts: from the first, doubling, to the last. */
const DELAY_MS_MIN = 100;
const DELAY_MS_MAX = 2_000;

/**
 * Whether the failure may be temporary. `undefined` means that the stream ended without an error.
 */
export function isPassing(error: unknown): boolean {
  if (error === undefined) return true;
  if (error instanceof RequestTimeout) return false;
  return error instanceof NetworkError || (error instanceof ServerError && [502, 503].includes(error.status ?? 0));
}

/** The state of one follower's attempts. */
export class Reconnect {
  #lostAt: number | undefined;
  #delayMs = 0;

  /** Data arrived: the next loss is a new one. */
  succeeded(): void {
    this.#lostAt = undefined;
  }

  /** Waits before the next attempt; false to give up. */
  async pause(error: unknown): Promise<boolean> {
    if (!isPassing(error)) return false;
    if (this.#lostAt === undefined) {
      this.#lostAt = Date.now();
      this.#delayMs = DELAY_MS_MIN;
    } else if (Date.now() - this.#lostAt > RECONNECT_MS_MAX) {
      return false;
    }
    const delayMs = this.#delayMs;
    this.#delayMs = Math.min(delayMs * 2, DELAY_MS_MAX);
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    return true;
  }
}
