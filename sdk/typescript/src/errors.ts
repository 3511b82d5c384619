/**
 * Every error this package throws on purpose.
 *
 * One tree under {@link PandaStackError}. Invariants: an error made from a server's answer carries
 * its `status`, `code` and `requestId`, and its message ends with a `hint:` line whenever there is a
 * next step to name. Turning a status into a class happens in {@link errorFromResponse} only.
 */

import type { Headers } from "./globals.js";
import type { TemplateBuild } from "./template-builds.js";
import { parseRetryAfter } from "./retry.js";

/** Longest excerpt shown of a body that is not our JSON envelope, such as a proxy's HTML page. */
const FOREIGN_BODY_CHARS_MAX = 300;

/** Details of a failure. */
export interface ErrorDetails {
  /** HTTP status. */
  status?: number | undefined;
  /** The server's stable error code. */
  code?: string | undefined;
  /** The id to quote to an operator. */
  requestId?: string | undefined;
  /** The next step. */
  hint?: string | undefined;
  /** The server's `Retry-After`. */
  retryAfterSeconds?: number | undefined;
  /** The error underneath. */
  cause?: unknown;
}

/** Base of every error of this package. */
export class PandaStackError extends Error {
  /** HTTP status, if a server answered. */
  readonly status: number | undefined;
  /** The server's stable error code. */
  readonly code: string | undefined;
  /** The id to quote to an operator. */
  readonly requestId: string | undefined;
  /** The next step, if there is one to name. */
  readonly hint: string | undefined;
  /** The server's `Retry-After`. */
  readonly retryAfterSeconds: number | undefined;
  /** The sentence alone; `message` adds code, request id and hint. */
  readonly reason: string;

  constructor(reason: string, details: ErrorDetails = {}) {
    super(fullMessage(reason, details), details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.reason = reason;
    this.status = details.status;
    this.code = details.code;
    this.requestId = details.requestId;
    this.hint = details.hint;
    this.retryAfterSeconds = details.retryAfterSeconds;
  }

  /** Alias of `status`. */
  get statusCode(): number | undefined {
    return this.status;
  }
}

/** The request is invalid: a 4xx status, or this client refused to send it. */
export class BadRequestError extends PandaStackError {}
/** An argument has the wrong type. Nothing was sent. */
export class ArgumentTypeError extends BadRequestError {}
/** The API key is missing, invalid, expired or not allowed to do this. */
export class AuthError extends PandaStackError {}
/** The API key is valid but does not allow this (403). */
export class PermissionDeniedError extends AuthError {}
/** The sandbox, snapshot, template, token or path does not exist (404). */
export class NotFoundError extends PandaStackError {}
/** The state of the resource does not allow this (409). */
export class ConflictError extends BadRequestError {}
/** Too many requests, or a quota is reached (429). */
export class RateLimitError extends BadRequestError {}
/** The server failed (5xx), or its response cannot be read. */
export class ServerError extends PandaStackError {}
/** No host has room for another machine (503 with `Retry-After`, or 507). */
export class CapacityError extends ServerError {}
/** The server is unreachable, or the connection broke before the response was complete. */
export class NetworkError extends PandaStackError {}
/** The server did not respond within the time limit of the call. */
export class RequestTimeout extends NetworkError {}
/** A command exceeded its `timeoutSeconds` and was killed. */
export class SandboxTimeout extends PandaStackError {}

/** The stream of a command ended before its exit code arrived; the command may still run. */
export class ExecInterrupted extends PandaStackError {
  /** The end of what had arrived of stdout. */
  readonly partialStdout: string;
  /** The end of what had arrived of stderr. */
  readonly partialStderr: string;

