"""Runs Java code in one virtual machine, by `Kernel.java`. `wire.py` and `driver.py` are the first parts of
this program, and `KERNEL` is the text of `Kernel.java`.
"""

# Classes of the compiler and of JShell, which the template `code-interpreter` prepares.
ARCHIVE = "/usr/local/lib/pandastack/java.jsa"
# Starting takes much longer than running what is usually run: the quick compiler is enough.
OPTIONS = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", f"-XX:SharedArchiveFile={ARCHIVE}",
    "-Xlog:disable", "-Xlog:all=error:stderr",
)


# Interrupts that code may ignore before its virtual machine is ended.
IGNORED_MAX = 10


class LineCatcher(Catcher):
    """What `println` writes is a text and the end of its line, as other kernels of Java send it."""

    def tell(self, data, final=False):
        if not data.endswith(b"\n"):
            return super().tell(data, final)
        super().tell(data[:-1], True)
        super().tell(b"\n", final)


class Machine(Interpreter):
    hits = 0

    def run(self, number, request):
        self.hits = 0
        yield from super().run(number, request)

    def hit(self):
        self.hits += 1
        if self.hits > IGNORED_MAX:
            # It is in a library, where nothing stops it.
            self.process.kill()
        else:
            self.order(b"stop")


def begin():
    def argv(kernel, files):
        return ["java", *OPTIONS, "--source", "17", kernel, *files]

    return Machine(lambda _: KERNEL, argv)


Driver(begin, LineCatcher).serve()
