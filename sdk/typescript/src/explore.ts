/**
 * Best of many: try each candidate in a copy of its own, keep the best copy, delete the rest.
 */

import { PandaStackError, SandboxTimeout } from "./errors.js";
import type { Sandbox } from "./sandbox.js";

/** Most candidates of one exploration: as many copies as one fork makes. */
const CANDIDATES_MAX = 100;
/** Default number of concurrent branches. */
const CONCURRENCY = 4;
/** Characters kept of the end of each output. */
const TAIL_CHARS = 4096;
/** Changed files that are listed of one branch. */
const FILES_MAX = 200;
/** Its time distinguishes it from files that a branch writes. */
const MARKER = "/run/.pandastack-explore";
/** Directory in which changed files are searched. */
const ROOTS = ["/srv", "/app", "/work", "/workspace", "/root", "/home", "/tmp"];

/** A candidate to try: a shell command, or a function that receives the copy. */
export interface Candidate {
  /** Human-readable name. */
  label: string;
  /** Shell command. */
  cmd?: string;
  /** Function; what it returns is the outcome's `value`. */
  fn?: (sandbox: Sandbox) => Promise<unknown> | unknown;
  /** Limit of the command in seconds (60). */
  timeoutS?: number;
  /** Environment of the command. */
  env?: Record<string, string>;
  /** Known in advance; no scorer is asked. */
  score?: number;
}

/** The result of one candidate. */
export interface BranchOutcome {
  label: string;
  sandboxId: string;
  ok: boolean;
  score: number;
  exitCode: number | null;
  stdoutTail: string;
  stderrTail: string;
  /** Files that are new or changed since the fork. */
  filesChanged: string[];
  durationMs: number;
  value?: unknown;
  error: string | null;
  timedOut: boolean;
  /** The copy it ran in. */
  readonly sandbox?: Sandbox;
}

/** Options of an exploration. */
export interface ExploreOptions {
  /** Rates a branch; without it one that succeeds has 1. */
  scoreFn?: (sandbox: Sandbox, outcome: BranchOutcome) => number | Promise<number>;
  /** The score that wins, or a function that picks (`max`). */
  select?: "max" | "min" | ((outcomes: BranchOutcome[]) => BranchOutcome);
  /** A branch that failed never wins (true). */
  requireSuccess?: boolean;
  /** Branches that run at once (4). */
  maxConcurrency?: number;
  /** Delete the other copies (true). */
  cleanupLosers?: boolean;
  /** Make the best copy a sandbox like any other (true). */
  promoteWinner?: boolean;
  /** List changed files (true), or those below one directory. */
  captureFiles?: boolean | string;
  /** Copies are gone after this, should this program die meanwhile (600). */
  ttlSeconds?: number;
  /** Called when a branch ends. */
  onOutcome?: (outcome: BranchOutcome) => void;
}

/** The result of `explore`. */
export interface ExploreResult {
  winner: Sandbox | null;
  winnerOutcome: BranchOutcome | null;
  /** In the order of the candidates. */
  outcomes: BranchOutcome[];
  treeId: string;
  /** Copies that were deleted. */
  reaped: string[];
  reapFailures: Record<string, string>;
  /** Copies that could not be made. */
  errors: string[];
}

/** No candidates were given, or none succeeded. */
export class ExploreError extends PandaStackError {
  /** Result of each branch. */
  readonly outcomes: BranchOutcome[];

  constructor(message: string, outcomes: BranchOutcome[] = []) {
    super(message);
    this.outcomes = outcomes;
  }
}

/** See {@link Sandbox.explore}. */
export async function explore(
  parent: Sandbox,
  given: Array<Candidate | string>,
  options: ExploreOptions,
): Promise<ExploreResult> {
  const candidates = asCandidates(given);
  const metadata = { explore: "1", explore_ttl: String(Math.trunc(options.ttlSeconds ?? 600)) };
  const children = await parent.forkTree({ count: candidates.length, metadata });
  const treeId = children[0]?.metadata["fork_tree_id"] ?? "";
  const missing = candidates.length - children.length;
  const errors = missing > 0 ? [`${missing} copies could not be made`] : [];
  const cleanup = options.cleanupLosers ?? true;

  let best: { outcome: BranchOutcome; sandbox: Sandbox } | undefined;
  let outcomes: BranchOutcome[];
  try {
    const branches = children.map((sandbox, index) => ({ sandbox, candidate: candidates[index]! }));
    outcomes = await each(options.maxConcurrency ?? CONCURRENCY, branches, async ({ sandbox, candidate }) => {
      const outcome = await attempt(sandbox, candidate, options.captureFiles ?? true);
      await rate(sandbox, candidate, outcome, options.scoreFn);
      options.onOutcome?.(outcome);
      return outcome;
    });
    const viable = outcomes.filter((outcome) => outcome.ok || options.requireSuccess === false);
    if (viable.length === 0) {
      throw new ExploreError("explore: no branch succeeded; see `outcomes` of this error", outcomes);
    }
    const outcome = pick(viable, options.select ?? "max");
    best = { outcome, sandbox: children.find((child) => child.id === outcome.sandboxId)! };
  } finally {
    if (!best && cleanup) await deleteAll(children);
  }
  let cleaned: { reaped: string[]; reapFailures: Record<string, string> } = { reaped: [], reapFailures: {} };
  if (options.promoteWinner ?? true) {
    const promoted = await best.sandbox.promote({ cleanupSiblings: cleanup, ...(treeId ? { treeId } : {}) });
    cleaned = { reaped: promoted.deleted ?? [], reapFailures: promoted.failures ?? {} };
  } else if (cleanup) {
    cleaned = await deleteAll(children.filter((child) => child !== best.sandbox));
  }
  return { winner: best.sandbox, winnerOutcome: best.outcome, outcomes, treeId, errors, ...cleaned };
}

