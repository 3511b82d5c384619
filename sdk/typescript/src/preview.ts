/**
 * Public addresses of a sandbox's ports: `<scheme>://<port>-<sandbox id>.<suffix>`. The id is the
 * credential; nothing else is in the URL.
 */

import { BadRequestError } from "./errors.js";

/**
 * The host suffix of previews for the server at `baseUrl`.
 *
 * A plain-http server is a box of one's own that serves previews on the API's listen address, so its
 * port stays; a loopback address becomes `localhost`, whose subdomains resolve by themselves. An https
 * server has previews on the standard port of the API's domain.
 */
export function previewSuffix(baseUrl: string): string {
  const url = new URL(baseUrl);
  const isLoopback = /^127\.\d+\.\d+\.\d+$/.test(url.hostname) || url.hostname === "[::1]";
  const host = isLoopback ? "localhost" : url.hostname.replace(/^api\./, "");
  return url.protocol === "http:" && url.port ? `${host}:${url.port}` : host;
}

/** The preview address of one port; `host` replaces the suffix, `scheme` the API's own. */
export function previewUrl(
  baseUrl: string,
  sandboxId: string,
  port: number,
  options: { host?: string | undefined; scheme?: "http" | "https" | undefined } = {},
): string {
  if (!Number.isInteger(port) || port < 1 || port > 65535) throw new BadRequestError(`port must be 1-65535, got ${port}`);
  const scheme = options.scheme ?? new URL(baseUrl).protocol.replace(":", "");
  return `${scheme}://${port}-${sandboxId}.${options.host ?? previewSuffix(baseUrl)}`;
}
