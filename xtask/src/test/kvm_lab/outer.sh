# First process of the outer machine. $1 is the directory of the lab.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1
lab=$1
mount -t tmpfs tmpfs /run
mkdir -p /dev/pts /dev/shm /lib/modules
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t debugfs debugfs /sys/kernel/debug
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$lab/root/lib/modules" /lib/modules
ip link set lo up
# The host's own directory for temporary files changes underneath, and what was cached of it becomes stale.
mkdir -p /run/tmp
export TMPDIR=/run/tmp
# Messages of the kernel would be mixed into the results.
dmesg -n 1
modprobe -a kvm_amd tun loop xfs veth
mount /dev/vda /mnt
python3 -u "$lab/tests.py" "$lab/settings.json"
sync
echo b > /proc/sysrq-trigger
sleep 60
