// Runs Java code for `driver.py`, by the JShell API in this process.
//
// A cell is split into snippets, as in the console `jshell`, which are run one after the other.
// `java` compiles this file whenever it starts, so that it needs no installation.

import java.io.*;
import java.lang.reflect.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.SynchronousQueue;
import java.util.stream.Collectors;
import jdk.jshell.*;
import jdk.jshell.execution.LocalExecutionControl;
import jdk.jshell.spi.*;

public final class Kernel {
    /** What the console imports. */
    private static final List<String> IMPORTS = List.of(
        "java.io", "java.math", "java.net", "java.nio.file", "java.util", "java.util.concurrent",
        "java.util.function", "java.util.prefs", "java.util.regex", "java.util.stream");
    /** Code may replace those of `System`. */
    private static final PrintStream OUT = System.out;
    private static final PrintStream ERR = System.err;
    private static final int FRAMES_MAX = 50;
    /** Longest line that an error shows. */
    private static final int COLUMNS_MAX = 200;
    private static final String NO_PATH = "/proc/self/nothing";
    private static final String INTERRUPTED = "the code was interrupted";

    /** Runs snippets in this process, and knows the last value that was asked for. */
    public static final class Execution extends LocalExecutionControl {
        private static Method body;
        private static Thread caller;
        Object value;

        @Override
        protected String invoke(Method method) throws Exception {
            body = method;
            caller = Thread.currentThread();
            return super.invoke(Execution.class.getDeclaredMethod("enter"));
        }

