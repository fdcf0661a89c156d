// Report the status of a service to the node from JavaScript; Node.js without packages.
//   SVCNODE_CONTROL=/run/svcnode/control.sock node worker.mjs ID TTL_IN_SECONDS
import { request } from "node:http";

const [id, ttl] = process.argv.slice(2);

function node(method, path, body = {}) {
  return new Promise((resolve, reject) => {
    const options = { socketPath: process.env.SVCNODE_CONTROL, method, path: `/v1/${path}`, timeout: 5000 };
    const sent = request(options, async (response) => {
      const text = (await response.toArray()).join("");
      response.statusCode < 400 ? resolve(text) : reject(new Error(`${response.statusCode} ${text}`));
    });
    sent.on("timeout", () => sent.destroy(new Error("no response in time"))).on("error", reject);
    sent.end(JSON.stringify(body));
  });
}

const service = `services/${encodeURIComponent(id)}`;
let registered = false;

async function report(status, reason = "") {
  // The node may be away, and after that it may not know the service.
  if (!registered) await node("PUT", service, { ttl: `${ttl}s`, name: "Worker in JavaScript" });
  registered = false;
  await node("PUT", `${service}/status`, { status, reason });
  registered = true;
}

const beat = () => report("up").catch((error) => console.error(error.message));

async function stop() {
  clearInterval(beats);
  await report("down", "stopped")
    .then(() => node("DELETE", service))
    .catch((error) => console.error(error.message));
  process.exit(0);
}

await beat();
const beats = setInterval(beat, (ttl * 1000) / 3);
process.on("SIGINT", stop).on("SIGTERM", stop);
