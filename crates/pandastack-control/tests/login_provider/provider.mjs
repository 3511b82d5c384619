// A login provider on a loopback port, for tests: `node provider.mjs DIR`, where DIR has node_modules.
// It prints its issuer and serves until its standard input closes. `PUT /accounts/NAME` sets a person's
// claims. Whoever knows a name signs in with it.
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

// The provider prints notices. Standard output is for the issuer alone, and closed after it was read.
for (const name of ["log", "info", "warn"]) console[name] = console.error;
const { default: Provider } = await import(
  pathToFileURL(`${process.argv[2]}/node_modules/oidc-provider/lib/index.js`).href
);
const accounts = new Map();
const device = "urn:ietf:params:oauth:grant-type:device_code";

const server = createServer();
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "panda",
      client_secret: "hush: & %",
      redirect_uris: ["http://127.0.0.1:9/v1/login/callback"],
      grant_types: ["authorization_code", device],
    },
  ],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "groups"] },
  cookies: { keys: ["for tests"] },
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
  findAccount: (_context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, ...accounts.get(id) }),
  }),
});

const serve = provider.callback();
server.on("request", async (request, response) => {
  const name = request.method === "PUT" && request.url.match(/^\/accounts\/(\w+)$/)?.[1];
  if (!name) return serve(request, response);
  let body = "";
  for await (const chunk of request) body += chunk;
  accounts.set(name, JSON.parse(body));
  response.writeHead(204).end();
});
process.stdin.resume().on("end", () => process.exit());
process.stdout.write(`${issuer}\n`);
