# Makes the disk of the outer machine: a reflink file system at $1 with the part of the cache $2 that bakes
# need. In a mount namespace of its own, so that no machine that starts meanwhile takes the mount along.
set -eu
disk=$1 cache=$2 mnt=$1.mnt
rm -f "$disk"
truncate -s 16G "$disk"
mkfs.xfs -q -m reflink=1 "$disk"
mkdir -p "$mnt"
mount -o loop "$disk" "$mnt"
mkdir -p "$mnt/cache/images"
for image in $(grep -l '"name": "base"' "$cache"/images/*.json); do
    cp --sparse=always "$image" "${image%.json}.ext4" "$mnt/cache/images/"
done
cp -r "$cache/kernels" "$mnt/cache/"
umount "$mnt"
rmdir "$mnt"
