# Makes the kernel and the initial ramdisk of the outer machine in the directory $1.
set -eu
dir=$1
mkdir -p "$dir/packages" "$dir/initrd.d/bin" "$dir/initrd.d/modules"
cd "$dir/packages"
kernel=$(apt-cache depends linux-image-amd64 |
    sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1)
apt-get -q -o APT::Sandbox::User=root download "$kernel" busybox-static
for package in *.deb; do dpkg-deb -x "$package" "$dir/root"; done
release=$(ls "$dir/root/lib/modules")
depmod -b "$dir/root" "$release"
cp "$dir/root/boot/vmlinuz-$release" "$dir/vmlinuz"
busybox=$(find "$dir/root" -path '*bin/busybox' | head -n 1)
cp "$busybox" "$dir/initrd.d/bin/busybox"
# In the order in which they load.
modprobe -d "$dir/root" -S "$release" --show-depends -a virtio_pci virtio_blk 9pnet_virtio 9p overlay |
    sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
    cp "$module" "$dir/initrd.d/modules/"
    basename "$module" >> "$dir/initrd.d/modules/order"
done
cat > "$dir/initrd.d/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /host /rw /new
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "/modules/$module"; done < /modules/order
lab=$(sed 's/.*lab=\([^ ]*\).*/\1/' /proc/cmdline)
# The host's files, to read. What is written stays in memory.
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 host /host || poweroff -f
mount -t tmpfs -o size=60% tmpfs /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new || poweroff -f
for dir in proc sys dev; do mount --move "/$dir" "/new/$dir"; done
exec switch_root /new /bin/sh "$lab/outer.sh" "$lab"
INIT
chmod +x "$dir/initrd.d/init"
cd "$dir/initrd.d"
find . | "$busybox" cpio -o -H newc | gzip -1 > "$dir/initrd"
