// Databases with the clients of Node: node-postgres, and Neon's driver as it is published, over HTTP and WebSocket.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Pool, neon, neonConfig } from '@neondatabase/serverless';
import pg from 'pg';
import ws from 'ws';

const origin = (process.env.PANDASTACK_API ?? '').replace(/\/(v1)?$/, '').replace(/\/v1$/, '');
const headers = { Authorization: `Bearer ${process.env.PANDASTACK_API_KEY}`, 'Content-Type': 'application/json' };
let database;

/** Makes a database; the first one of a host waits until PostgreSQL is prepared there. */
async function make() {
  const deadline = Date.now() + 600_000;
  for (;;) {
    const response = await fetch(`${origin}/v1/databases`, { method: 'POST', headers, body: '{"label":"node"}' });
    if (response.status === 201) return response.json();
    const text = await response.text();
    assert.ok(response.status === 503 && Date.now() < deadline, text);
    await new Promise((next) => setTimeout(next, 1000 * Number(response.headers.get('retry-after') ?? 5)));
  }
}

before(async () => {
  database = await make();
  // Without DNS the driver cannot form its own addresses, so it is told where they are: settings of its own.
  neonConfig.fetchEndpoint = () => `${origin}/sql`;
  neonConfig.wsProxy = () => `${new URL(origin).host}/v2`;
  neonConfig.useSecureWebSocket = false;
  neonConfig.webSocketConstructor = globalThis.WebSocket ?? ws;
});

after(async () => {
  await fetch(`${origin}/v1/databases/${database.id}`, { method: 'DELETE', headers });
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
