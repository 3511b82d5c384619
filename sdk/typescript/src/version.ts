/** The package's version; `package.json` says the same, which a test checks. */
export const VERSION = "0.10.0";
