import { defineConfig } from "vite";

// The server gives the files of assets/ to everybody and index.html at its root.
export default defineConfig({
  build: {
    outDir: "../src/suwi/console/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the policy of the server allows no inline data
    modulePreload: { polyfill: false },
    target: "es2022",
  },
});
