// E2B's own clients, where they load: one of their dependencies is an ES module that they `require`, which Node 18 cannot.
import { test } from "node:test";

const loads = await import("e2b").then(() => true, (error) => {
  if (error.code !== "ERR_REQUIRE_ESM") throw error;
  return false;
});
if (loads) await import("./e2b.cases.mjs");
else test("E2B's clients", { skip: `e2b does not load in Node ${process.version}; 20.19 or newer does` });
