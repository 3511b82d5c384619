# Runs in the outer machine, as its first process: PandaStack with Firecracker on KVM. $1 is the directory of the lab.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
lab=$1
. "$lab/settings.sh"
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$lab/root/lib/modules" /lib/modules
ip link set lo up
modprobe -a kvm_amd tun loop
mkfs.xfs -q -f -m reflink=1 /dev/vda
mount /dev/vda /mnt

passed=0
failed=0
check() {
    name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "test $name ... ok"
    else
        failed=$((failed + 1))
        echo "test $name ... FAILED"
    fi
}
finish() {
    echo "test result: $passed passed; $failed failed; 0 ignored"
    sync
    echo b > /proc/sysrq-trigger
    sleep 60
}
start() {
    # Opened for both, so that this shell does not wait for the end of it.
    rm -f /run/ready
    mkfifo /run/ready
    "$PANDASTACK" up --json --data-dir /mnt/data --cache-dir "$CACHE" --engine firecracker --slots-ready 2 \
        --no-client-config > /run/ready 2>> /mnt/up.log &
    up=$!
    read -r ready < /run/ready
    PANDASTACK_API=$(echo "$ready" | sed -n 's/.*"api_url":"\([^"]*\)".*/\1/p')
    PANDASTACK_API_KEY=$(echo "$ready" | sed -n 's/.*"token":"\([^"]*\)".*/\1/p')
    export PANDASTACK_API PANDASTACK_API_KEY
    [ -n "$PANDASTACK_API_KEY" ]
}
agent_log() {
    tail -n 40 /mnt/up.log /mnt/data/logs/agent.log
}
says() {
    wanted=$1
    shift
    found=$("$@") && [ "$found" = "$wanted" ]
}
engine_is_firecracker() {
    "$PANDASTACK" sandbox get "$id" --json | grep -q '"engine": *"firecracker"'
}
adopts_after_kill() {
    # Sandboxes go on, and `up` starts another agent, which adopts them.
    pkill -9 -f ' agent --supervised '
    says kept "$PANDASTACK" sandbox exec "$id" -- cat /tmp/word
}

check installs "$PANDASTACK" engine install firecracker --from "$FIRECRACKER" --data-dir /mnt/data
check starts start
check builds_a_template "$PANDASTACK" template build base
if ! id=$("$PANDASTACK" sandbox create); then
    check creates false
    agent_log
    finish
fi
check creates true
check is_firecracker engine_is_firecracker
check executes says hello "$PANDASTACK" sandbox exec "$id" -- echo hello
check writes "$PANDASTACK" sandbox exec "$id" -- 'echo kept > /tmp/word'
check pauses "$PANDASTACK" sandbox pause "$id"
check resumes "$PANDASTACK" sandbox resume "$id"
check remembers_after_a_pause says kept "$PANDASTACK" sandbox exec "$id" -- cat /tmp/word
check takes_a_snapshot "$PANDASTACK" sandbox snapshot "$id"
check goes_on_after_a_snapshot says kept "$PANDASTACK" sandbox exec "$id" -- cat /tmp/word
check hibernates "$PANDASTACK" sandbox hibernate "$id"
check wakes says kept "$PANDASTACK" sandbox exec "$id" -- cat /tmp/word
child=$("$PANDASTACK" sandbox fork "$id")
check forks says kept "$PANDASTACK" sandbox exec "$child" -- cat /tmp/word
check adopts adopts_after_kill
check deletes "$PANDASTACK" sandbox rm "$id" "$child"
[ "$failed" = 0 ] || agent_log
finish