  constructor(reason: string, partial: { stdout: string; stderr: string }, cause?: unknown) {
    super(reason, { hint: "check the sandbox's status; run the command again if it is safe to repeat", cause });
    this.partialStdout = partial.stdout;
    this.partialStderr = partial.stderr;
  }
}

/** A command run with `check: true` exited non-zero. */
export class CommandError extends PandaStackError {
  constructor(
    reason: string,
    /** The command's exit code. */
    readonly exitCode: number,
    /** Its output. */
    readonly stdout = "",
    /** Its error output. */
    readonly stderr = "",
  ) {
    super(reason);
  }
}

/** A template build failed. */
export class TemplateBuildError extends PandaStackError {
  constructor(
    reason: string,
    /** The build's last state. */
    readonly build: TemplateBuild,
  ) {
    super(reason);
  }
}

const CLASS_BY_STATUS: Record<number, typeof PandaStackError> = {
  401: AuthError,
  403: PermissionDeniedError,
  404: NotFoundError,
  409: ConflictError,
  429: RateLimitError,
  507: CapacityError,
};

const HINT_BY_CODE: Record<string, string> = {
  template_baking: "the template is being built for its first use; retry when it is ready",
};

const HINT_BY_STATUS: Record<number, string> = {
  401: "set PANDASTACK_API_KEY or pass apiKey; `pandastack up` writes a working key to ~/.config/pandastack/config.json",
  403: "use a key of the workspace that owns the resource",
  429: "wait and retry, or delete sandboxes that are no longer needed",
  501: "this server does not offer this feature",
  507: "delete snapshots and hibernated sandboxes to free disk space, and see `pandastack doctor`",
};

/** Whether a server's sentence says that a command ran out of time. */
export function isTimeoutMessage(message: string): boolean {
  const lowered = message.toLowerCase();
  // "i/o timeout" is a network failure on the way to the guest, not the command's own limit.
  return !lowered.includes("i/o timeout") && /timeout|timed out|deadline exceeded/.test(lowered);
}

/** The typed error of a non-2xx answer. `what` names the call, e.g. `POST /v1/sandboxes`. */
export function errorFromResponse(
  status: number,
  headers: Headers,
  body: string,
  call: { what: string; isCommand: boolean },
): PandaStackError {
  const envelope = parseEnvelope(body);
  const retryAfterSeconds = parseRetryAfter(headers.get("retry-after"));
  const reason = `${call.what}: ${sentence(envelope, body, status)}`;
  const code = text(envelope.code);
  let kind = CLASS_BY_STATUS[status] ?? (status < 500 ? BadRequestError : ServerError);
  // A 503 counts as "try again" only with both marks: proxies answer bare 503s of their own.
  if (status === 503 && retryAfterSeconds !== undefined && text(envelope.error)) kind = CapacityError;
  if (call.isCommand && status >= 500 && (code === "exec_timeout" || isTimeoutMessage(reason))) kind = SandboxTimeout;
  return new kind(reason, {
    status,
    code,
    requestId: text(envelope.request_id) ?? headers.get("x-request-id") ?? undefined,
    hint: text(envelope.hint) ?? HINT_BY_CODE[code ?? ""] ?? HINT_BY_STATUS[status],
    retryAfterSeconds,
  });
}

function fullMessage(reason: string, details: ErrorDetails): string {
  const labels = [
    details.status === undefined ? "" : `status ${details.status}`,
    details.code ? `code ${details.code}` : "",
    details.requestId ? `request ${details.requestId}` : "",
  ].filter(Boolean);
  const labelled = labels.length ? `${reason} (${labels.join(", ")})` : reason;
  return details.hint ? `${labelled}\nhint: ${details.hint}` : labelled;
}

function parseEnvelope(body: string): Record<string, unknown> {
  try {
    const parsed: unknown = JSON.parse(body);
    return typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)
      ? (parsed as Record<string, unknown>)
      : {};
  } catch {
    return {};
  }
}

function sentence(envelope: Record<string, unknown>, body: string, status: number): string {
  for (const key of ["error", "message", "detail"]) {
    const value = envelope[key];
    if (value) return typeof value === "string" ? value : JSON.stringify(value);
  }
  const foreign = body.trim().slice(0, FOREIGN_BODY_CHARS_MAX);
  return foreign ? `HTTP ${status}: ${foreign}` : `HTTP ${status}`;
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value ? value : undefined;
}
