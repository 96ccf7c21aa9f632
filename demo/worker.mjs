// A Tenure worker in JavaScript that needs Node 18 or newer and nothing else. Copy it, and replace `work` and the names.
//
//     TENURE_URL=http://127.0.0.1:8080 TENURE_API_KEY=… node worker.mjs
//
// It holds several jobs at once, keeps them with heartbeats, settles them with its next claim, repeats every call whose
// answer was lost, and on SIGTERM settles what is done and gives the rest back.

import { createHash, randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";

const URL_ = process.env.TENURE_URL ?? "http://127.0.0.1:8080";
const KEY = process.env.TENURE_API_KEY;
const NAME = `node-${process.pid}`;
const QUEUE = "demo.files";
const TYPE = "file.measure";
const LEASE_SECONDS = 5;
const LIMIT = 8;

let stopping = false;
const held = new Map(); // job id -> token, of everything that is not settled yet

// The work itself: its result is any JSON value.
async function work(payload) {
  const content = await readFile(payload.path);
  let lines = 0;
  for (const byte of content) if (byte === 10) lines += 1;
  return { sha256: createHash("sha256").update(content).digest("hex"), lines, by: "node" };
}

// POST until it is answered. Safe, because every call may be repeated: by its claim_id, or by its tokens.
async function call(path, body) {
  const headers = { "content-type": "application/json", ...(KEY && { authorization: `Bearer ${KEY}` }) };
  for (;;) {
    try {
      const answer = await fetch(URL_ + path, { method: "POST", headers, body: JSON.stringify(body) });
      if (answer.ok) return await answer.json();
      if (answer.status !== 429 && answer.status !== 503) throw new Error(`${path}: ${await answer.text()}`);
    } catch (fault) {
      if (!(fault instanceof TypeError)) throw fault; // fetch's way to say that the connection broke
      console.log(`${NAME}: ${fault.cause?.code ?? fault.message}, trying again`);
    }
    await pause(100 + 900 * Math.random());
  }
}

// Extend what is held, three times in a lease. A job that is lost leaves `held`: somebody else may have it by now.
async function keepAlive() {
  const items = [...held].map(([id, token]) => ({ id, token, lease_seconds: LEASE_SECONDS }));
  if (items.length === 0) return;
  const { results } = await call("/v1/jobs/heartbeats", { items });
  for (const result of results) if (result.status === 409) held.delete(result.id);
}

// Work on one job and say how that ended.
async function attempt(job) {
  const done = { id: job.id, token: job.reservation.token };
  try {
    return { ...done, outcome: "succeeded", result: await work(job.payload) };
  } catch (fault) { // reading may be repeated; for an effect that may have happened, say `unknown` instead
    return { ...done, outcome: "failed", category: fault.code ?? fault.name, retry: true };
  }
}

function settled(results) {
  for (const result of results) {
    held.delete(result.id);
    if (result.status !== 200) console.log(`${NAME}: ${result.id} was not settled: ${result.problem.code}`);
  }
}

process.on("SIGTERM", () => { stopping = true; });
const beating = setInterval(keepAlive, (LEASE_SECONDS * 1000) / 3);
let done = [];
while (!stopping) {
  const answer = await call("/v1/jobs/claim", {
    queues: [QUEUE], handlers: [{ type: TYPE, schema_versions: [1] }], worker: NAME, limit: LIMIT,
    lease_seconds: LEASE_SECONDS, wait_seconds: 5, claim_id: randomUUID(), settlements: done,
  });
  settled(answer.settled);
  for (const job of answer.jobs) held.set(job.id, job.reservation.token);
  done = [];
  for (const job of answer.jobs) {
    if (stopping) done.push({ id: job.id, token: job.reservation.token, outcome: "released", reason: "shutdown" });
    else if (held.has(job.id)) done.push(await attempt(job));
  }
}
clearInterval(beating);
if (done.length > 0) settled((await call("/v1/jobs/settlements", { items: done })).results);
