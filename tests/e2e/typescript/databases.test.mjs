// Databases with the clients of Node: our SDK, node-postgres, and Neon's driver as it is published, over HTTP and WebSocket.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Pool, neon, neonConfig } from '@neondatabase/serverless';
import { NotFoundError, PandaStack } from '@pandastack/sdk';
import pg from 'pg';
import ws from 'ws';

const origin = (process.env.PANDASTACK_API ?? '').replace(/\/(v1)?$/, '').replace(/\/v1$/, '');
// The first database of a host waits until PostgreSQL is prepared there.
const client = new PandaStack({ maxCreateRetrySeconds: 600 });
let database;

before(async () => {
  database = await client.databases.create({ label: 'node' });
  // Without DNS the driver cannot form its own addresses, so it is told where they are: settings of its own.
  neonConfig.fetchEndpoint = () => `${origin}/sql`;
  neonConfig.wsProxy = () => `${new URL(origin).host}/v2`;
  neonConfig.useSecureWebSocket = false;
  neonConfig.webSocketConstructor = globalThis.WebSocket ?? ws;
});

after(async () => {
  await client.databases.delete(database.id);
});

/** Asks until the answer is true. */
async function until(what, probe, seconds = 180) {
  const deadline = Date.now() + seconds * 1000;
  while (!(await probe())) {
    assert.ok(Date.now() < deadline, `not within ${seconds} s: ${what}`);
    await new Promise((next) => setTimeout(next, 500));
  }
}

test('the SDK queries and branches a database, lists its backups and deletes it', async (t) => {
  const { id } = database;
  assert.equal((await client.databases.get(id)).connectionUrl, database.connection_url);
  assert.ok((await client.databases.list()).some((one) => one.id === id && one.label === 'node' && !one.password));
  const answer = await client.databases.query(id, 'SELECT $1::int + 1 AS n, $2::text AS t', [41, 'x']);
  assert.deepEqual([answer.rows, answer.count, answer.columns.map(({ type }) => type)], [[[42, 'x']], 1, ['int4', 'text']]);
  await client.databases.query(id, 'CREATE TABLE branched AS SELECT 7 AS n');
  const copy = await client.databases.branch(id, { label: 'copy' });
  t.after(() => client.databases.delete(copy.id).catch((error) => assert.ok(error instanceof NotFoundError, error)));
  assert.equal(copy.clonedFrom, id);
  await client.databases.query(id, 'DROP TABLE branched');
  assert.deepEqual((await client.databases.query(copy.id, 'SELECT n FROM branched')).rows, [[7]]);
  await client.databases.delete(copy.id);
  await assert.rejects(client.databases.get(copy.id), NotFoundError);
  await until('a base backup', async () => (await client.databases.backups(id)).healthy);
  const { base_backups: bases, retention_days: days } = await client.databases.backups(id);
  assert.ok(bases.length >= 1 && bases[0].size_bytes > 1_000_000 && days > 0);
});

test('the Neon driver over HTTP', async () => {
  const sql = neon(database.connection_url);
  const [row] = await sql`SELECT ${41}::int + 1 AS n, ${null}::text AS z, '{1,2}'::int[] AS a, '{"k":1}'::jsonb AS j`;
  assert.deepEqual(row, { n: 42, z: null, a: [1, 2], j: { k: 1 } });
  assert.deepEqual(await sql.query('SELECT $1::bytea AS b', [Buffer.from('hi')]), [{ b: Buffer.from('hi') }]);
  const results = await sql.transaction([sql`SELECT 1 AS one`, sql`SHOW transaction_read_only`], { readOnly: true });
  assert.deepEqual(results, [[{ one: 1 }], [{ transaction_read_only: 'on' }]]);
  await assert.rejects(sql`SELECT * FROM nowhere`, { name: 'NeonDbError', code: '42P01' });
  const stranger = neon(database.connection_url.replace(database.password, 'wrong'));
  await assert.rejects(stranger`SELECT 1`, { code: '28P01' });
});

test('the Neon driver over a WebSocket', async () => {
  const pool = new Pool({ connectionString: database.connection_url });
  try {
    const { rows } = await pool.query('SELECT $1::int * 2 AS n', [21]);
    assert.deepEqual(rows, [{ n: 42 }]);
    const client = await pool.connect();
    await client.query('BEGIN');
    await client.query('CREATE TABLE socket (n int)');
    await client.query('INSERT INTO socket SELECT generate_series(1, 20000)');
    await client.query('COMMIT');
    const all = await client.query('SELECT n FROM socket ORDER BY n');
    assert.equal(all.rows.length, 20000);
    assert.equal(all.rows[19999].n, 20000);
    await assert.rejects(client.query('SELECT 1/0'), { code: '22012' });
    client.release();
  } finally {
    await pool.end();
  }
  const stranger = new Pool({ connectionString: database.connection_url.replace(database.password, 'wrong') });
  stranger.on('error', () => {});
  await assert.rejects(stranger.query('SELECT 1'), { code: '28P01' });
  await stranger.end();
});

test('node-postgres, directly and through the pooler', async () => {
  for (const text of [database.connection_url, database.pooled_url]) {
    const url = new URL(text);
    const client = new pg.Client({
      host: url.hostname, port: Number(url.port), user: url.username, password: url.password, database: 'app',
      options: url.searchParams.get('options'), ssl: { rejectUnauthorized: false },
    });
    await client.connect();
    for (let n = 0; n < 3; n += 1) {
      const { rows } = await client.query({ name: 'double', text: 'SELECT $1::int * 2 AS n', values: [n] });
      assert.deepEqual(rows, [{ n: n * 2 }]);
    }
    await client.end();
  }
});
