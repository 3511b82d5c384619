/**
 * Sources of the server's address and the key.
 *
 * Order, for each of the two separately: option, environment, `config.json` (where there is a file
 * system), default. The config file's token belongs to the config file's server: it is never sent to
 * another origin. The file is read at the first call, since not every runtime can read one at once.
 */

import { AuthError, BadRequestError } from "./errors.js";
import { environment, importBuiltin } from "./runtime.js";

/** Default address of `pandastack up`. */
export const BASE_URL_DEFAULT = "http://127.0.0.1:8080";
/** A config file longer than this is not ours. */
const CONFIG_CHARS_MAX = 64 * 1024;

/** A resolved address and key. */
export interface Config {
  baseUrl: string;
  /** `undefined`: the browser's session is used. */
  apiKey: string | undefined;
}

/** The address without trailing slash or `/v1`; throws on anything that is not http(s). */
export function normalizeBaseUrl(url: string): string {
  const parsed = parseUrl(url);
  if (!parsed || !/^https?:$/.test(parsed.protocol) || !/^https?:\/\//i.test(url.trim())) {
    throw new BadRequestError(`the server address ${JSON.stringify(url)} is not an http:// or https:// URL`, {
      hint: `set PANDASTACK_API or baseUrl to something like ${BASE_URL_DEFAULT}`,
    });
  }
  return `${parsed.origin}${parsed.pathname.replace(/\/+$/, "").replace(/\/v1$/, "")}`;
}

/** The address as far as options and environment tell. */
export function addressGiven(
  option: string | undefined,
  env: Record<string, string | undefined>,
): string | undefined {
  const given = first({ option, ...env }, "option", "PANDASTACK_API", "PANDASTACK_API_URL");
  return given === undefined ? undefined : normalizeBaseUrl(given);
}

/** Settle address and key; throws {@link AuthError} when no key is found. */
export async function resolveConfig(
  options: { baseUrl?: string | undefined; apiKey?: string | undefined },
  env: Record<string, string | undefined> = environment(),
): Promise<Config> {
  const given = addressGiven(options.baseUrl, env);
  let apiKey = first({ option: options.apiKey, ...env }, "option", "PANDASTACK_API_KEY", "PANDASTACK_TOKEN");
  const file = given && apiKey ? {} : await readConfigFile(env);
  const fileUrl = first(file, "api_url", "apiUrl");
  const baseUrl = given ?? normalizeBaseUrl(fileUrl ?? BASE_URL_DEFAULT);
  const isFilesServer = fileUrl === undefined || parseUrl(fileUrl)?.origin === new URL(baseUrl).origin;
  if (!apiKey && isFilesServer) apiKey = first(file, "token", "api_key", "apiKey");
  if (!apiKey) {
    throw new AuthError(`no API key for ${baseUrl}`, {
      hint: "set PANDASTACK_API_KEY, pass apiKey, or run `pandastack up`, which writes one to ~/.config/pandastack/config.json",
    });
  }
  return { baseUrl, apiKey };
}

async function readConfigFile(env: Record<string, string | undefined>): Promise<Record<string, unknown>> {
  try {
    const [fs, os, path] = await Promise.all([importBuiltin("fs/promises"), importBuiltin("os"), importBuiltin("path")]);
    const root = env.XDG_CONFIG_HOME || path.join(os.homedir(), ".config");
    const text = await fs.readFile(path.join(root, "pandastack", "config.json"), "utf8");
    const parsed: unknown = JSON.parse(text.slice(0, CONFIG_CHARS_MAX));
    return typeof parsed === "object" && parsed !== null ? (parsed as Record<string, unknown>) : {};
  } catch {
    return {}; // no file system, no file, or not ours: the caller's error says what is missing
  }
}

function first(source: Record<string, unknown>, ...names: string[]): string | undefined {
  for (const name of names) {
    const value = source[name];
    if (typeof value === "string" && value.trim()) return value.trim();
  }
  return undefined;
}

function parseUrl(url: string): URL | undefined {
  try {
    return new URL(url.trim());
  } catch {
    return undefined;
  }
}
