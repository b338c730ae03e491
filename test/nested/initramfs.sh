#!/bin/busybox sh
# First program of the nested machine, from its initramfs: loads the modules, puts the root file system together from the two
# disks and goes on there with machine.sh. Where something fails, the machine ends.
fail() {
  echo "NESTED: $1 failed"
  poweroff -f
}

export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod "$module" || fail "insmod $module"; done

# vda: the data disk, with the image of the template base and what the system needs beside it. vdb: what this run is about.
mkdir /data /run-disk /image /upper /new
mount -t xfs /dev/vda /data || fail "mounting the data disk"
mount -t ext4 -o ro /dev/vdb /run-disk || fail "mounting the disk of this run"
mount -t erofs -o ro,loop /data/image.erofs /image || fail "mounting the image"
mount -t tmpfs tmpfs /upper
mkdir /upper/upper /upper/work
mount -t overlay -o lowerdir=/data/system:/image,upperdir=/upper/upper,workdir=/upper/work overlay /new || fail "overlay"

mkdir -p /new/data /new/checkout /new/image
mount --move /data /new/data
mount --move /run-disk /new/checkout
mount --move /image /new/image
for dir in proc sys dev; do mount --move /$dir /new/$dir; done
exec switch_root /new /bin/sh /checkout/test/nested/machine.sh
