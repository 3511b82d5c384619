# Starts the JavaScript kernel. Arguments: the kernel's program, and the language.
#
# The kernel gets requests at 8 and answers at 3. Its standard output and error are pipes, whose other
# ends it has at 4 and 5: Node.js can neither make a pipe nor put it in the place of a standard stream.
set -e
place=$(mktemp -d)
mkfifo "$place/out" "$place/err"
# Opened for both first, because opening one end waits for the other.
exec 6<>"$place/out" 7<>"$place/err"
exec 3>&1 4<"$place/out" 5<"$place/err" 8<&0
exec 1>"$place/out" 2>"$place/err" 0</dev/null 6>&- 7>&-
rm -r "$place"
# Interrupted callbacks leave the stack of asynchronous calls unbalanced, which checks would make fatal.
exec node --no-force-async-hooks-checks -e "$1" "$2"
