"""Runs R code in one R process, by `r.R`. `wire.py` and `driver.py` are the first parts of this program, and
`KERNEL` is the text of `r.R`.
"""


def begin():
    def program(files):
        # The call ends the file: what reads from R's console finds nothing more.
        return KERNEL.rstrip() + "(" + ", ".join(f'"{file}"' for file in files) + ")\n"

    options = ["--no-echo", "--no-restore", "--no-save"]
    return Interpreter(program, lambda kernel, _: ["R", *options, f"--file={kernel}"])


Driver(begin).serve()
