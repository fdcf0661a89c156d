// A node on Express. With the argument "naive" it ignores the version, as Express does unless a program reads it.
import express from "express";

const services = [
  { id: "db", name: "Database", description: "Holds the ledger", status: "Up" },
  { id: "indexer", name: "Indexer", description: "Follows the chain", status: "Initializing" },
  { id: "storage", name: "Storage", description: "Keeps the blobs", status: "Down" },
];
const codes = { Up: 200, Initializing: 206, Down: 503 };

const app = express();
app.use("/svc", (request, response, next) => {
  const versions = [request.query.version ?? []].flat();
  const isSupported = versions.every((version) => ["v0.0.1", "0.0.1"].includes(version));
  if (isSupported || process.argv.includes("naive")) return next();
  response.status(404).json({ message: "API version not found" });
});
app.get("/svc/node", (_, response) => {
  response.json({ node_name: "express", spec_version: "v0.0.1", node_version: "v1.0.0" });
});
app.get("/svc/node/health", (_, response) => response.status(206).end());
app.get("/svc/node/services", (_, response) => response.json({ services }));
app.get("/svc/node/services/:id/health", (request, response) => {
  const service = services.find((each) => each.id === request.params.id);
  if (!service) return response.status(404).json({ message: "Service not found" });
  response.status(codes[service.status]).end();
});
app.listen(Number(process.argv[2]), "127.0.0.1");
