#!/bin/sh
# Installs PandaStack from an unpacked release: ./install.sh [--dry-run] [--uninstall] [--prefix DIR]
#
# Copies the files beside this script below the prefix, installs the Debian packages in packages.txt where
# apt-get exists, and reloads systemd. It starts nothing and downloads nothing else.
set -eu

usage() {
    cat <<TEXT
usage: install.sh [--dry-run] [--uninstall] [--prefix DIR] [--no-packages]

  --dry-run      print the commands instead of running them
  --uninstall    remove what an earlier run installed; data, cache and settings are kept
  --prefix DIR   install below DIR instead of /
  --no-packages  do not install Debian packages
TEXT
}

dry_run=no uninstall=no prefix= packages=yes
while [ $# -gt 0 ]; do
    case "$1" in
    --dry-run) dry_run=yes ;;
    --uninstall) uninstall=yes ;;
    --no-packages) packages=no ;;
    --prefix)
        [ $# -ge 2 ] || { echo "install.sh: --prefix needs a directory" >&2; exit 2; }
        prefix=${2%/}
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "install.sh: unknown option $1" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
done

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
[ -f "$here/usr/bin/pandastack" ] || {
    echo "install.sh: $here is not an unpacked release: usr/bin/pandastack is missing" >&2
    exit 1
}

run() {
    if [ "$dry_run" = yes ]; then
        echo "$*"
    else
        "$@"
    fi
}

if [ "$dry_run" = no ] && [ -z "$prefix" ] && [ "$(id -u)" != 0 ]; then
    echo "install.sh: run this as root, or choose a directory of yours with --prefix" >&2
    exit 1
fi

# Paths of the release have neither spaces nor newlines.
files=$(cd "$here" && find usr etc -type f | LC_ALL=C sort)

reload() {
    if [ -z "$prefix" ] && [ -d /run/systemd/system ]; then
        run systemctl daemon-reload
    fi
}

if [ "$uninstall" = yes ]; then
    if [ -z "$prefix" ]; then
        if [ -d /run/systemd/system ]; then
            run systemctl disable --now pandastack || true
        fi
        if [ -x /usr/bin/pandastack ]; then
            run /usr/bin/pandastack down || true
        fi
    fi
    for file in $files; do
        case "$file" in
        # Settings belong to the operator.
        etc/*) ;;
        *) run rm -f "$prefix/$file" ;;
        esac
    done
    reload
    echo "Removed PandaStack. Data is kept in $prefix/var/lib/pandastack; settings in $prefix/etc/pandastack."
    exit 0
fi

if [ "$packages" = yes ] && [ -z "$prefix" ]; then
    if command -v apt-get > /dev/null; then
        # One package a line.
        run env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(cat "$here/packages.txt")
    else
        echo "Install these programs with your package manager: $(tr '\n' ' ' < "$here/packages.txt")"
    fi
fi
for file in $files; do
    mode=644
    [ "$file" = usr/bin/pandastack ] && mode=755
    if [ "${file#etc/}" != "$file" ] && [ -e "$prefix/$file" ]; then
        echo "Kept $prefix/$file."
        continue
    fi
    run install -D -m "$mode" "$here/$file" "$prefix/$file"
done
reload
echo "Installed PandaStack. Check this machine with: pandastack doctor"
echo "Start it with: systemctl enable --now pandastack, or: pandastack up"
