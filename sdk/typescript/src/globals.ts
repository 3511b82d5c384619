/**
 * Types of the web platform that signatures name.
 *
 * A program may be compiled without the declarations of browsers or of Node, and for a language version
 * without `Symbol.asyncDispose`. Each type is then an empty stand-in, and the package still compiles.
 */

type Global = typeof globalThis;

/** See the web platform's `AbortSignal`. */
export type AbortSignal = Global extends { AbortSignal: { prototype: infer T } } ? T : object;
/** See the web platform's `Headers`. */
export type Headers = Global extends { Headers: { prototype: infer T } } ? T : object;
/** See the web platform's `Response`. */
export type Response = Global extends { Response: { prototype: infer T } } ? T : object;
/** See the web platform's `Blob`. */
export type Blob = Global extends { Blob: { prototype: infer T } } ? T : object;
/** See the web platform's `ReadableStream`. */
export type ByteSource = Global extends { ReadableStream: { prototype: infer T } } ? T : object;
/** See the web platform's `fetch`. */
export type Fetch = Global extends { fetch: infer T } ? T : (input: string, init?: object) => Promise<object>;

declare const absent: unique symbol;
/** `Symbol.asyncDispose`, where the language has it. */
export type AsyncDispose = SymbolConstructor extends { readonly asyncDispose: infer T extends symbol }
  ? T
  : typeof absent;
