import react from "@vitejs/plugin-react";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const at = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
/** Address of the API for `npm run dev`. */
const API = process.env.PANDASTACK_API ?? "http://127.0.0.1:8080";

export default defineConfig({
  base: "/console/",
  plugins: [react()],
  // The SDK is compiled from its sources, so that the console is always built with the one beside it.
  resolve: { alias: { "@pandastack/sdk": at("../sdk/typescript/src/index.ts") } },
  build: {
    outDir: at("../crates/pandastack-console/pages/built"),
    emptyOutDir: true,
    target: "es2022",
    // The policy allows no inline scripts and no data: fonts.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 700,
  },
  server: { proxy: { "/v1": { target: API, ws: true } } },
});