        /** Runs the snippet when the caller waits for it, and not for threads that it starts. */
        @SuppressWarnings("unused")
        public static Object enter() throws Throwable {
            while (caller.getState() != Thread.State.WAITING) Thread.yield();
            Thread me = Thread.currentThread();
            Thread.UncaughtExceptionHandler outer = Thread.getDefaultUncaughtExceptionHandler();
            Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
                if (thread == me) {
                    outer.uncaughtException(thread, error);
                    return;
                }
                ERR.print("Exception in thread \"" + thread.getName() + "\" ");
                error.printStackTrace(ERR);
            });
            try {
                return body.invoke(null);
            } catch (InvocationTargetException error) {
                throw error.getCause();
            }
        }

        @Override
        public String varValue(String className, String name)
                throws RunException, EngineTerminationException, InternalException {
            try {
                var field = findClass(className).getDeclaredField(name);
                field.setAccessible(true);
                value = field.get(null);
            } catch (ReflectiveOperationException error) {
                value = null;
            }
            return "";
        }
    }

    /** Where a snippet is: in which cell, and after which lines of it. */
    private record Place(String cell, int linesBefore) {}

    /** Ends a run, with what is told of its error. */
    private static final class Failure extends Exception {
        final String name;
        final String trace;

        Failure(String name, String value, String trace) {
            super(value);
            this.name = name;
            this.trace = trace;
        }
    }

    private final String request;
    private final String event;
    private final DataOutputStream answers;
    private final SynchronousQueue<String> orders = new SynchronousQueue<>();
    private final Execution execution = new Execution();
    private final JShell shell;
    private final Map<String, Place> places = new HashMap<>();
    private volatile boolean isStopped;

    private Kernel(String[] files) throws IOException {
        request = files[1];
        answers = new DataOutputStream(new FileOutputStream(files[2]));
        event = files[3];
        System.getenv().forEach(System.getProperties()::putIfAbsent);
        shell = JShell.builder().executionEngine(new ExecutionControlProvider() {
            @Override
            public String name() {
                return "kernel";
            }

            @Override
            public ExecutionControl generate(ExecutionEnv env, Map<String, String> parameters) {
                return execution;
            }
        }, null).build();
        IMPORTS.forEach(name -> shell.eval("import " + name + ".*;"));
        Thread reader = new Thread(() -> read(files[0]), "orders");
        reader.setDaemon(true);
        reader.start();
    }

    public static void main(String[] files) throws Exception {
        Kernel kernel = new Kernel(files);
        while (true) {
            kernel.orders.take();
            kernel.serve();
        }
    }

    /** Reads orders beside the execution, so that it can be stopped. */
    private void read(String path) {
        try (var lines = Files.newBufferedReader(Path.of(path))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (line.equals("stop")) {
                    isStopped = true;
                    shell.stop();
                } else {
                    orders.put(line);
                }
            }
            // The context was ended.
            System.exit(0);
        } catch (IOException | InterruptedException error) {
            System.exit(1);
        }
    }

    private void answer(String word) throws IOException {
        OUT.flush();
        ERR.flush();
        answers.writeBytes(word + "\n");
        answers.flush();
    }

    private void tell(String... strings) throws IOException, InterruptedException {
        var bytes = new ByteArrayOutputStream();
        var data = new DataOutputStream(bytes);
        for (String string : strings) {
            byte[] one = string.getBytes(StandardCharsets.UTF_8);
            data.writeInt(one.length);
            data.write(one);
        }
        try (var file = new RandomAccessFile(event, "rw")) {
            file.setLength(0);
            file.write(bytes.toByteArray());
        }
        answer("event");
        orders.take();
    }

    private List<String> readRequest() throws IOException {
        List<String> found = new ArrayList<>();
        try (var data = new DataInputStream(Files.newInputStream(Path.of(request)))) {
            while (data.available() > 0) {
                found.add(new String(data.readNBytes(data.readInt()), StandardCharsets.UTF_8));
            }
        }
        return found;
    }

    private void serve() throws IOException, InterruptedException {
        List<String> wanted = readRequest();
        isStopped = false;
        answer("begun");
        Map<String, String> before = new LinkedHashMap<>();
        for (int at = 3; at < wanted.size(); at += 2) {
            before.put(wanted.get(at), System.getProperty(wanted.get(at)));
            System.setProperty(wanted.get(at), wanted.get(at + 1));
        }
        try {
            if (!wanted.get(2).isEmpty()) reseed(Long.parseLong(wanted.get(2)));
            run(wanted.get(0), wanted.get(1));
        } catch (Failure error) {
            tell("error", "name", error.name, "value", error.getMessage(), "traceback", error.trace);
        } catch (RuntimeException | Error error) {
            // Of the compiler, such as for an expression that is nested too deeply.
            String what = error.toString();
            tell("error", "name", "CompilationError", "value", what, "traceback", what);
        }
        before.forEach((name, value) -> {
            if (value == null) System.clearProperty(name);
            else System.setProperty(name, value);
        });
        answer("done");
    }

    /** Gives the numbers of `Math.random` a new beginning. Its generator is private to Java. */
    private static void reseed(long seed) {
        try {
            Math.random();
            Field generator = Class.forName("java.lang.Math$RandomNumberGeneratorHolder")
                .getDeclaredField("randomNumberGenerator");
            // By its name: the compiler would warn.
            Class<?> type = Class.forName("sun.misc.Unsafe");
            Field field = type.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            Object unsafe = field.get(null);
            Object base = type.getMethod("staticFieldBase", Field.class).invoke(unsafe, generator);
            Object offset = type.getMethod("staticFieldOffset", Field.class).invoke(unsafe, generator);
            Method read = type.getMethod("getObject", Object.class, long.class);
            ((Random) read.invoke(unsafe, base, offset)).setSeed(seed);
        } catch (ReflectiveOperationException | RuntimeException error) {
            ERR.println("warning: Math.random was not reseeded: " + error);
        }
    }

    private void run(String code, String cell) throws Failure, IOException, InterruptedException {
        SourceCodeAnalysis analysis = shell.sourceCodeAnalysis();
        List<DeclarationSnippet> unresolved = new ArrayList<>();
        String value = null;
        for (int at = 0; at < code.length();) {
            var found = analysis.analyzeCompletion(code.substring(at));
            if (found.completeness() == SourceCodeAnalysis.Completeness.EMPTY) break;
            boolean isWhole = found.completeness().isComplete();
            String source = isWhole ? found.source() : code.substring(at);
            int end = isWhole ? code.length() - found.remaining().length() : code.length();
            value = evaluate(code, cell, at, source, unresolved);
            at = end;
        }
        for (DeclarationSnippet snippet : unresolved) {
            String missing = missing(snippet);
            if (missing.isEmpty()) continue;
            String warning = "warning: `%s` cannot be used until these are declared: %s%n";
            ERR.printf(warning, snippet.name(), missing);
        }
        if (value != null) tell("result", "is_main_result", "true", "text", value);
    }

    /** Runs a snippet. The text of its value, if it is an expression. */
    private String evaluate(
            String code, String cell, int at, String source, List<DeclarationSnippet> unresolved)
            throws Failure {
        // JShell counts lines from what is not blank.
        int from = at + blankOf(source);
        int linesBefore = linesOf(code.substring(0, from));
        String text = null;
        if (isStopped) throw interrupted();
        List<SnippetEvent> events = shell.eval(source.substring(from - at));
        if (isStopped) throw interrupted();
        for (SnippetEvent one : events) {
            if (one.causeSnippet() != null) continue;
            Snippet snippet = one.snippet();
            places.put(snippet.id(), new Place(cell, linesBefore));
            if (one.exception() != null) throw failure(one.exception());
            switch (one.status()) {
                case REJECTED, NONEXISTENT -> throw rejected(code, cell, from, snippet);
                case RECOVERABLE_DEFINED, RECOVERABLE_NOT_DEFINED -> {
                    if (missing(snippet).isEmpty()) throw broken(code, cell, from, snippet);
                    unresolved.add((DeclarationSnippet) snippet);
                }
                default -> text = shown(snippet, one.value());
            }
        }
        return text;
    }

    /** Length of the white space and comments that a source begins with. */
    private static int blankOf(String source) {
        int at = 0;
        while (at < source.length()) {
            int end = source.startsWith("//", at) ? source.indexOf('\n', at)
                : source.startsWith("/*", at) ? source.indexOf("*/", at + 2) + 1
                : Character.isWhitespace(source.charAt(at)) ? at : -1;
            if (end < at) break;
            at = end + 1;
        }
        return at;
    }

    private static int linesOf(String text) {
        return (int) text.chars().filter(one -> one == '\n').count();
    }

    /** What a declaration needs that is not declared yet. */
    private String missing(Snippet snippet) {
        return snippet instanceof DeclarationSnippet declaration
            ? shell.unresolvedDependencies(declaration).collect(Collectors.joining(", ")) : "";
    }

    private static Failure interrupted() {
        return new Failure("Interrupted", INTERRUPTED, "Interrupted: " + INTERRUPTED);
    }

    /** A text is shown as it is, and not as in Java's sources. */
    private String shown(Snippet snippet, String value) {
        String name = null;
        if (snippet instanceof ExpressionSnippet expression) name = expression.name();
        boolean isUnnamed = snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND;
        if (isUnnamed && snippet instanceof VarSnippet unnamed) name = unnamed.name();
        if (name == null || value == null) return null;
        for (VarSnippet variable : shell.variables().toList()) {
            if (variable.name().equals(name)) shell.varValue(variable);
        }
        Object object = execution.value;
        execution.value = null;
        return object instanceof CharSequence || object instanceof Character ? object.toString() : value;
    }

    /** A snippet that the compiler read but cannot translate, such as a constant that is too long. */
    private Failure broken(String code, String cell, int from, Snippet snippet) {
        Failure failure = rejected(code, cell, from, snippet);
        shell.drop(snippet);
        // The compiler is left with the constant, and a new class path gets a new compiler.
        shell.addToClasspath(NO_PATH);
        return failure;
    }

    private Failure rejected(String code, String cell, int from, Snippet snippet) {
        Diag diag = shell.diagnostics(snippet).filter(Diag::isError).findFirst().orElse(null);
        String message = diag == null ? "the code cannot be run" : diag.getMessage(Locale.ROOT);
        long position = diag == null || diag.getPosition() == Diag.NOPOS ? 0 : diag.getPosition();
        int at = (int) Math.min(code.length(), from + position);
        int lineBegin = code.lastIndexOf('\n', at - 1) + 1;
        int lineEnd = code.indexOf('\n', at);
        String line = code.substring(lineBegin, lineEnd < 0 ? code.length() : Math.max(lineBegin, lineEnd));
        String where = cell + ":" + (1 + linesOf(code.substring(0, lineBegin))) + ": " + message;
        String marked = "\n" + line + "\n" + " ".repeat(at - lineBegin) + "^";
        return new Failure("CompilationError", where, line.length() > COLUMNS_MAX ? where : where + marked);
    }

    private Failure failure(JShellException error) {
        if (error instanceof UnresolvedReferenceException unresolved) {
            DeclarationSnippet snippet = unresolved.getSnippet();
            String value = "`" + snippet.name() + "` needs what is not declared: " + missing(snippet);
            String name = "UnresolvedReferenceException";
            return new Failure(name, value, name + ": " + value);
        }
        String value = error.getMessage() == null ? "" : error.getMessage();
        var trace = new StringBuilder();
        describe(trace, "", error);
        return new Failure(nameOf(error), value, trace.toString().stripTrailing());
    }

    private static String nameOf(Throwable error) {
        if (error instanceof EvalException thrown) return thrown.getExceptionClassName();
        return error.getClass().getName();
    }

    private void describe(StringBuilder trace, String prefix, Throwable error) {
        trace.append(prefix).append(nameOf(error));
        if (error.getMessage() != null) trace.append(": ").append(error.getMessage());
        trace.append('\n');
        StackTraceElement[] frames = error.getStackTrace();
        for (int at = 0; at < Math.min(frames.length, FRAMES_MAX); at++) {
            trace.append("    at ").append(where(frames[at])).append('\n');
        }
        int leftOut = frames.length - FRAMES_MAX;
        if (leftOut > 0) trace.append("    ... ").append(leftOut).append(" more\n");
        if (error.getCause() != null) describe(trace, "Caused by: ", error.getCause());
    }

    /** A frame, with the line of its cell. */
    private String where(StackTraceElement frame) {
        String file = frame.getFileName();
        Place place = file != null && file.startsWith("#") ? places.get(file.substring(1)) : null;
        if (place == null) return frame.toString();
        String line = place.cell + ":" + (place.linesBefore + frame.getLineNumber());
        String method = (frame.getClassName() + "." + frame.getMethodName()).replaceFirst("^\\.", "");
        return method.equals("do_it$") || method.isEmpty() ? line : method + " (" + line + ")";
    }
}