function asCandidates(given: Array<Candidate | string>): Candidate[] {
  if (given.length < 1 || given.length > CANDIDATES_MAX) {
    throw new ExploreError(`explore: give 1 to ${CANDIDATES_MAX} candidates, not ${given.length}`);
  }
  return given.map((item) => {
    const candidate = typeof item === "string" ? { label: item, cmd: item } : item;
    if ((candidate.cmd === undefined) === ((candidate as Candidate).fn === undefined)) {
      throw new ExploreError(`explore: candidate "${candidate.label}" needs either \`cmd\` or \`fn\``);
    }
    return candidate;
  });
}

/** Runs a candidate. A failure is recorded in the outcome, not thrown. */
async function attempt(sandbox: Sandbox, candidate: Candidate, capture: boolean | string): Promise<BranchOutcome> {
  const outcome: BranchOutcome = {
    label: candidate.label,
    sandboxId: sandbox.id,
    ok: false,
    score: 0,
    exitCode: null,
    stdoutTail: "",
    stderrTail: "",
    filesChanged: [],
    durationMs: 0,
    error: null,
    timedOut: false,
  };
  // Not part of what is printed or sent on.
  Object.defineProperty(outcome, "sandbox", { value: sandbox, enumerable: false });
  let began = Date.now();
  try {
    if (capture) {
      await sandbox.exec(["touch", MARKER]);
      began = Date.now();
    }
    if (candidate.fn) {
      outcome.value = await candidate.fn(sandbox);
      outcome.ok = true;
    } else {
      const env = candidate.env ? { env: candidate.env } : {};
      const result = await sandbox.exec(candidate.cmd ?? "", { timeoutSeconds: candidate.timeoutS ?? 60, ...env });
      outcome.exitCode = result.exit_code;
      outcome.ok = result.exit_code === 0;
      outcome.stdoutTail = result.stdout.slice(-TAIL_CHARS);
      outcome.stderrTail = result.stderr.slice(-TAIL_CHARS);
    }
  } catch (error) {
    outcome.timedOut = error instanceof SandboxTimeout;
    outcome.error = errorText(error);
  }
  outcome.durationMs = Date.now() - began;
  if (capture) outcome.filesChanged = await changedFiles(sandbox, capture);
  return outcome;
}

async function changedFiles(sandbox: Sandbox, where: boolean | string): Promise<string[]> {
  const roots = typeof where === "string" ? [where] : ROOTS;
  try {
    const found = await sandbox.exec(["find", ...roots, "-xdev", "-type", "f", "-newer", MARKER], { timeoutSeconds: 30 });
    return found.stdout.split("\n").filter(Boolean).sort().slice(0, FILES_MAX);
  } catch {
    return []; // the branch broke its own sandbox; its outcome says so
  }
}

async function rate(
  sandbox: Sandbox,
  candidate: Candidate,
  outcome: BranchOutcome,
  scorer: ExploreOptions["scoreFn"],
): Promise<void> {
  if (candidate.score === undefined && !scorer) {
    outcome.score = outcome.ok ? 1 : 0;
    return;
  }
  try {
    outcome.score = scoreOf(candidate.score ?? (await scorer?.(sandbox, outcome)));
  } catch (error) {
    outcome.ok = false;
    outcome.error = `the scorer failed: ${errorText(error)}`;
  }
}

/**
 * A score as a number. NaN is not a valid score: the winner would depend on the order of the
 * branches.
 */
function scoreOf(given: unknown): number {
  if (typeof given === "number" && !Number.isNaN(given)) return given;
  throw new TypeError(`a score must be a number, not ${Number.isNaN(given) ? "NaN" : typeof given}`);
}

function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The winner; of equals the first. */
function pick(outcomes: BranchOutcome[], select: NonNullable<ExploreOptions["select"]>): BranchOutcome {
  if (typeof select === "function") return select(outcomes);
  const sign = select === "max" ? 1 : -1;
  return outcomes.reduce((best, outcome) => (sign * outcome.score > sign * best.score ? outcome : best));
}

/** The results for all items, in order, so many worked on at once. */
async function each<T, R>(atOnce: number, items: T[], work: (item: T) => Promise<R>): Promise<R[]> {
  const results = new Array<R>(items.length);
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < items.length) {
      const index = next++;
      results[index] = await work(items[index]!);
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, worker));
  return results;
}

async function deleteAll(sandboxes: Sandbox[]): Promise<{ reaped: string[]; reapFailures: Record<string, string> }> {
  const reaped: string[] = [];
  const reapFailures: Record<string, string> = {};
  for (const sandbox of sandboxes) {
    try {
      await sandbox.delete();
      reaped.push(sandbox.id);
    } catch (error) {
      reapFailures[sandbox.id] = errorText(error);
    }
  }
  return { reaped, reapFailures };
}
